"""Posting parts in bounded windows, fairly.

Owns the queue of parts to be written or read and the state of each part in
flight. Knows no protocol: it asks `claim` before the first byte and reports how
a part ended. Invariants: at most `windows_per_peer_max` windows are in flight
towards one peer, so that a cancel waits for those only; the notification of a
write is posted with the last window, once all earlier ones are complete. A part that
goes through the staging buffer posts the windows of one round at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from kvxfer.core.effects import Post
from kvxfer.core.events import OpEnded, OpNotPosted
from kvxfer.core.ids import LinkId, OpId, Reason
from kvxfer.driver.peers import RemotePeer
from kvxfer.driver.staged import PartPlan, Rounds, StagingBuffer
from kvxfer.layout.plan import Plan
from kvxfer.limits import Limits
from kvxfer.status import Status, is_never_posted, is_peer_error
from kvxfer.transport.ops import TransportOps

OpEvent = OpEnded | OpNotPosted


@attrs.define(kw_only=True, eq=False)
class Active:
    """One part on its way."""

    post: Post
    remote: RemotePeer
    plan: Plan
    notification: bytes | None
    """Goes with the last window of a write. None: the part is read."""
    bounds: list[int]
    """Window k covers descriptors [bounds[k], bounds[k + 1])."""
    rounds: Rounds
    """What follows `plan` through the staging buffer."""
    next_window: int = 0
    windows_posted: int = 0
    in_flight: int = 0
    claimed: bool = False
    stopped: bool = False
    failure: Reason = Reason.NONE
    quiet: bool = True
    started_ms: float = 0.0

    @property
    def windows_left(self) -> int:
        return len(self.bounds) - 1 - self.next_window

    @property
    def all_posted(self) -> bool:
        return self.windows_left == 0 and not self.rounds.left

    @property
    def halted(self) -> bool:
        return self.stopped or self.failure is not Reason.NONE


@attrs.define
class Poster:
    """All parts of one agent between `Post` and their end."""

    ops: TransportOps
    transport_session: int
    limits: Limits
    claim: Callable[[OpId], bool]
    staging: StagingBuffer | None = None
    active: dict[OpId, Active] = attrs.field(factory=dict)
    descriptors_posted: int = 0
    bytes_posted: int = 0
    bytes_read: int = 0
    failed_links: set[LinkId] = attrs.field(factory=set)
    """Links whose transport peer is beyond use: both sides have to make a new one."""
    _queues: dict[int, deque[Active]] = attrs.field(factory=dict)
    _requests: dict[int, Active] = attrs.field(factory=dict)

    def add(
        self, post: Post, remote: RemotePeer, plan: PartPlan, notification: bytes | None
    ) -> None:
        active = Active(
            post=post,
            remote=remote,
            plan=plan.direct,
            notification=notification,
            bounds=self._cut(plan.direct),
            rounds=Rounds(plan.rounds),
        )
        self.active[post.op] = active
        self._queues.setdefault(remote.handle, deque()).append(active)

    def _cut(self, plan: Plan) -> list[int]:
        """Cut a plan into windows of bounded descriptors and bytes."""
        count_max = self.limits.post_window_descriptors_max
        bytes_max = self.limits.post_window_bytes_max
        bounds = [0]
        ends = plan.length.cumsum()
        while bounds[-1] < plan.descriptor_count:
            start = bounds[-1]
            before = int(ends[start - 1]) if start else 0
            by_bytes = int(ends.searchsorted(before + bytes_max, side="right"))
            bounds.append(min(max(by_bytes, start + 1), start + count_max, plan.descriptor_count))
        return bounds

    def stop(self, op: OpId) -> list[OpEvent]:
        """Post nothing more of this part."""
        active = self.active.get(op)
        if active is None:
            return []
        active.stopped = True
        return self._settle(active)

    def turn(self, now_ms: float) -> list[OpEvent]:
        """Post what may be posted: one window per part and round, peers in turn."""
        events: list[OpEvent] = []
        for handle in list(self._queues):
            events += self._turn_peer(handle, now_ms)
        return events

    def _turn_peer(self, handle: int, now_ms: float) -> list[OpEvent]:
        queue = self._queues[handle]
        events: list[OpEvent] = []
        for _ in range(len(queue)):
            active = queue[0]
            if active.remote.requests_open >= self.limits.windows_per_peer_max:
                break
            queue.rotate(-1)
            events += self._advance(active, now_ms)
        if not queue:
            del self._queues[handle]
        return events

    def _advance(self, active: Active, now_ms: float) -> list[OpEvent]:
        if not active.claimed:
            if not self.claim(active.post.op):
                self._forget(active)
                return []
            active.claimed = True
            active.started_ms = now_ms
        if active.halted or active.all_posted:
            return self._settle(active)
        if active.windows_left == 0 and not self._next_round(active):
            return []
        last = active.windows_left == 1 and not active.rounds.left
        if last and active.in_flight and active.notification is not None:
            return []
        return self._post_window(active, active.notification if last else None)

    def _next_round(self, active: Active) -> bool:
        """Fill the staging buffer, once it is this part's and nothing reads it."""
        assert self.staging is not None
        if active.in_flight or not self.staging.acquire(active.post.op):
            return False
        active.plan = self.staging.fill(active.rounds.take())
        active.bounds, active.next_window = self._cut(active.plan), 0
        return True

    def _post(self, active: Active, window: Plan, notification: bytes | None) -> tuple[Status, int]:
        session, handle = self.transport_session, active.remote.handle
        if active.notification is None:
            # A plan runs from the producer's blocks to the consumer's: the target is ours.
            return self.ops.post_read(session, handle, window.dst, window.src, window.length, None)
        return self.ops.post_write(
            session, handle, window.src, window.dst, window.length, notification
        )

    def _post_window(self, active: Active, notification: bytes | None) -> list[OpEvent]:
        start, stop = active.bounds[active.next_window : active.next_window + 2]
        window = active.plan.window(start, stop)
        status, request = self._post(active, window, notification)
        if status == Status.NO_RESOURCE:
            return []
        if is_peer_error(status):
            self.failed_links.add(active.remote.link)
        if status < 0:
            active.failure = Reason.TRANSPORT_FAILED
            active.quiet = active.quiet and is_never_posted(status)
            if active.windows_posted == 0:
                self._forget(active)
                return [OpNotPosted(op=active.post.op, reason=_reason_of(status))]
            return self._settle(active)
        active.next_window += 1
        active.windows_posted += 1
        active.in_flight += 1
        active.remote.requests_open += 1
        self._requests[request] = active
        self.descriptors_posted += stop - start
        if active.notification is None:
            self.bytes_read += window.bytes_total
        else:
            self.bytes_posted += window.bytes_total
        return []

    def is_read(self, request: int) -> bool:
        """True where the posted window belongs to a part that is read."""
        active = self._requests.get(request)
        return active is not None and active.notification is None

    def completed(self, request: int, status: int) -> list[OpEvent]:
        """One posted window has ended."""
        active = self._requests.pop(request, None)
        if active is None:
            return []
        active.in_flight -= 1
        active.remote.requests_open -= 1
        if status != Status.OK:
            active.failure = Reason.TRANSPORT_FAILED
            active.quiet = active.quiet and status == Status.OP_FAILED
        return self._settle(active)

    def _settle(self, active: Active) -> list[OpEvent]:
        """Report the part if nothing of it is in flight and nothing will be posted."""
        if active.in_flight or not active.claimed:
            return []
        complete = active.all_posted and active.failure is Reason.NONE
        if not complete and not active.halted:
            return []
        self._forget(active)
        reason = active.failure
        if not complete and reason is Reason.NONE:
            reason = Reason.CANCELLED_BY_CONSUMER
        return [OpEnded(op=active.post.op, done=complete, quiet=active.quiet, reason=reason)]

    def _forget(self, active: Active) -> None:
        self.active.pop(active.post.op, None)
        if self.staging is not None:
            self.staging.release(active.post.op)
        queue = self._queues.get(active.remote.handle)
        if queue is not None and active in queue:
            queue.remove(active)


def _reason_of(status: int) -> Reason:
    if status in (Status.REGION_BOUNDS, Status.REGION_STALE, Status.REGION_UNKNOWN):
        return Reason.OUT_OF_BOUNDS
    return Reason.TRANSPORT_FAILED
