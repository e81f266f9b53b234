"""The connection blob: what one side sends so that the other can reach it.

Owns the bytes. Refuses to know what is inside nixl's metadata. Invariants:
decoding is total, any bytes give a `PeerBlob` or a `RemoteFault`; nothing
reaches nixl's own parser that did not leave a `PeerBlob.encode` unchanged, since
that parser is native code and takes garbage badly.

Layout, big-endian: magic "KVXN", format version (u16), body length (u32),
SHA-256 of the body; then the body: nixl version, agent name, boot id and
namespaces, the backend as text (u16 length first), pid and start ticks (u64), region
count (u32), all region bases, lengths, kinds (number in KINDS) and devices (u64 each),
nixl's metadata (u32 length first). The digest finds damage, it does not authenticate: that is the
handshake's work (DESIGN section 9).
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from kvxfer.errors import RemoteFault
from kvxfer.transport.blobs import Reader, opened, seal, text_bytes
from kvxfer.transport.liveness import ProcessIdentity
from kvxfer.transport.ops import Memory

MAGIC: Final = b"KVXN"
FORMAT: Final = 2
REGIONS_MAX: Final = 4096
KINDS: Final = ("dram", "cuda", "neuron")
"""Kinds of memory by their number in a blob."""

DEVICE_MAX: Final = (1 << 16) - 1

_PID_MAX: Final = 1 << 31
_ADDRESS_STOP: Final = 1 << 64


@attrs.frozen(kw_only=True)
class PeerBlob:
    """One side of a link: who it is, what it lends, how nixl reaches it."""

    nixl_version: str
    agent: str
    backend: str
    process: ProcessIdentity
    regions: tuple[Memory, ...]
    """What the other side may name."""
    metadata: bytes = attrs.field(repr=False)

    def encode(self) -> bytes:
        """The bytes that `decode` takes."""
        process = self.process
        texts = (self.nixl_version, self.agent, process.boot_id, process.namespaces, self.backend)
        parts = [text_bytes(text) for text in texts]
        parts.append(struct.pack(">QQI", process.pid, process.start_ticks, len(self.regions)))
        rows = [(m.base, m.length, KINDS.index(m.kind), m.device) for m in self.regions]
        parts += [struct.pack(f">{len(column)}Q", *column) for column in zip(*rows)]
        parts.append(struct.pack(">I", len(self.metadata)) + self.metadata)
        body = b"".join(parts)
        return seal(MAGIC, FORMAT, body)

    @classmethod
    def decode(cls, blob: bytes) -> PeerBlob:
        """Raises `RemoteFault` where `blob` is not one of ours, whole and unchanged."""
        reader = Reader(opened(MAGIC, FORMAT, blob))
        nixl_version, agent = reader.text("nixl_version"), reader.text("agent")
        boot_id, namespaces = reader.text("boot_id"), reader.text("namespaces")
        backend = reader.text("backend")
        pid, start_ticks = reader.number("pid", ">Q"), reader.number("start_ticks", ">Q")
        if not 0 < pid < _PID_MAX:
            raise RemoteFault("blob.pid", pid, f"from 1 to {_PID_MAX - 1}")
        process = ProcessIdentity(
            boot_id=boot_id, namespaces=namespaces, pid=pid, start_ticks=start_ticks
        )
        regions = _regions(reader)
        metadata = reader.take("metadata", reader.number("metadata length", ">I"))
        reader.end()
        if not agent or not metadata:
            raise RemoteFault("blob.agent", agent, "agent name and metadata must not be empty")
        return cls(
            nixl_version=nixl_version,
            agent=agent,
            backend=backend,
            process=process,
            regions=regions,
            metadata=metadata,
        )


def _regions(reader: Reader) -> tuple[Memory, ...]:
    count = reader.number("region count", ">I")
    if count > REGIONS_MAX:
        raise RemoteFault("blob region count", count, f"at most {REGIONS_MAX}")
    names = ("bases", "lengths", "kinds", "devices")
    columns = [struct.unpack(f">{count}Q", reader.take(f"region {n}", 8 * count)) for n in names]
    return tuple(_region(*row) for row in zip(*columns))


def _region(base: int, length: int, kind: int, device: int) -> Memory:
    if not (base > 0 and length > 0 and base + length <= _ADDRESS_STOP):
        bound = "base and length above 0, the end at most 2**64"
        raise RemoteFault("blob region", (base, length), bound)
    if kind >= len(KINDS):
        raise RemoteFault("blob region kind", kind, f"from 0 to {len(KINDS) - 1}")
    if device > DEVICE_MAX:
        raise RemoteFault("blob region device", device, f"at most {DEVICE_MAX}")
    return Memory(base=base, length=length, kind=KINDS[kind], device=device)
