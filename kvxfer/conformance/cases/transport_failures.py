"""Cases on rules 5 and 7 with planned faults: refused, failed and quiet, failed and not quiet."""

from __future__ import annotations

from typing import Final

import numpy as np

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Rig, pattern
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.faults import Drop, Fail, FaultPlan, Hold, Refuse, Stage
from kvxfer.transport.ops import COMPLETION

_SIZE: Final = 64 << 10
_REFUSALS: Final = (
    Status.NO_RESOURCE,
    Status.OP_INVALID,
    Status.REGION_STALE,
    Status.REGION_BOUNDS,
    Status.PEER_FAILED,
    Status.PEER_NOT_CONNECTED,
    Status.SESSION_FAILED,
)


@case(
    "T5.7",
    "more posts than a queue holds: each is refused or ends once, none is lost",
    failures="C",
)
def full_queue(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    peer = rig.connect()[0]
    wanted, refused = rig.rounds(4096, 100_000), 0
    rig.a.records = np.zeros(1024, dtype=COMPLETION)
    for number in range(wanted):
        place = number * 64 % _SIZE
        status, _ = rig.a.post(peer, [source.base + place], [target.base + place], [64])
        if status == Status.NO_RESOURCE:
            refused += 1
            rig.a.poll()
        else:
            expect(status == Status.OK, f"post {number}: {status.name}")
    ends = rig.finish_all(rig.a)
    expect(set(ends) == {Status.OK}, f"ended with {sorted(set(ends))}")
    rig.settle()
    again = [request for request, seen in rig.a.ends.items() if len(seen) != 1]
    expect(not again, f"{len(again)} requests did not end exactly once")
    expect(len(ends) + refused == wanted, f"{len(ends)} ended, {refused} refused, {wanted} posted")
    rig.measure("refused", refused)


@case("T5.8", "a refused post leaves nothing behind, and the next one goes through", failures="BC")
def refused(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    plan = FaultPlan()
    rig.with_faults(rig.a, plan)
    for wanted in _REFUSALS:
        plan.add(Refuse(status=wanted))
        status, _ = rig.a.post(peer, [source.base], [target.base], [_SIZE], b"refused")
        expect(status == wanted, f"answered {status.name}, planned was {wanted.name}")
    rig.settle()
    expect(target.content() == bytes(_SIZE), "a refused post wrote bytes")
    expect(rig.b.notices == [], "a refused post notified")
    expect(rig.a.ends == {}, "a refused post ended in poll")
    end = rig.finish(rig.a, rig.a.write(peer, source, target, b"good"))
    expect(end == Status.OK, f"the post after them ended with {end.name}")
    rig.until(lambda: [got for _, got in rig.b.notices] == [b"good"], "its notification arrives")


@case("T5.9", "failed and quiet: no notification, and nothing lands after the end", failures="AC")
def failed_quiet(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    plan = FaultPlan()
    rig.with_faults(rig.a, plan)
    for kept in (0, 1, 4097, _SIZE):
        target.fill(bytes(_SIZE))
        plan.add(Fail(status=Status.OP_FAILED, after_bytes=kept))
        end = rig.finish(rig.a, rig.a.write(peer, source, target, b"failed"))
        expect(end == Status.OP_FAILED, f"ended with {end.name}")
        got = target.content()
        rig.until(lambda: target.content(0, kept) == source.content(0, kept), "what had left")  # noqa: B023 - used at once
        expect(got[kept:] == bytes(_SIZE - kept), "more landed than had left")
        owner = pattern(2, _SIZE)
        target.fill(owner)
        rig.settle()
        expect(target.content() == owner, "bytes landed after it had ended as quiet")
    expect(rig.b.notices == [], "a failed post notified")


@case(
    "T5.10",
    "failed and not quiet: said as OP_UNKNOWN; only a fence keeps late bytes out",
    failures="AP",
)
def failed_not_quiet(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    owner = pattern(2, _SIZE)
    peer, theirs = rig.connect()
    plan = FaultPlan()
    rig.with_faults(rig.a, plan)

    def not_quiet() -> None:
        plan.add(Hold(report=Status.OP_UNKNOWN))
        end = rig.finish(rig.a, rig.a.write(peer, source, target))
        expect(end == Status.OP_UNKNOWN, f"ended with {end.name}")
        target.fill(owner)

    not_quiet()
    plan.release_all()
    rig.until(lambda: target.content() == source.content(), "the late write lands")
    not_quiet()
    if Caps.FENCE_PEER in rig.b.caps() and rig.fence(rig.b, theirs):
        plan.release_all()
        rig.settle()
        expect(target.content() == owner, "late bytes landed after fence_peer had said OK")
    again = [request for request, seen in rig.a.ends.items() if len(seen) != 1]
    expect(not again, f"requests that did not end exactly once: {again}")


@case(
    "T5.11", "lost or late in one part only: completion and notification stay apart", failures="C"
)
def lost_in_part(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    plan = FaultPlan()
    rig.with_faults(rig.a, plan)
    # Bytes and completion, and no notification: the target must not hear of it later either.
    plan.add(Drop(data=False))
    end = rig.finish(rig.a, rig.a.write(peer, source, target, b"lost"))
    expect(end == Status.OK, f"ended with {end.name}")
    rig.until(lambda: target.content() == source.content(), "the bytes arrive")
    # Bytes and notification, and the completion comes late: the request stays open until then.
    plan.add(Hold(stage=Stage.COMPLETION))
    request = rig.a.write(peer, source, target, b"early")
    rig.until(lambda: [got for _, got in rig.b.notices] == [b"early"], "the notification arrives")
    rig.settle()
    expect(rig.a.ends[request] == [], "it ended before its completion was let go")
    plan.release_all()
    expect(rig.finish(rig.a, request) == Status.OK, "the late completion")
    rig.settle()
    expect(len(rig.b.notices) == 1, f"notifications: {rig.b.notices!r}")
