"""libucp called with columns as they are, through the same shim and none of our rules.

Owns what `kvxfer bench transport` compares this transport with. Refuses to be used
for anything else: no bounds, no window, no handles, no end of a failed link.
Invariant: the UCX context, its settings and the memory are those of the transport.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kvxfer.transport.ops import U64, Memory
from kvxfer_ucx.session import Session


class RawUcx:
    """One worker and one endpoint. Calls return when what they started has ended."""

    def __init__(self, options: Mapping[str, Any], base: int, length: int) -> None:
        self._session = Session.open(options)
        self._session.register_region(Memory(base=base, length=length))
        self._handle, self.blob = self._session.peer_create()
        self.base = base

    def connect(self, blob: bytes) -> None:
        """Reach the other side."""
        self._session.peer_connect(self._handle, blob)
        self._lib, self._ffi = self._session.shim.lib, self._session.shim.ffi
        self._where = self._session.pointers(self._handle)

    def write(self, local: U64, remote: U64, length: U64, note: bytes) -> float:
        """Puts, flush, notification; gives the seconds that posting the puts took."""
        columns = [self._ffi.from_buffer("uint64_t[]", c) for c in (local, remote, length)]
        nanoseconds = self._lib.kvu_raw_transfer(
            *self._where, True, len(local), *columns, note, len(note)
        )
        return float(nanoseconds) * 1e-9

    def notify(self, note: bytes) -> None:
        """Send a notification alone."""
        null = self._ffi.NULL
        self._lib.kvu_raw_transfer(*self._where, True, 0, null, null, null, note, len(note))

    def take_note(self) -> bool:
        """One call of progress; True where a notification has come."""
        return bool(self._lib.kvu_raw_wait(*self._where, 0) >= 0)

    def wait_for_note(self, timeout_s: float) -> bool:
        """Progress in C until a notification has come; False where none does in time."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self._lib.kvu_raw_wait(*self._where, 100_000_000) >= 0:
                return True
        return False

    def close(self) -> None:
        """End the link."""
        self._session.close()
