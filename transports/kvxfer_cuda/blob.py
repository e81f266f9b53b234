"""What one side tells the other: who it is, where its mail goes, which memory it lends.

Owns the bytes. Refuses to open anything. Invariant: decoding is total: any bytes give a
`PeerBlob` or a `RemoteFault`.

Layout, big-endian: magic "KVXC", format (u16); name of the mail socket, boot id,
namespaces as text (u16 length first); pid and start ticks (u64); token (16 bytes); region
count (u16); for each region base, length, base and length of its allocation (u64 each)
and the allocation's name for other processes (64 bytes).
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from kvxfer.errors import RemoteFault
from kvxfer.transport.blobs import Reader, text_bytes
from kvxfer.transport.liveness import ProcessIdentity
from kvxfer_cuda.driver import IPC_HANDLE_BYTES

MAGIC: Final = b"KVXC"
FORMAT: Final = 1
TOKEN_BYTES: Final = 16
REGIONS_MAX: Final = 1024
_HEAD: Final = struct.Struct(">4sH")
_REGION: Final = struct.Struct(f">QQQQ{IPC_HANDLE_BYTES}s")
_ADDRESS_STOP: Final = 1 << 64
_PID_MAX: Final = 1 << 31


@attrs.frozen(kw_only=True)
class Lent:
    """One region inside one allocation."""

    base: int
    length: int
    allocation: int
    allocation_bytes: int
    name: bytes
    """The allocation's name for other processes."""


@attrs.frozen(kw_only=True)
class PeerBlob:
    """One side of a link."""

    mail: str
    process: ProcessIdentity
    token: bytes
    """Names the peer handle at the side that made the blob; nobody else knows it."""
    regions: tuple[Lent, ...]

    def encode(self) -> bytes:
        process = self.process
        texts = (self.mail, process.boot_id, process.namespaces)
        parts = [_HEAD.pack(MAGIC, FORMAT), *map(text_bytes, texts)]
        parts.append(struct.pack(">QQ", process.pid, process.start_ticks) + self.token)
        parts.append(struct.pack(">H", len(self.regions)))
        parts += [
            _REGION.pack(r.base, r.length, r.allocation, r.allocation_bytes, r.name)
            for r in self.regions
        ]
        return b"".join(parts)

    @classmethod
    def decode(cls, blob: bytes) -> PeerBlob:
        """Raises `RemoteFault`."""
        if not isinstance(blob, bytes):
            raise RemoteFault("blob", type(blob).__name__, "must be bytes")
        reader = Reader(blob)
        magic, form = _HEAD.unpack(reader.take("head", _HEAD.size))
        if (magic, form) != (MAGIC, FORMAT):
            raise RemoteFault("blob.magic", (magic, form), f"must be {MAGIC!r}, format {FORMAT}")
        mail, boot_id, namespaces = (
            reader.text(field) for field in ("mail", "boot_id", "namespaces")
        )
        pid, start_ticks = reader.number("pid", ">Q"), reader.number("start_ticks", ">Q")
        if not 0 < pid < _PID_MAX or not mail:
            raise RemoteFault("blob.pid", pid, f"from 1 to {_PID_MAX - 1}, with a mail address")
        token = reader.take("token", TOKEN_BYTES)
        count = reader.bounded("region count", ">H", 0, REGIONS_MAX)
        regions = tuple(_region(reader.take("region", _REGION.size)) for _ in range(count))
        reader.end()
        process = ProcessIdentity(
            boot_id=boot_id, namespaces=namespaces, pid=pid, start_ticks=start_ticks
        )
        return cls(mail=mail, process=process, token=token, regions=regions)


def _region(row: bytes) -> Lent:
    base, length, allocation, allocation_bytes, name = _REGION.unpack(row)
    inside = allocation <= base and base + length <= allocation + allocation_bytes
    if not (inside and base > 0 and length > 0 and allocation + allocation_bytes <= _ADDRESS_STOP):
        bound = "bytes of its allocation, which ends by 2**64"
        raise RemoteFault("blob region", (base, length, allocation, allocation_bytes), bound)
    return Lent(
        base=base,
        length=length,
        allocation=allocation,
        allocation_bytes=allocation_bytes,
        name=name,
    )
