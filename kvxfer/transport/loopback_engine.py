"""How the loopback carries an operation out.

Owns the copying of bytes, the order 'bytes, notification, completion', and the
one lock of a hub. Refuses to know handles: it works on records. Invariants:

- before each slice of bytes it checks, under the lock, that both ends and all
  regions still stand; an operation that was ended in between moves no byte more;
- the lock is never held while bytes are copied.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import deque
from threading import Condition, Lock
from typing import Final

import numpy as np

from kvxfer.status import Status
from kvxfer.transport.faults import Drop, Duplicate, Fail, Hold, Stage
from kvxfer.transport.loopback_state import Operation, Peer, Progress, Session
from kvxfer.transport.ops import U64

SLICE_BYTES: Final = 4 << 20
"""Bytes between two looks at the tables: bounds how long a fence can be refused."""

_NO_LIMIT: Final = 1 << 64
_RELEASE_BYTES: Final = 64 << 10
"""Ranges from this size on are moved with the interpreter lock released."""

_move_short: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""memmove with the lock kept: giving it up costs more than a short move."""


class Engine:
    """The lock, what is being copied at this moment, and the steps of an operation.

    Methods whose name ends in `_locked` are called with `lock` held, the others without.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self._copying: set[Operation] = set()
        self._slice_over = Condition(self.lock)

    def touches_locked(self, party: Session | Peer) -> bool:
        """True while another thread copies bytes for an operation of `party`."""
        return any(
            party in (op.peer, op.target, op.peer.session, op.target.session)
            for op in self._copying
        )

    def wait_untouched_locked(self, session: Session) -> None:
        """Return when no thread copies a slice for `session`; gives the lock up meanwhile."""
        self._slice_over.wait_for(lambda: not self.touches_locked(session))

    def run(self, operation: Operation, budget: int = _NO_LIMIT) -> int:
        """Move at most `budget` bytes, end the operation where it is complete; gives the bytes."""
        moved = 0
        while True:
            with self.lock:
                if operation in self._copying:
                    self._copying.discard(operation)
                    self._slice_over.notify_all()
                if operation.progress is Progress.OVER:
                    return moved
                if operation.copied:
                    self._arrive_locked(operation)
                    return moved
                if not operation.allowed():
                    self.end_locked(operation, Status.OP_FAILED)
                    return moved
                if moved >= budget:
                    return moved
                self._copying.add(operation)
                # The memory must outlive this slice even if its region goes meanwhile.
                in_use = operation.memories()
            moved += _copy(operation, min(SLICE_BYTES, budget - moved))
            del in_use

    def resume(self, operation: Operation) -> None:
        """Carry a held operation out to its end, in the calling thread."""
        with self.lock:
            operation.held = False
        self.run(operation)

    def end_locked(self, operation: Operation, status: Status) -> None:
        """It moves no byte more, and its initiator is told `status`.

        Does nothing while the operation is being copied: it then stops at its
        next slice, because what ends it has made it no longer allowed.
        """
        if operation in self._copying:
            return
        operation.forget()
        plan = operation.peer.session.plan
        if operation.held and plan is not None and operation.posted is not None:
            plan.forget(operation.posted.number)
        self.report_locked(operation, status)

    def report_locked(self, operation: Operation, status: Status) -> None:
        """Queue the completion, unless there is one already or nobody to take it."""
        session = operation.peer.session
        if not (operation.reported or session.closed):
            operation.reported = True
            session.completed.append((operation.request, operation.peer.handle, status))
            session.refresh_wakeup()

    def deliver(self, target: Peer, payload: bytes, copies: int = 1) -> None:
        """Give `target` a notification."""
        with self.lock:
            target.deliver(payload, copies)

    def _arrive_locked(self, operation: Operation) -> None:
        """All bytes are there: notification, then completion, each as the fault wants it."""
        operation.forget()
        copies, status = 1, Status.OK
        match operation.action:
            case Hold(stage=Stage.NOTIFICATION | Stage.COMPLETION as stage):
                self._arrive_held_locked(operation, stage)
                return
            case Fail(status=status):
                copies = 0
            case Drop(notification=lost, status=status):
                copies = 0 if lost else 1
            case Duplicate(copies=copies):
                pass
        if operation.notification is not None:
            operation.target.deliver(operation.notification, copies)
        self.report_locked(operation, status)

    def _arrive_held_locked(self, operation: Operation, stage: Stage) -> None:
        target, payload = operation.target, operation.notification
        plan, posted = operation.peer.session.plan, operation.posted
        # A fault comes from a plan.
        assert plan is not None
        assert posted is not None
        if stage is Stage.COMPLETION:
            if payload is not None:
                target.deliver(payload)
            plan.hold(posted, stage, lambda: self._report(operation))
        else:
            if payload is not None:
                plan.hold(posted, stage, lambda: self.deliver(target, payload))
            self.report_locked(operation, Status.OK)

    def _report(self, operation: Operation) -> None:
        with self.lock:
            self.report_locked(operation, Status.OK)


def first_bytes(columns: tuple[U64, U64, U64], byte_count: int) -> tuple[U64, U64, U64]:
    """The leading ranges of three columns that hold `byte_count` bytes; the last may be cut."""
    local, remote, length = columns
    ends = np.cumsum(length, dtype=np.uint64)
    kept = np.minimum(ends, np.uint64(byte_count))
    short = np.diff(kept, prepend=np.uint64(0))
    return local[short > 0], remote[short > 0], short[short > 0]


def _copy(operation: Operation, byte_count: int) -> int:
    """Move the next bytes, at most `byte_count`; gives how many were moved."""
    sources, targets, lengths = operation.sources, operation.targets, operation.lengths
    ends, at, done = operation.ends, operation.next_range, operation.next_byte
    before = (ends[at - 1] if at else 0) + done
    # All ranges before `stop` fit as a whole, unless one has been begun.
    stop = at if done else bisect_right(ends, before + byte_count, lo=at)
    if stop > at:
        moved = ends[stop - 1] - before
        move = ctypes.memmove if moved // (stop - at) >= _RELEASE_BYTES else _move_short
        deque(map(move, targets[at:stop], sources[at:stop], lengths[at:stop]), maxlen=0)
        operation.next_range = stop
        return moved
    moved = min(lengths[at] - done, byte_count)
    ctypes.memmove(targets[at] + done, sources[at] + done, moved)
    finished = done + moved == lengths[at]
    operation.next_range, operation.next_byte = (at + 1, 0) if finished else (at, done + moved)
    return moved
