"""The far end of a two-process pair: `python -m kvxfer.conformance.far_end FD TRANSPORT`.

Owns memory and one table in a process of its own, and does what the kit asks over
the socket FD, one request after the other. Refuses to judge. Invariant: it ends
when the socket closes; it makes no call that the kit has not asked for, so that a
case decides alone when this side progresses.

Requests are `[name, arguments]`, answers `[true, value]` or `[false, text]`;
encoding and names are those of `far_codec` and `_Server`.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kvxfer.conformance.endpoint import readable
from kvxfer.conformance.far_codec import arguments, pack_answer, receive, send, unpack
from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, TransportOps
from kvxfer.transport.registry import open_transport

_MAP_FIXED_NOREPLACE: Final = 0x100000
_PR_SET_PDEATHSIG: Final = 1


class _Server:
    """What a request may name."""

    def __init__(self, ops: TransportOps) -> None:
        self._ops = ops
        self._kept: list[Any] = []
        """Memory that the kit has asked for; lives as long as the process."""
        self._columns: list[Any] = []
        """Rule 9: columns stay as long as a request may use them."""

    def call(self, slot: str, values: list[Any]) -> Any:
        """One slot of the table; `poll` takes and gives records as rows."""
        if slot == "poll":
            session, room = values
            records = np.zeros(room, dtype=COMPLETION)
            status, count = self._ops.poll(session, records)
            rows = [list(row) for row in records[:count].tolist()] if status == Status.OK else []
            return [int(status), rows]
        found = arguments(slot, values)
        if slot.startswith("post_"):
            self._columns.append(found)
        return pack_answer(getattr(self._ops, slot)(*found))

    def open(self, options: dict[str, Any]) -> Any:
        """Open a session; the text says why not."""
        status, session = self._ops.open(unpack(options))
        return [int(status), session, self._ops.last_error(session)]

    def memory(self, length: int) -> int:
        """`length` zeroed bytes; gives their address."""
        pages = np.frombuffer(mmap.mmap(-1, length), dtype=np.uint8)
        self._kept.append(pages)
        return int(pages.ctypes.data)

    def memory_at(self, base: int, length: int) -> int:
        """Zeroed bytes at `base`, where nothing else is; gives the address."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
        )
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
        start = base - base % mmap.PAGESIZE
        size = length + base - start
        got = libc.mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if got != start:
            raise OSError(ctypes.get_errno(), f"no memory of {length} bytes at {base:#x}")
        return base

    def readable(self, fd: int) -> bool:
        """Whether a descriptor of this process is readable."""
        return readable(fd)

    def read(self, base: int, length: int) -> bytes:
        """Bytes of this process."""
        return ctypes.string_at(base, length)

    def write(self, base: int, data: bytes) -> None:
        """Put bytes into this process."""
        ctypes.memmove(base, data, len(data))


def main(fd: int, transport: str) -> None:
    """Serve requests until the kit goes."""
    # A stopped process does not see the socket close: it must not outlive the kit.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    link = socket.socket(fileno=fd)
    server = _Server(open_transport(transport))
    while True:
        try:
            name, values = receive(link)
        except (EOFError, ConnectionError):
            return
        try:
            send(link, _answer(getattr(server, name), values))
        except ConnectionError:
            return


def _answer(function: Callable[..., Any], values: list[Any]) -> list[Any]:
    try:
        return [True, function(*values)]
    except Exception as error:  # noqa: BLE001 - the kit is told, whatever it is
        return [False, f"{type(error).__name__}: {error}"]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
