"""Reading and writing connection blobs: what a transport in Python builds its own form from.

Owns a reader that never goes past the end, text with its length, and a sealed body.
Refuses to know what a blob means. Invariant: whatever the bytes, a reader gives values or
a `RemoteFault` that names the field.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits

BLOB_BYTES_MAX: Final = Limits().blob_bytes_max
TEXT_BYTES_MAX: Final = 256
HEADER: Final = struct.Struct(">4sHI32s")
"""Of a sealed blob: magic, format, body length, SHA-256 of the body."""


def seal(magic: bytes, form: int, body: bytes) -> bytes:
    """`body` behind a header by which `opened` finds damage. It authenticates nobody."""
    return HEADER.pack(magic, form, len(body), hashlib.sha256(body).digest()) + body


def opened(magic: bytes, form: int, blob: object) -> bytes:
    """The body of a sealed blob. Raises `RemoteFault` where it is not whole and unchanged."""
    if not isinstance(blob, bytes):
        raise RemoteFault("blob", type(blob).__name__, "must be bytes")
    if not HEADER.size < len(blob) <= BLOB_BYTES_MAX:
        raise RemoteFault(
            "blob length", len(blob), f"from {HEADER.size + 1} to {BLOB_BYTES_MAX} bytes"
        )
    theirs, their_form, length, digest = HEADER.unpack_from(blob)
    if theirs != magic:
        raise RemoteFault(
            "blob.magic", theirs, f"must be {magic!r}: the blob of another transport?"
        )
    if their_form != form:
        raise RemoteFault("blob.format", their_form, f"this side reads format {form}")
    body = blob[HEADER.size :]
    if len(body) != length:
        raise RemoteFault("blob body length", len(body), f"the header says {length}")
    if hashlib.sha256(body).digest() != digest:
        raise RemoteFault("blob.digest", digest.hex(), "the body does not match it")
    return body


def text_bytes(text: str) -> bytes:
    """Text as `Reader.text` takes it: a u16 length, then ASCII."""
    data = text.encode("ascii", errors="replace")[:TEXT_BYTES_MAX]
    return struct.pack(">H", len(data)) + data


@attrs.define
class Reader:
    """Takes a body apart from front to back; never reads past its end."""

    body: bytes
    at: int = 0

    def take(self, field: str, count: int) -> bytes:
        left = len(self.body) - self.at
        if count > left:
            raise RemoteFault(f"blob {field}", count, f"only {left} bytes are left")
        self.at += count
        return self.body[self.at - count : self.at]

    def number(self, field: str, form: str) -> int:
        (value,) = struct.unpack(form, self.take(field, struct.calcsize(form)))
        return int(value)

    def bounded(self, field: str, form: str, low: int, high: int) -> int:
        value = self.number(field, form)
        if not low <= value <= high:
            raise RemoteFault(f"blob {field}", value, f"from {low} to {high}")
        return value

    def column(self, field: str, form: str, count: int) -> npt.NDArray[Any]:
        kind = np.dtype(form)
        return np.frombuffer(self.take(field, count * kind.itemsize), dtype=kind)

    def text(self, field: str) -> str:
        data = self.take(field, self.bounded(f"{field} length", ">H", 0, TEXT_BYTES_MAX))
        if not data.isascii():
            raise RemoteFault(f"blob {field}", data, "must be ASCII")
        return data.decode("ascii")

    def end(self) -> None:
        if self.at != len(self.body):
            raise RemoteFault("blob end", len(self.body) - self.at, "bytes are left over")
