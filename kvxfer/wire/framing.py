"""Messages on a byte stream: a length of four bytes, big-endian, then the message.

Owns the cutting of a stream into messages. Knows no socket. Invariant: what
comes out does not depend on how the bytes were cut on the way; at most one
message and one read are buffered; a message is measured against the bound of the
moment at which it is asked for.
"""

from __future__ import annotations

import attrs

from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits

PREFIX_BYTES = 4


def frame(payload: bytes) -> bytes:
    """One message for the stream."""
    return len(payload).to_bytes(PREFIX_BYTES, "big") + payload


@attrs.define
class FrameReader:
    """Push bytes as they come, pop whole messages; `feed` does both."""

    limits: Limits
    bytes_max: int | None = None
    """A lower bound than that of `limits`: a stranger gets room for a HELLO, no more."""
    _buffer: bytearray = attrs.field(factory=bytearray)
    _fault: RemoteFault | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Messages that are whole now.

        Raises RemoteFault at a length of none or above the limit, once every
        message before it has been given; from then on at each call.
        """
        if self._fault is not None:
            raise self._fault
        self.push(data)
        found: list[bytes] = []
        try:
            while (payload := self.pop()) is not None:
                found.append(payload)
        except RemoteFault:
            if not found:
                raise
        return found

    def push(self, data: bytes) -> None:
        """Take bytes in. Nothing is looked at."""
        self._buffer += data

    def pop(self) -> bytes | None:
        """The next message; None where it is not whole yet.

        Raises RemoteFault at a length of none or above the bound; from then on always.
        """
        if self._fault is not None:
            raise self._fault
        if len(self._buffer) < PREFIX_BYTES:
            return None
        size = int.from_bytes(self._buffer[:PREFIX_BYTES], "big")
        high = self.bytes_max or self.limits.message_bytes_max
        if not 0 < size <= high:
            self._fault = RemoteFault("frame.length", size, f"1 to {high} bytes")
            self._buffer.clear()
            raise self._fault
        stop = PREFIX_BYTES + size
        if len(self._buffer) < stop:
            return None
        payload = bytes(self._buffer[PREFIX_BYTES:stop])
        # Cheap: a bytearray gives up its front without moving the rest.
        del self._buffer[:stop]
        return payload

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their message."""
        return len(self._buffer)
