"""spec/kvxfer_transport.h in ctypes, and loading a library that implements it.

Owns structures, signatures and what is asked of a table before it is used. Refuses
to know sessions. Invariant: no slot that is NULL, or lies beyond what the library's
table holds, is ever called; a library that does not fit is refused with a reason.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int32, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Final

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.stubs import SLOT_OF_CAP, SLOTS

MAJOR: Final = 1
MEMORY_KINDS: Final[Mapping[str, int]] = {"dram": 1, "cuda": 2, "neuron": 3}


class Option(ctypes.Structure):
    """kvxfer_option."""

    _fields_ = (("name", c_char_p), ("value", c_char_p))


class CMemory(ctypes.Structure):
    """kvxfer_memory."""

    _fields_ = (("base", c_uint64), ("length", c_uint64), ("kind", c_int32), ("device", c_int32))


class Columns(ctypes.Structure):
    """kvxfer_columns."""

    _fields_ = (
        ("local", c_void_p),
        ("remote", c_void_p),
        ("length", c_void_p),
        ("entry_count", c_uint64),
    )


class CStrided(ctypes.Structure):
    """kvxfer_strided."""

    _fields_ = (
        ("local", c_void_p),
        ("remote", c_void_p),
        ("length", c_void_p),
        ("count", c_void_p),
        ("local_stride", c_void_p),
        ("remote_stride", c_void_p),
        ("entry_count", c_uint64),
    )


class Bytes(ctypes.Structure):
    """kvxfer_bytes. `data` as c_void_p when read: a blob may hold zero bytes."""

    _fields_ = (("data", c_void_p), ("size", c_uint64))


class Completion(ctypes.Structure):
    """kvxfer_completion; the same bytes as `kvxfer.transport.ops.COMPLETION`."""

    _fields_ = (("request", c_uint64), ("peer", c_uint64), ("status", c_int32))


class Notification(ctypes.Structure):
    """kvxfer_notification."""

    _fields_ = (("peer", c_uint64), ("payload", Bytes))


_U64 = POINTER(c_uint64)
SIGNATURES: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "open": (c_int32, (POINTER(Option), c_uint64, _U64)),
    "close": (c_int32, (c_uint64,)),
    "caps": (c_uint64, (c_uint64,)),
    "register_region": (c_int32, (c_uint64, POINTER(CMemory), _U64)),
    "allocate_region": (c_int32, (c_uint64, c_uint64, c_int32, c_int32, _U64, _U64)),
    "deregister_region": (c_int32, (c_uint64, c_uint64)),
    "revoke_region": (c_int32, (c_uint64, c_uint64)),
    "peer_create": (c_int32, (c_uint64, _U64, POINTER(Bytes))),
    "peer_connect": (c_int32, (c_uint64, c_uint64, Bytes)),
    "peer_destroy": (c_int32, (c_uint64, c_uint64)),
    "fence_peer": (c_int32, (c_uint64, c_uint64)),
    "post_write": (c_int32, (c_uint64, c_uint64, POINTER(Columns), Bytes, _U64)),
    "post_read": (c_int32, (c_uint64, c_uint64, POINTER(Columns), Bytes, _U64)),
    "post_strided": (c_int32, (c_uint64, c_uint64, c_int32, POINTER(CStrided), Bytes, _U64)),
    "cancel": (c_int32, (c_uint64, c_uint64)),
    "poll": (c_int32, (c_uint64, c_void_p, c_uint64, _U64)),
    "send_notification": (c_int32, (c_uint64, c_uint64, Bytes)),
    "poll_notifications": (c_int32, (c_uint64, POINTER(Notification), c_uint64, _U64)),
    "wakeup_fd": (c_int32, (c_uint64, POINTER(c_int32))),
    "last_error": (c_char_p, (c_uint64,)),
}
"""Result and arguments by slot. Such a call gives the interpreter lock up while it lasts."""

_FUNCTIONS: Final = {
    slot: ctypes.CFUNCTYPE(result, *arguments) for slot, (result, arguments) in SIGNATURES.items()
}


class CTable(ctypes.Structure):
    """kvxfer_transport."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("major", c_uint16),
        ("minor", c_uint16),
        ("name", c_char_p),
        *((slot, _FUNCTIONS[slot]) for slot in SLOTS),
    )


class Unusable(Exception):
    """A library that cannot be used: with the status that says so."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Library:
    """A loaded library. Its functions are attributes of `table`; NULL ones are false."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise Unusable(Status.LIBRARY_MISSING, f"library = {path!r}: {error}") from error
        try:
            entry = self._library.kvxfer_transport_table
        except AttributeError as error:
            text = f"library = {path!r}: exports no kvxfer_transport_table"
            raise Unusable(Status.LIBRARY_MISSING, text) from error
        entry.argtypes, entry.restype = [c_uint32], c_void_p
        address = entry(MAJOR)
        if not address:
            text = f"library = {path!r}: does not speak version {MAJOR} of the table"
            raise Unusable(Status.LIBRARY_MISSING, text)
        self.path = path
        self.table = _read_table(address, path)

    def promised(self, caps: Caps) -> str:
        """Slots that `caps` promises and the table leaves NULL; empty text where none is."""
        lies = [
            f"{cap.name} without {slot}"
            for cap, slot in SLOT_OF_CAP.items()
            if cap in caps and not getattr(self.table, slot)
        ]
        return ", ".join(lies)


def _read_table(address: int, path: str) -> CTable:
    """A copy of what the library gives, no longer than it says; the rest is NULL."""
    size = c_uint32.from_address(address).value
    table = CTable()
    ctypes.memmove(ctypes.addressof(table), address, min(size, ctypes.sizeof(CTable)))
    if table.major != MAJOR:
        text = f"library = {path!r}: table of version {table.major}.{table.minor}, wanted {MAJOR}"
        raise Unusable(Status.LIBRARY_MISSING, text)
    optional = set(SLOT_OF_CAP.values())
    missing = [slot for slot in SLOTS if slot not in optional and not getattr(table, slot)]
    if missing:
        text = f"library = {path!r}: slots {', '.join(missing)} are NULL"
        raise Unusable(Status.SESSION_FAILED, text)
    return table
