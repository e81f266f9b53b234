"""Planned faults of a transport, and the operations a test holds back.

Owns which fault meets which operation, and the list of held ones. Refuses to
know how a fault is carried out: the loopback and `hooks.faulty` do that.
Invariant: faults depend on the order of posts alone, never on a clock or on
chance; a held operation stays listed until it is released or can happen no more.

A plan may be shared by sessions of several threads. Lock order: a transport may
call the plan while it holds its own lock; the plan calls nothing while it holds
its lock, except the `where` of a rule, which must call neither.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from threading import Lock
from typing import Final, Literal, TypeAlias

import attrs

from kvxfer.errors import BadValue
from kvxfer.status import Status, is_never_posted

OPTION: Final = "faults"
"""Name of the `open` option that gives a `FaultPlan` to a loopback session."""

Kind: TypeAlias = Literal["write", "read", "notify"]


@attrs.frozen(kw_only=True)
class Posted:
    """One call of post_write, post_read or send_notification, as a rule sees it.

    `number` counts the calls that this plan has seen, from 1.
    """

    number: int
    session: int
    peer: int
    kind: Kind
    range_count: int
    byte_count: int
    notification: bytes | None


class Stage(Enum):
    """What a `Hold` keeps back. Everything before it happens as usual."""

    OPERATION = "operation"
    NOTIFICATION = "notification"
    COMPLETION = "completion"


def _never_posted(_instance: object, _field: object, value: Status) -> None:
    if not is_never_posted(value):
        raise BadValue("Refuse.status", value, "must be a never-posted status")


def _final_error(_instance: object, _field: object, value: Status) -> None:
    if value not in (Status.OP_FAILED, Status.OP_UNKNOWN):
        raise BadValue("Fail.status", value, "must be OP_FAILED or OP_UNKNOWN")


@attrs.frozen(kw_only=True)
class Refuse:
    """The call itself answers `status`; nothing is posted."""

    status: Status = attrs.field(default=Status.NO_RESOURCE, validator=_never_posted)


@attrs.frozen(kw_only=True)
class Fail:
    """The first `after_bytes` bytes arrive, no notification does, and it ends with `status`."""

    status: Status = attrs.field(default=Status.OP_FAILED, validator=_final_error)
    after_bytes: int = 0


@attrs.frozen(kw_only=True)
class Drop:
    """Bytes, notification or both are lost on the way; the initiator is told `status`."""

    data: bool = True
    notification: bool = True
    status: Status = Status.OK


@attrs.frozen(kw_only=True)
class Duplicate:
    """The notification arrives `copies` times."""

    copies: int = 2


@attrs.frozen(kw_only=True)
class Hold:
    """`stage` waits for `FaultPlan.release`, which then really carries it out.

    With `report`, a held operation ends at once with that status for its
    initiator (OP_UNKNOWN: 'not proven quiet') and still writes at its release.
    Releasing in another order than that of the posts reorders them.
    """

    stage: Stage = Stage.OPERATION
    report: Status | None = None


Action: TypeAlias = Refuse | Fail | Drop | Duplicate | Hold
Where: TypeAlias = Callable[[Posted], bool]


@attrs.frozen(kw_only=True)
class Held:
    """One thing that waits: `number` is what `release` takes."""

    number: int
    stage: Stage
    posted: Posted


@attrs.define
class _Rule:
    action: Action
    where: Where | None
    skip: int
    times: int | None


class FaultPlan:
    """Rules that turn posts into faults, and what is held."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rules: list[_Rule] = []
        self._held: dict[int, tuple[Held, Callable[[], None]]] = {}
        self._posted_count = 0
        self._fence_refusals: int | None = 0

    def add(
        self,
        action: Action,
        *,
        where: Where | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Meet posts that `where` accepts with `action`.

        The first `skip` of them go untouched, the next `times` are met; `times=None`
        means all that follow. The oldest rule that matches wins.
        """
        if skip < 0:
            raise BadValue("skip", skip, "must be 0 or more")
        if times is not None and times < 1:
            raise BadValue("times", times, "must be 1 or more, or None")
        with self._lock:
            self._rules.append(_Rule(action, where, skip, times))

    def clear(self) -> None:
        """Forget all rules. What is held stays held."""
        with self._lock:
            self._rules.clear()
            self._fence_refusals = 0

    def refuse_fences(self, times: int | None = None) -> None:
        """The next `times` fences answer NOT_FENCED (None: all); 0 ends it."""
        with self._lock:
            self._fence_refusals = times

    def held(self) -> tuple[Held, ...]:
        """What waits for a release, in the order in which it was posted."""
        with self._lock:
            return tuple(self._held[number][0] for number in sorted(self._held))

    def release(self, number: int) -> None:
        """Carry out what is held under `number`, now, in the calling thread.

        Bytes are written when this returns, and a notification is in the peer's
        queue; the completion waits for the initiator's poll. Raises `BadValue`
        where nothing is held under the number.
        """
        with self._lock:
            entry = self._held.pop(number, None)
            known = sorted(self._held)
        if entry is None:
            raise BadValue("number", number, f"nothing is held under it; held are {known}")
        entry[1]()

    def release_all(self) -> int:
        """Release everything that is held, oldest first. Gives how many there were."""
        numbers = [entry.number for entry in self.held()]
        for number in numbers:
            self.release(number)
        return len(numbers)

    @property
    def posted_count(self) -> int:
        """Posts that this plan has seen, refused ones included."""
        with self._lock:
            return self._posted_count

    def decide(
        self,
        *,
        session: int,
        peer: int,
        kind: Kind,
        range_count: int,
        byte_count: int,
        notification: bytes | None,
    ) -> tuple[Posted, Action | None]:
        """For a transport: number one post and say which fault it meets."""
        with self._lock:
            self._posted_count += 1
            posted = Posted(
                number=self._posted_count,
                session=session,
                peer=peer,
                kind=kind,
                range_count=range_count,
                byte_count=byte_count,
                notification=notification,
            )
            return posted, self._match(posted)

    def hold(self, posted: Posted, stage: Stage, resume: Callable[[], None]) -> None:
        """For a transport: keep `resume` until the release of `posted.number`."""
        held = Held(number=posted.number, stage=stage, posted=posted)
        with self._lock:
            self._held[posted.number] = (held, resume)

    def forget(self, number: int) -> None:
        """For a transport: what is held under `number` can happen no more."""
        with self._lock:
            self._held.pop(number, None)

    def takes_fence(self) -> bool:
        """For a transport: False where this try of a fence must answer NOT_FENCED."""
        with self._lock:
            if self._fence_refusals is None:
                return False
            if self._fence_refusals == 0:
                return True
            self._fence_refusals -= 1
            return False

    def _match(self, posted: Posted) -> Action | None:
        for rule in self._rules:
            if rule.where is not None and not rule.where(posted):
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
            return rule.action
        return None
