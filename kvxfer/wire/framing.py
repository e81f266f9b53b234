"""Messages on a byte stream: a length of four bytes, big-endian, then the message.

Owns the cutting of a stream into messages. Knows no socket. Invariant: what
comes out does not depend on how the bytes were cut on the way; at most one
message and one read are buffered.
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
    """Feed it bytes as they come; it gives whole messages."""

    limits: Limits
    first_bytes_max: int | None = None
    """A lower bound for the first message: a stranger gets room for a HELLO, no more."""
    _buffer: bytearray = attrs.field(factory=bytearray)
    _fault: RemoteFault | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Messages that are whole now.

        Raises RemoteFault at a length of none or above the limit, once every
        message before it has been given; from then on at each call.
        """
        if self._fault is not None:
            raise self._fault
        self._buffer += data
        found: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= PREFIX_BYTES:
            begin = start + PREFIX_BYTES
            size = int.from_bytes(self._buffer[start:begin], "big")
            high = self.first_bytes_max or self.limits.message_bytes_max
            if not 0 < size <= high:
                bound = f"1 to {high} bytes"
                self._fault = RemoteFault("frame.length", size, bound)
                self._buffer.clear()
                if not found:
                    raise self._fault
                return found
            if len(self._buffer) - begin < size:
                break
            self.first_bytes_max = None
            found.append(bytes(self._buffer[begin : begin + size]))
            start = begin + size
        del self._buffer[:start]
        return found
