"""Sessions, regions, peers and posts of the loopback.

Owns the tables in which sessions of one process find each other, and what each
call of the ops table answers. Refuses to copy bytes (`loopback_engine`).
Invariants: a refused post changes nothing; a call that would have to wait for a
copy in another thread answers NOT_FENCED instead.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from operator import index
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.faults import (
    OPTION,
    Drop,
    Duplicate,
    Fail,
    FaultPlan,
    Hold,
    Kind,
    Refuse,
    Stage,
)
from kvxfer.transport.loopback_admission import (
    admission,
    decide,
    notification_fault,
    range_fault,
)
from kvxfer.transport.loopback_engine import Engine, first_bytes
from kvxfer.transport.loopback_state import (
    TOKEN_BYTES,
    Blob,
    Operation,
    Peer,
    Progress,
    Session,
)
from kvxfer.transport.ops import COMPLETION, U64, Direction, Memory, Strided
from kvxfer.transport.ranges import column_fault, expand_strided, join_ranges, strided_fault

CAPS: Final = (
    Caps.WRITE
    | Caps.READ
    | Caps.NOTIFY_AFTER_VISIBLE
    | Caps.FENCE_PEER
    | Caps.REVOKE_REGION
    | Caps.STRIDED
    | Caps.CANCEL
    | Caps.ALLOCATE
    | Caps.CLOSE_FENCES
    | Caps.WAKEUP_FD
    | Caps.MEM_DRAM
    | Caps.THREAD_ONE_OWNER
)
"""What the loopback says of itself."""

POLL_BYTES_MAX: Final = 64 << 20
"""Bytes that one `poll` moves, so that its caller is never away for long."""

_ADDRESS_STOP: Final = 1 << 64


class Hub:
    """All sessions that can reach each other. Methods are the slots of the ops table.

    Sessions of different threads may share a hub; each has one owner thread.
    """

    def __init__(self, token: bytes | None = None) -> None:
        """`token` (16 bytes) makes blobs the same in each run; by default it is drawn."""
        self._token = os.urandom(TOKEN_BYTES) if token is None else token
        self._engine = Engine()
        self._lock = self._engine.lock
        self._sessions: dict[int, Session] = {}
        self._session_count = 0
        self._error = ""

    # Sessions.

    def open(self, options: Mapping[str, Any]) -> tuple[Status, int]:
        unknown = sorted(str(key) for key in options if key != OPTION)
        if unknown:
            return self._fail(None, Status.OP_INVALID, f"options {unknown}: known is {OPTION!r}"), 0
        plan = options.get(OPTION)
        if plan is not None and not isinstance(plan, FaultPlan):
            text = f"option {OPTION!r} is {type(plan).__name__}: must be a FaultPlan"
            return self._fail(None, Status.OP_INVALID, text), 0
        with self._lock:
            self._session_count += 1
            handle = self._session_count
            self._sessions[handle] = Session(handle=handle, plan=plan)
        return Status.OK, handle

    def close(self, session: int) -> Status:
        with self._lock:
            closing = self._sessions.pop(session, None)
            if closing is None:
                return Status.CLOSED
            closing.closed = True
            for peer in closing.peers.values():
                for operation in peer.in_post_order():
                    # A held write outlives its initiator, as one on a real network does.
                    if not operation.held or operation.target.session is closing:
                        self._engine.end_locked(operation, Status.OP_FAILED)
            closing.runnable.clear()
            closing.completed.clear()
            closing.inbox.clear()
            closing.wakeup.close()
            # What was ended above stops at the end of its slice: a few milliseconds at most.
            self._engine.wait_untouched_locked(closing)
        return Status.OK

    def caps(self, session: int) -> Caps:
        with self._lock:
            return CAPS if session in self._sessions else Caps(0)

    def last_error(self, session: int) -> str:
        with self._lock:
            found = self._sessions.get(session)
            return self._error if found is None else found.error

    def wakeup_fd(self, session: int) -> tuple[Status, int]:
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED, -1
            return Status.OK, found.wakeup.fileno(found.ready)

    # Regions.

    def register_region(self, session: int, memory: Memory) -> tuple[Status, int]:
        if memory.kind != "dram":
            text = f"memory kind = {memory.kind!r}: the loopback reaches 'dram' only"
            return self._fail(session, Status.OP_INVALID, text), 0
        base, length = index(memory.base), index(memory.length)
        if not (base > 0 and length > 0 and base + length < _ADDRESS_STOP):
            text = f"memory = {length} bytes at {base}: both above 0, the end below 2**64"
            return self._fail(session, Status.OP_INVALID, text), 0
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED, 0
            return Status.OK, found.add_region(memory)

    def allocate_region(
        self, session: int, length: int, kind: str, device: int
    ) -> tuple[Status, int, int]:
        if kind != "dram" or device != 0:
            text = f"memory = {kind!r} of device {device}: the loopback has 'dram' of device 0"
            return self._fail(session, Status.OP_INVALID, text), 0, 0
        count = index(length)
        if count <= 0:
            text = f"length = {length}: must be above 0"
            return self._fail(session, Status.OP_INVALID, text), 0, 0
        try:
            # A mapping of its own: page-aligned, zeroed, and gone when the last owner drops it.
            pages = np.frombuffer(mmap.mmap(-1, count), dtype=np.uint8)
        except (OSError, OverflowError) as error:
            text = f"length = {length}: {error}"
            return self._fail(session, Status.NO_RESOURCE, text), 0, 0
        memory = Memory(base=pages.ctypes.data, length=count, keepalive=pages)
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED, 0, 0
            return Status.OK, found.add_region(memory), memory.base

    def deregister_region(self, session: int, region: int) -> Status:
        return self._drop_region(session, region, revoke=False)

    def revoke_region(self, session: int, region: int) -> Status:
        """NOT_FENCED while a slice is being copied in another thread; try again."""
        return self._drop_region(session, region, revoke=True)

    def _drop_region(self, session: int, region: int, *, revoke: bool) -> Status:
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED
            if region not in found.regions:
                stale = found.was_given(region)
                status = Status.REGION_STALE if stale else Status.REGION_UNKNOWN
                return found.refuse(status, f"region = {region}: not registered")
            if revoke and self._engine.touches_locked(found):
                return found.refuse(Status.NOT_FENCED, "a copy is under way")
            found.remove_region(region)
        return Status.OK

    # Peers.

    def peer_create(self, session: int) -> tuple[Status, int, bytes]:
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED, 0, b""
            # Without the keepalive: an export must not keep deregistered memory alive.
            exported = {
                handle: attrs.evolve(memory, keepalive=None)
                for handle, memory in found.regions.items()
            }
            peer = Peer(handle=found.new_handle(), session=found, exported=exported)
            found.peers[peer.handle] = peer
            blob = Blob(token=self._token, session=session, peer=peer.handle)
            return Status.OK, peer.handle, blob.encode()

    def peer_connect(self, session: int, peer: int, blob: bytes) -> Status:
        decoded, text = Blob.decode(blob)
        with self._lock:
            found, ours = self._lookup(session, peer)
            if found is None:
                return Status.CLOSED
            if ours is None:
                return found.refuse(Status.PEER_UNKNOWN, f"peer = {peer}: not a live peer")
            if decoded is None:
                return found.refuse(Status.PEER_BLOB, text)
            if decoded.token != self._token:
                return found.refuse(Status.PEER_BLOB, "blob comes from another process or hub")
            theirs = self._lookup(decoded.session, decoded.peer)[1]
            if theirs is None:
                return found.refuse(Status.PEER_BLOB, "blob names a session or peer that is gone")
            if ours.remote not in (None, theirs):
                return found.refuse(Status.OP_INVALID, f"peer = {peer}: connected to another one")
            if theirs.claimed_by not in (None, ours):
                return found.refuse(Status.PEER_BLOB, "blob is in use by another peer")
            ours.remote, theirs.claimed_by = theirs, ours
        return Status.OK

    def peer_destroy(self, session: int, peer: int) -> Status:
        with self._lock:
            found, ours = self._lookup(session, peer)
            if found is None:
                return Status.CLOSED
            if ours is None:
                return found.refuse(Status.PEER_UNKNOWN, f"peer = {peer}: not a live peer")
            ours.destroyed = True
            del found.peers[peer]
        return Status.OK

    def fence_peer(self, session: int, peer: int) -> Status:
        with self._lock:
            found, ours = self._lookup(session, peer)
            if found is None:
                return Status.CLOSED
            if ours is None:
                return found.refuse(Status.PEER_UNKNOWN, f"peer = {peer}: not a live peer")
            ours.fence_tried = True
            if found.plan is not None and not ours.fenced and not found.plan.takes_fence():
                return found.refuse(Status.NOT_FENCED, "refused by the fault plan")
            if self._engine.touches_locked(ours):
                return found.refuse(Status.NOT_FENCED, "a copy is under way")
            ours.fenced = True
            for operation in ours.in_post_order():
                self._engine.end_locked(operation, Status.OP_FAILED)
        return Status.OK

    # Operations.

    def post(
        self,
        kind: Kind,
        session: int,
        peer: int,
        columns: tuple[U64, U64, U64],
        notification: bytes | None,
    ) -> tuple[Status, int]:
        text = column_fault(*columns)
        if notification is not None:
            text = text or notification_fault(notification)
        if text:
            return self._fail(session, Status.OP_INVALID, text), 0
        with self._lock:
            found, ours = self._lookup(session, peer)
            if found is None:
                return Status.CLOSED, 0
            status, text = admission(found, ours, notification is not None)
            if status == Status.OK and ours is not None:
                status, text = range_fault(ours, columns)
            if status != Status.OK or ours is None or ours.remote is None:
                return found.refuse(status, text), 0
        posted, action = decide(ours, kind, columns[2], notification)
        match action:
            case Refuse(status=status):
                return self._fail(session, status, "refused by the fault plan"), 0
            case Fail(after_bytes=kept):
                columns = first_bytes(columns, kept)
            case Drop(data=True):
                columns = first_bytes(columns, 0)
        # Made outside the lock, because it takes time that grows with the columns.
        operation = Operation(
            request=found.new_handle(),
            kind=kind,
            peer=ours,
            target=ours.remote,
            columns=join_ranges(*columns),
            notification=notification,
            posted=posted,
            action=action,
        )
        with self._lock:
            # The other end may have gone or fenced us since the first look.
            status, text = ours.post_status()
            if status != Status.OK:
                return found.refuse(status, text), 0
            self._start_locked(operation)
        return Status.OK, operation.request

    def post_strided(
        self,
        session: int,
        peer: int,
        direction: Direction,
        columns: Strided,
        notification: bytes | None,
    ) -> tuple[Status, int]:
        """A plain post of the ranges written out one by one: the reference has no faster way."""
        text = strided_fault(columns)
        if text:
            return self._fail(session, Status.OP_INVALID, text), 0
        kind: Kind = "write" if Direction(direction) is Direction.WRITE else "read"
        return self.post(kind, session, peer, expand_strided(columns), notification)

    def cancel(self, session: int, request: int) -> Status:
        """What the plan holds has left already, as far as its initiator can tell."""
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED
            operation = found.requests.get(request)
            if operation is None:
                return found.refuse(Status.OP_INVALID, f"request = {request}: not open")
            if operation.progress is not Progress.OVER and not operation.held:
                operation.cancelled = True
                self._engine.end_locked(operation, Status.OP_FAILED)
        return Status.OK

    def _start_locked(self, operation: Operation) -> None:
        session, action, posted = operation.peer.session, operation.action, operation.posted
        session.requests[operation.request] = operation
        operation.peer.operations.add(operation)
        operation.target.operations.add(operation)
        match action:
            case Hold(stage=Stage.OPERATION, report=report):
                # The plan gave the action.
                assert session.plan is not None
                assert posted is not None
                operation.held = True
                session.plan.hold(posted, Stage.OPERATION, lambda: self._engine.resume(operation))
                if report is not None:
                    self._engine.report_locked(operation, report)
            case _:
                session.runnable.append(operation)
                session.refresh_wakeup()

    def poll(self, session: int, records: npt.NDArray[Any]) -> tuple[Status, int]:
        if records.dtype != COMPLETION or records.ndim != 1:
            return self._fail(session, Status.OP_INVALID, f"records: must be 1-d {COMPLETION}"), 0
        budget = POLL_BYTES_MAX
        while budget > 0:
            with self._lock:
                found = self._sessions.get(session)
                if found is None:
                    return Status.CLOSED, 0
                while found.runnable and found.runnable[0].progress is Progress.OVER:
                    found.runnable.popleft()
                if not found.runnable:
                    break
                operation = found.runnable[0]
            budget -= self._engine.run(operation, budget)
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED, 0
            count = min(len(records), len(found.completed))
            for at in range(count):
                records[at] = record = found.completed.popleft()
                del found.requests[record[0]]
            found.refresh_wakeup()
        return Status.OK, count

    # Notifications.

    def send_notification(self, session: int, peer: int, payload: bytes) -> Status:
        text = notification_fault(payload)
        if text:
            return self._fail(session, Status.OP_INVALID, text)
        with self._lock:
            found, ours = self._lookup(session, peer)
            if found is None:
                return Status.CLOSED
            status, text = admission(found, ours, True)
            if status != Status.OK or ours is None or ours.remote is None:
                return found.refuse(status, text)
            target, plan = ours.remote, found.plan
            if plan is None:
                target.deliver(payload)
                return Status.OK
        posted, action = plan.decide(
            session=session,
            peer=peer,
            kind="notify",
            range_count=0,
            byte_count=0,
            notification=payload,
        )
        match action:
            case Refuse(status=status) | Fail(status=status):
                return self._fail(session, status, "refused by the fault plan")
            case Hold():
                plan.hold(posted, Stage.NOTIFICATION, lambda: self._engine.deliver(target, payload))
            case Drop(notification=True):
                pass
            case Duplicate(copies=copies):
                self._engine.deliver(target, payload, copies)
            case _:
                self._engine.deliver(target, payload)
        return Status.OK

    def poll_notifications(
        self, session: int, count_max: int
    ) -> tuple[Status, list[tuple[int, bytes]]]:
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return Status.CLOSED, []
            count = min(count_max, len(found.inbox))
            taken = [found.inbox.popleft() for _ in range(count)]
            found.refresh_wakeup()
        return Status.OK, taken

    def _lookup(self, session: int, peer: int) -> tuple[Session | None, Peer | None]:
        found = self._sessions.get(session)
        return found, None if found is None else found.peers.get(peer)

    def remember(self, text: str) -> None:
        """Keep `text` for `last_error` of a session that does not exist."""
        with self._lock:
            self._error = text

    def _fail(self, session: int | None, status: Status, text: str) -> Status:
        """Record `text` for people; gives `status`, or CLOSED where there is no such session."""
        with self._lock:
            if session is None:
                self._error = text
                return status
            found = self._sessions.get(session)
            return Status.CLOSED if found is None else found.refuse(status, text)
