"""One session of a C library.

Owns the translation of a call and its answer, and what must stay referenced while
the library may use it. Refuses to decide anything that the library decides.
Invariant: no number reaches C that its type there cannot hold.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32, c_uint64
from operator import index
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import COMPLETION, U64, Memory, Strided
from kvxfer.transport.ranges import column_fault, strided_fault
from kvxfer_capi.binding import (
    MEMORY_KINDS,
    Bytes,
    CMemory,
    Columns,
    CStrided,
    Library,
    Notification,
)

_ALL_CAPS: Final = sum(Caps)
_NOTICES_PER_CALL: Final = 256
_U64_END: Final = 1 << 64


class Refused(Exception):
    """A call that never reaches the library, or whose answer is not OK."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


def status_of(value: int) -> Status:
    """The status; a number that is none is a library that broke rule 1."""
    try:
        return Status(value)
    except ValueError:
        return Status.SESSION_FAILED


def _number(name: str, value: Any, end: int = _U64_END) -> int:
    number = index(value)
    if not 0 <= number < end:
        raise Refused(Status.OP_INVALID, f"{name} = {number}: from 0 to {end - 1}")
    return number


def _bytes(name: str, payload: Any) -> tuple[Bytes, Any]:
    """The structure, and what keeps its pointer valid."""
    if payload is None:
        return Bytes(None, 0), None
    if not isinstance(payload, bytes):
        raise Refused(Status.OP_INVALID, f"{name} is {type(payload).__name__}: must be bytes")
    keep = ctypes.c_char_p(payload)
    return Bytes(ctypes.cast(keep, ctypes.c_void_p), len(payload)), (keep, payload)


def _pointer(column: U64) -> int:
    return int(column.__array_interface__["data"][0])


@attrs.define(eq=False)
class Session:
    """An open session; `handle` is the library's own."""

    library: Library
    handle: int
    refusal: str = ""
    """Why the latest call was refused here; empty where the library itself answered."""
    _memories: dict[int, Any] = attrs.field(factory=dict)
    _columns: dict[int, Any] = attrs.field(factory=dict)

    def call(self, slot: str, *args: Any) -> None:
        """One slot. Raises `Refused` where the answer is not OK."""
        function: Any = getattr(self.library.table, slot)
        if not function:
            raise Refused(Status.UNSUPPORTED, f"{slot}: the library leaves it NULL")
        self.refusal = ""
        status = status_of(function(self.handle, *args))
        if status != Status.OK:
            raise Refused(status, "")

    def caps(self) -> Caps:
        return Caps(self.library.table.caps(self.handle) & _ALL_CAPS)

    def last_error(self) -> str:
        text: bytes | None = self.library.table.last_error(self.handle)
        return self.refusal or (text or b"").decode("utf-8", "replace")

    def register_region(self, memory: Memory) -> int:
        kind = MEMORY_KINDS.get(memory.kind)
        if kind is None:
            known = ", ".join(MEMORY_KINDS)
            raise Refused(Status.OP_INVALID, f"memory kind = {memory.kind!r}: known are {known}")
        region = c_uint64()
        described = CMemory(
            _number("base", memory.base),
            _number("length", memory.length),
            kind,
            _number("device", memory.device, 1 << 31),
        )
        self.call("register_region", byref(described), byref(region))
        self._memories[region.value] = memory.keepalive
        return region.value

    def allocate_region(self, length: int, kind: str, device: int) -> tuple[int, int]:
        number = MEMORY_KINDS.get(kind)
        if number is None:
            raise Refused(Status.OP_INVALID, f"memory kind = {kind!r}: not known")
        region, base = c_uint64(), c_uint64()
        place = _number("device", device, 1 << 31)
        size = _number("length", length)
        self.call("allocate_region", size, number, place, byref(region), byref(base))
        return region.value, base.value

    def drop_region(self, slot: str, region: int) -> None:
        self.call(slot, _number("region", region))
        self._memories.pop(region, None)

    def peer_create(self) -> tuple[int, bytes]:
        peer, blob = c_uint64(), Bytes()
        self.call("peer_create", byref(peer), byref(blob))
        return peer.value, ctypes.string_at(blob.data, blob.size) if blob.data else b""

    def peer_connect(self, peer: int, blob: bytes) -> None:
        if not isinstance(blob, bytes):
            raise Refused(Status.PEER_BLOB, f"blob is {type(blob).__name__}: must be bytes")
        taken, _keep = _bytes("blob", blob)
        self.call("peer_connect", _number("peer", peer), taken)

    def on_peer(self, slot: str, peer: int) -> None:
        self.call(slot, _number("peer", peer))

    def post(self, slot: str, peer: int, columns: tuple[U64, U64, U64], notify: Any) -> int:
        fault = column_fault(*columns)
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        kept = [np.ascontiguousarray(column) for column in columns]
        described = Columns(*(_pointer(column) for column in kept), len(kept[0]))
        return self._posted(kept, slot, _number("peer", peer), byref(described), notify=notify)

    def post_strided(self, peer: int, direction: int, columns: Strided, notify: Any) -> int:
        fault = strided_fault(columns)
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        kept = [np.ascontiguousarray(one) for one in attrs.astuple(columns, recurse=False)]
        described = CStrided(*(_pointer(column) for column in kept), len(kept[0]))
        way = _number("direction", direction, 1 << 31)
        args = (_number("peer", peer), way, byref(described))
        return self._posted(kept, "post_strided", *args, notify=notify)

    def _posted(self, kept: Any, slot: str, *args: Any, notify: Any) -> int:
        taken, _keep = _bytes("notification", notify)
        request = c_uint64()
        self.call(slot, *args, taken, byref(request))
        # Rule 9: columns stay until the request has ended.
        self._columns[request.value] = kept
        return request.value

    def cancel(self, request: int) -> None:
        self.call("cancel", _number("request", request))

    def poll(self, records: npt.NDArray[Any]) -> int:
        if records.dtype != COMPLETION or records.ndim != 1:
            raise Refused(Status.OP_INVALID, f"records: must be 1-d {COMPLETION}")
        room = np.ascontiguousarray(records)
        count = c_uint64()
        self.call("poll", room.__array_interface__["data"][0], len(room), byref(count))
        filled = min(count.value, len(room))
        if room is not records:
            records[:filled] = room[:filled]
        for request in room["request"][:filled].tolist():
            self._columns.pop(request, None)
        return filled

    def send_notification(self, peer: int, payload: bytes) -> None:
        taken, keep = _bytes("notification", payload)
        if keep is None:
            raise Refused(Status.OP_INVALID, "notification is None: must be bytes")
        self.call("send_notification", _number("peer", peer), taken)

    def poll_notifications(self, count_max: int) -> list[tuple[int, bytes]]:
        room = min(_number("count_max", count_max), _NOTICES_PER_CALL)
        records, count = (Notification * room)(), c_uint64()
        self.call("poll_notifications", records, room, byref(count))
        return [
            (one.peer, ctypes.string_at(one.payload.data, one.payload.size))
            for one in records[: min(count.value, room)]
        ]

    def wakeup_fd(self) -> int:
        fd = c_int32(-1)
        self.call("wakeup_fd", byref(fd))
        return fd.value
