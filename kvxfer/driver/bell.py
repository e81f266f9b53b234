"""How the engine's thread wakes the writer thread.

Owns one descriptor. Invariant: ringing neither blocks nor lets go of the interpreter
lock. Every call that releases it, as a socket's `send` does, gives the thread that was
just woken the chance to take it first, and the engine then waits for as long as that
thread computes, up to the interpreter's switch interval of 5 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Final

import attrs
import trio

_ONE: Final = (1).to_bytes(8, "little")
# PyDLL, unlike CDLL, keeps the lock across the call: a write to a descriptor that cannot block.
_write: Final = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


def _descriptors() -> tuple[int, int]:
    """Where to read and where to write; an eventfd where the system has them."""
    if hasattr(os, "eventfd"):
        number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return number, number
    reader, writer = os.pipe()
    for number in (reader, writer):
        os.set_blocking(number, False)
    return reader, writer


@attrs.define(eq=False)
class Bell:
    """Made on the writer's thread, rung by any."""

    _ends: tuple[int, int] = attrs.field(factory=_descriptors)
    _closed: bool = False
    # The number of a closed descriptor may be somebody else's by the time it is written to.
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def closed(self) -> bool:
        return self._closed

    def ring(self) -> bool:
        """Wake whoever awaits `rung`; False where the bell is closed."""
        with self._lock:
            if self._closed:
                return False
            # A full descriptor refuses the write, and rings already.
            _write(self._ends[1], _ONE, len(_ONE))
            return True

    async def rung(self) -> None:
        """Return once it has been rung since the last return."""
        await trio.lowlevel.wait_readable(self._ends[0])
        with contextlib.suppress(BlockingIOError):
            os.read(self._ends[0], 4096)

    def close(self) -> None:
        """No ring after this reaches anybody."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for number in set(self._ends):
                os.close(number)
