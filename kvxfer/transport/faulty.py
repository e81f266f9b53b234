"""Faults on top of any transport table.

Owns the carrying out of a `FaultPlan` above a table that knows nothing of it.
Refuses to write memory: a held operation is one that the table has not been
given yet, so the table's own fence still stops it. (The loopback, which takes a
plan itself, holds operations below its fence checks and past its initiator's
close; use that where late writes of a dead peer matter.)

Invariant: the wrapper calls the table in its owner thread only; what a release
sets free is carried out at the initiator's next poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.faults import (
    Action,
    Drop,
    Duplicate,
    Fail,
    FaultPlan,
    Hold,
    Kind,
    Posted,
    Refuse,
    Stage,
)
from kvxfer.transport.loopback_engine import first_bytes
from kvxfer.transport.ops import COMPLETION, U64, Direction, Strided, TransportOps
from kvxfer.transport.ranges import column_fault, expand_strided, strided_fault
from kvxfer.transport.stubs import overlay

_Columns = tuple[U64, U64, U64]


def _plain(columns: _Columns | Strided) -> _Columns:
    """The ranges of a post, one by one."""
    return expand_strided(columns) if isinstance(columns, Strided) else columns


@attrs.define(eq=False)
class _Request:
    """One request as the caller sees it; `inner` ends it, or a fault does."""

    request: int
    kind: Kind
    peer: int
    notify: bytes | None
    posted: Posted
    action: Action | None
    inner: int = 0
    """The table's own request; 0 while, or where, the table has none."""
    reported: bool = False


@attrs.define
class _State:
    """One session of the wrapper."""

    request_count: int = 0
    open: dict[int, _Request] = attrs.field(factory=dict)
    """Requests whose completion has not been given out yet."""
    by_inner: dict[int, _Request] = attrs.field(factory=dict)
    completed: deque[tuple[int, int, Status]] = attrs.field(factory=deque)
    released: deque[Callable[[], None]] = attrs.field(factory=deque)
    """Filled from any thread, emptied by the owner."""
    waiting: dict[int, _Request] = attrs.field(factory=dict)
    """Operations that the table has not been given, by number of the post."""
    fences_tried: set[int] = attrs.field(factory=set)


def faulty(ops: TransportOps, plan: FaultPlan) -> TransportOps:
    """`ops`, with the faults of `plan` in every session that is opened through it."""
    wrapper = _Faulty(ops, plan)
    slots: dict[str, Callable[..., Any]] = {
        "open": wrapper.open,
        "close": wrapper.close,
        "post_write": lambda s, p, a, b, n, note: wrapper.post("write", s, p, (a, b, n), note),
        "post_read": lambda s, p, a, b, n, note: wrapper.post("read", s, p, (a, b, n), note),
        "post_strided": wrapper.post_strided,
        "cancel": wrapper.cancel,
        "poll": wrapper.poll,
        "send_notification": wrapper.send_notification,
        "poll_notifications": wrapper.poll_notifications,
        "fence_peer": wrapper.fence_peer,
    }
    return overlay(ops, slots)


