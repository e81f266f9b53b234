"""The other process of `kvxfer bench transport`: memory, movers, and a loop.

Owns the target's side. Run as a module with the number of an inherited socket. It
polls the mover that is being timed, as a decode engine's driver would, and sends each
notification back while `echo` is set. Knows no figure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
import zlib
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvxfer.bench.limits import serve_stream
from kvxfer.bench.movers import Mover, make_mover

_IDLE_S = 0.001
_POLLS_PER_LOOK = 200
"""Polls of the mover between two looks for a command."""


class Far:
    """Memory of `length` bytes and what can write into it."""

    def __init__(self, length: int) -> None:
        self._memory = np.zeros(length, dtype=np.uint8)
        self._movers: dict[str, Mover] = {}
        self._active: Mover | None = None
        self._echo = False
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        threading.Thread(
            target=serve_stream, args=(listener, self._memory), daemon=True, name="stream"
        ).start()

    def about(self) -> tuple[int, int, int]:
        """Process id, address of the memory, port of the plain stream."""
        return os.getpid(), self._memory.ctypes.data, self._port

    def make(self, kind: str, options: dict[str, Any], blob: bytes) -> tuple[int, bytes]:
        """A mover connected to the near one; gives its address of memory and its blob."""
        data = self._memory.ctypes.data
        mover = make_mover(kind, options, data, len(self._memory))
        mover.connect(blob)
        self._movers[kind] = mover
        return mover.base, mover.blob

    def drive(self, kind: str, echo: bool) -> None:
        """Poll this mover from now on; an empty name stops it."""
        self._active = self._movers.get(kind)
        self._echo = echo

    def clear(self, kind: str, total: int) -> None:
        self._bytes(kind, total)[:] = 0

    def checksum(self, kind: str, total: int) -> int:
        return zlib.crc32(self._bytes(kind, total).data)

    def _bytes(self, kind: str, total: int) -> np.ndarray:
        """The first bytes of the memory that this mover's writes go to."""
        mover = self._movers.get(kind)
        if mover is None or mover.base == self._memory.ctypes.data:
            return self._memory[:total]
        return np.ctypeslib.as_array((ctypes.c_uint8 * total).from_address(mover.base))

    def turn(self) -> None:
        if self._active is None:
            time.sleep(_IDLE_S)
            return
        for _ in range(_POLLS_PER_LOOK):
            if self._active.take_note() and self._echo:
                self._active.notify(b"pong")

    def close(self) -> None:
        for mover in self._movers.values():
            mover.close()


def main() -> None:
    """Carry out commands until the link ends."""
    link = Connection(int(sys.argv[1]))
    gone = contextlib.suppress(EOFError, ConnectionError)
    with gone, contextlib.closing(Far(link.recv())) as far:
        link.send(far.about())
        while True:
            if link.poll(0):
                name, args = link.recv()
                try:
                    link.send((getattr(far, name)(*args), ""))
                except Exception as error:  # noqa: BLE001 - told to the one who asked
                    link.send((None, f"{type(error).__name__}: {error}"))
            far.turn()


if __name__ == "__main__":
    main()
