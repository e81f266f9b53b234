"""The connection blob: what one side sends so that the other can reach it.

Owns the bytes. Refuses to know what is inside UCX's addresses and keys.
Invariants: decoding is total, any bytes give a `PeerBlob` or a `RemoteFault`;
nothing reaches UCX's own parsers that did not leave a `PeerBlob.encode`
unchanged, since they take no length and trust what they read. What is known to
abort the process in them (docs/design/ucx.md) is refused here as well.

Layout, big-endian: magic "KVXU", format version (u16), body length (u32),
SHA-256 of the body; then the body: boot id and namespaces as text (u16 length
first), pid and start ticks (u64), cookie (16 bytes), worker address (u32 length
first), region count (u32), then columns: handles, bases, lengths (u64 each) and
key lengths (u16 each), and the keys one after the other. The digest finds
damage, it does not authenticate: that is the handshake's work (DESIGN section 9).
"""

from __future__ import annotations

import struct
from typing import Final

import attrs
import numpy as np

from kvxfer.errors import RemoteFault
from kvxfer.transport.blobs import Reader, opened, seal, text_bytes
from kvxfer.transport.liveness import ProcessIdentity
from kvxfer.transport.ops import U64

MAGIC: Final = b"KVXU"
FORMAT: Final = 1
COOKIE_BYTES: Final = 16
ADDRESS_BYTES_MAX: Final = 16 << 10
KEY_BYTES_MAX: Final = 4096
REGIONS_MAX: Final = 4096

_PID_MAX: Final = 1 << 31
_ADDRESS_VERSION_MASK: Final = 0x0F
_ADDRESS_VERSION_MAX: Final = 1
_KEY_HEADER: Final = struct.Struct("<QB")
_MEMORY_TYPE_MAX: Final = 1
"""UCX numbers host memory 0 and CUDA memory 1; this transport lends no other."""


@attrs.frozen(kw_only=True, eq=False)
class PeerBlob:
    """One side of a link: who it is, what it lends, how UCX reaches it."""

    process: ProcessIdentity
    cookie: bytes
    """Secret of the link: a message that does not carry it is not of the link."""
    address: bytes = attrs.field(repr=False)
    handles: U64
    bases: U64
    lengths: U64
    keys: tuple[bytes, ...] = attrs.field(repr=False)

    def encode(self) -> bytes:
        """The bytes that `decode` takes."""
        process = self.process
        parts = [text_bytes(process.boot_id), text_bytes(process.namespaces)]
        parts.append(struct.pack(">QQ", process.pid, process.start_ticks) + self.cookie)
        parts.append(struct.pack(">I", len(self.address)) + self.address)
        parts.append(struct.pack(">I", len(self.keys)))
        parts += [column.astype(">u8").tobytes() for column in self._columns()]
        parts.append(np.array([len(key) for key in self.keys], dtype=">u2").tobytes())
        parts += self.keys
        body = b"".join(parts)
        return seal(MAGIC, FORMAT, body)

    def kinds(self) -> U64:
        """UCX's number for the kind of memory of each region, out of its key."""
        return np.array([_KEY_HEADER.unpack_from(key)[1] for key in self.keys], dtype=np.uint64)

    def _columns(self) -> tuple[U64, U64, U64]:
        return self.handles, self.bases, self.lengths

    @classmethod
    def decode(cls, blob: bytes) -> PeerBlob:
        """Raises `RemoteFault` where `blob` is not one of ours, whole and unchanged."""
        reader = Reader(opened(MAGIC, FORMAT, blob))
        boot_id, namespaces = reader.text("boot_id"), reader.text("namespaces")
        pid, start_ticks = reader.number("pid", ">Q"), reader.number("start_ticks", ">Q")
        if not 0 < pid < _PID_MAX:
            raise RemoteFault("blob.pid", pid, f"from 1 to {_PID_MAX - 1}")
        cookie = reader.take("cookie", COOKIE_BYTES)
        size = reader.bounded("address length", ">I", 1, ADDRESS_BYTES_MAX)
        address = _checked_address(reader.take("address", size))
        count = reader.bounded("region count", ">I", 0, REGIONS_MAX)
        handles, bases, lengths = (
            reader.column(f"region {name}", ">u8", count).astype(np.uint64)
            for name in ("handles", "bases", "lengths")
        )
        _check_regions(handles, bases, lengths)
        sizes = reader.column("key lengths", ">u2", count).tolist()
        keys = tuple(_checked_key(reader.take("key", _key_size(size))) for size in sizes)
        reader.end()
        return cls(
            process=ProcessIdentity(
                boot_id=boot_id, namespaces=namespaces, pid=pid, start_ticks=start_ticks
            ),
            cookie=cookie,
            address=address,
            handles=handles,
            bases=bases,
            lengths=lengths,
            keys=keys,
        )


def _check_regions(handles: U64, bases: U64, lengths: U64) -> None:
    # Written without a sum that could wrap: the end of a region is at most 2**64 - 1.
    good = (handles > 0) & (bases > 0) & (lengths > 0) & (lengths <= ~bases)
    if not good.all():
        at = int(np.argmin(good))
        value = (int(handles[at]), int(bases[at]), int(lengths[at]))
        raise RemoteFault("blob region", value, "all above 0, the end below 2**64")


def _key_size(size: int) -> int:
    if not 0 < size <= KEY_BYTES_MAX:
        raise RemoteFault("blob key length", size, f"from 1 to {KEY_BYTES_MAX}")
    return size


def _checked_address(address: bytes) -> bytes:
    version = address[0] & _ADDRESS_VERSION_MASK
    if version > _ADDRESS_VERSION_MAX:
        raise RemoteFault("blob address version", version, f"at most {_ADDRESS_VERSION_MAX}")
    return address


def _checked_key(key: bytes) -> bytes:
    """A key is a map of memory domains, a memory type, and for each domain a size and bytes."""
    if len(key) < _KEY_HEADER.size:
        raise RemoteFault("blob key length", len(key), f"at least {_KEY_HEADER.size}")
    domains, kind = _KEY_HEADER.unpack_from(key)
    if kind > _MEMORY_TYPE_MAX:
        raise RemoteFault("blob key memory type", kind, f"at most {_MEMORY_TYPE_MAX}")
    at = _KEY_HEADER.size
    for _ in range(domains.bit_count()):
        at += 1 + key[at] if at < len(key) else len(key)
        if at > len(key):
            raise RemoteFault("blob key", key.hex(), "ends inside the key of a memory domain")
    return key