class _Faulty:
    def __init__(self, ops: TransportOps, plan: FaultPlan) -> None:
        self._ops = ops
        self._plan = plan
        self._states: dict[int, _State] = {}

    def open(self, options: Mapping[str, Any]) -> tuple[Status, int]:
        status, session = self._ops.open(options)
        if status == Status.OK:
            self._states[session] = _State()
        return status, session

    def close(self, session: int) -> Status:
        state = self._state(session)
        if state is not None:
            for number in state.waiting:
                self._plan.forget(number)
            del self._states[session]
        return self._ops.close(session)

    def fence_peer(self, session: int, peer: int) -> Status:
        state = self._state(session, peer)
        if state is None:
            return self._ops.fence_peer(session, peer)
        state.fences_tried.add(peer)
        if not self._plan.takes_fence():
            return Status.NOT_FENCED
        status = self._ops.fence_peer(session, peer)
        if status == Status.OK:
            for number, request in list(state.waiting.items()):
                if request.peer == peer:
                    self._plan.forget(number)
                    del state.waiting[number]
                    self._report(state, request, Status.OP_FAILED)
        return status

    def post(
        self, kind: Kind, session: int, peer: int, columns: _Columns, notify: bytes | None
    ) -> tuple[Status, int]:
        state = self._state(session, peer)
        if state is None or column_fault(*columns):
            return self._call(kind, session, peer, columns, notify)
        return self._post(state, kind, session, peer, columns, notify)

    def post_strided(
        self,
        session: int,
        peer: int,
        direction: Direction,
        columns: Strided,
        notify: bytes | None,
    ) -> tuple[Status, int]:
        state = self._state(session, peer)
        if state is None or strided_fault(columns) or direction not in tuple(Direction):
            return self._ops.post_strided(session, peer, direction, columns, notify)
        kind: Kind = "write" if direction == Direction.WRITE else "read"
        return self._post(state, kind, session, peer, columns, notify)

    def _call(
        self,
        kind: Kind,
        session: int,
        peer: int,
        columns: _Columns | Strided,
        notify: bytes | None,
    ) -> tuple[Status, int]:
        if isinstance(columns, Strided):
            direction = Direction.WRITE if kind == "write" else Direction.READ
            return self._ops.post_strided(session, peer, direction, columns, notify)
        call = self._ops.post_write if kind == "write" else self._ops.post_read
        return call(session, peer, *columns, notify)

    def _post(
        self,
        state: _State,
        kind: Kind,
        session: int,
        peer: int,
        columns: _Columns | Strided,
        notify: bytes | None,
    ) -> tuple[Status, int]:
        if peer in state.fences_tried:
            return Status.PEER_FAILED, 0
        length = _plain(columns)[2]
        posted, action = self._plan.decide(
            session=session,
            peer=peer,
            kind=kind,
            range_count=len(length),
            byte_count=int(length.sum()),
            notification=notify,
        )
        if isinstance(action, Refuse):
            return action.status, 0
        state.request_count += 1
        request = _Request(
            request=state.request_count,
            kind=kind,
            peer=peer,
            notify=notify,
            posted=posted,
            action=action,
        )
        if isinstance(action, Hold) and action.stage is Stage.OPERATION:
            state.open[request.request] = request
            self._wait(session, state, request, columns, action.report)
            return Status.OK, request.request
        status = self._give(session, state, request, columns)
        if status != Status.OK:
            return status, 0
        state.open[request.request] = request
        return status, request.request

    def cancel(self, session: int, request: int) -> Status:
        state = self._state(session, request)
        if state is None:
            return self._ops.cancel(session, request)
        found = state.open.get(request)
        if found is None:
            return Status.OP_INVALID
        if state.waiting.pop(found.posted.number, None) is not None:
            # The table has not been given it: nothing has left.
            self._plan.forget(found.posted.number)
            self._report(state, found, Status.OP_FAILED)
        elif found.inner in state.by_inner:
            return self._ops.cancel(session, found.inner)
        return Status.OK

    def poll(self, session: int, records: npt.NDArray[Any]) -> tuple[Status, int]:
        state = self._state(session)
        if state is None or not isinstance(records, np.ndarray):
            return self._ops.poll(session, records)
        self._carry_out(state)
        room = max(0, len(records) - len(state.completed))
        inner = np.zeros(max(1, room), dtype=COMPLETION)
        status, count = self._ops.poll(session, inner)
        if status != Status.OK:
            return status, 0
        for ended, _, end in inner[:count].tolist():
            self._ended(session, state, state.by_inner.pop(ended), Status(end))
        filled = min(len(records), len(state.completed))
        for at in range(filled):
            records[at] = record = state.completed.popleft()
            state.open.pop(record[0], None)
        return Status.OK, filled

    def send_notification(self, session: int, peer: int, payload: bytes) -> Status:
        state = self._state(session)
        if state is None or not isinstance(payload, bytes):
            return self._ops.send_notification(session, peer, payload)
        posted, action = self._plan.decide(
            session=session,
            peer=peer,
            kind="notify",
            range_count=0,
            byte_count=0,
            notification=payload,
        )
        match action:
            case Refuse(status=status) | Fail(status=status):
                return status
            case Drop(notification=True):
                return Status.OK
            case Duplicate(copies=copies):
                for _ in range(copies - 1):
                    self._ops.send_notification(session, peer, payload)
            case Hold():
                self._hold_notification(session, state, peer, payload, posted)
                return Status.OK
        return self._ops.send_notification(session, peer, payload)

    def poll_notifications(
        self, session: int, count_max: int
    ) -> tuple[Status, list[tuple[int, bytes]]]:
        state = self._state(session)
        if state is not None:
            self._carry_out(state)
        return self._ops.poll_notifications(session, count_max)

    def _state(self, session: object, peer: object = 0) -> _State | None:
        """What is known of a session; None for anything that the table itself must answer."""
        if isinstance(session, int) and isinstance(peer, int):
            return self._states.get(session)
        return None

    def _carry_out(self, state: _State) -> None:
        while state.released:
            state.released.popleft()()

    def _wait(
        self,
        session: int,
        state: _State,
        request: _Request,
        columns: _Columns | Strided,
        report: Status | None,
    ) -> None:
        number = request.posted.number

        def give_late() -> None:
            # A fence or a close in between has taken it away.
            if state.waiting.pop(number, None) is not None:
                status = self._give(session, state, request, columns)
                if status != Status.OK:
                    self._report(state, request, Status.OP_FAILED)

        state.waiting[number] = request
        self._plan.hold(request.posted, Stage.OPERATION, lambda: state.released.append(give_late))
        if report is not None:
            self._report(state, request, report)

    def _give(
        self, session: int, state: _State, request: _Request, columns: _Columns | Strided
    ) -> Status:
        """Post to the table what the fault leaves of the operation."""
        notify = request.notify
        match request.action:
            case Fail(after_bytes=kept):
                columns, notify = first_bytes(_plain(columns), kept), None
            case Drop(data=data, notification=lost):
                columns = first_bytes(_plain(columns), 0) if data else columns
                notify = None if lost else notify
            case Hold(stage=Stage.NOTIFICATION):
                notify = None
        if request.action is not None and len(_plain(columns)[2]) == 0:
            if notify is not None:
                self._ops.send_notification(session, request.peer, notify)
            self._ended(session, state, request, Status.OK)
            return Status.OK
        status, inner = self._call(request.kind, session, request.peer, columns, notify)
        if status == Status.OK:
            request.inner = inner
            state.by_inner[inner] = request
        return status

    def _ended(self, session: int, state: _State, request: _Request, status: Status) -> None:
        """The table has done its part: the rest of the fault, then the completion."""
        peer, notify, posted = request.peer, request.notify, request.posted
        if status == Status.OK:
            match request.action:
                case Fail(status=status) | Drop(status=status):
                    pass
                case Duplicate(copies=copies) if notify is not None:
                    for _ in range(copies - 1):
                        self._ops.send_notification(session, peer, notify)
                case Hold(stage=Stage.NOTIFICATION) if notify is not None:
                    self._hold_notification(session, state, peer, notify, posted)
                case Hold(stage=Stage.COMPLETION):
                    self._plan.hold(
                        posted,
                        Stage.COMPLETION,
                        lambda: state.released.append(
                            lambda: self._report(state, request, Status.OK)
                        ),
                    )
                    return
        self._report(state, request, status)

    def _hold_notification(
        self, session: int, state: _State, peer: int, payload: bytes, posted: Posted
    ) -> None:
        def send() -> None:
            self._ops.send_notification(session, peer, payload)

        self._plan.hold(posted, Stage.NOTIFICATION, lambda: state.released.append(send))

    def _report(self, state: _State, request: _Request, status: Status) -> None:
        if not request.reported:
            request.reported = True
            state.completed.append((request.request, request.peer, status))
