"""Fault plans in the loopback: each fault does what its name says, and really writes."""

from __future__ import annotations

import pytest

from kvxfer.errors import BadValue
from kvxfer.status import Status
from kvxfer.transport.faults import (
    Drop,
    Duplicate,
    Fail,
    FaultPlan,
    Hold,
    Refuse,
    Stage,
)


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest.fixture
def faulted(make_link, plan):
    link = make_link(a={"faults": plan})
    link.a.bytes[:] = 7
    return link


def _written(link) -> int:
    return int((link.b.bytes == 7).sum())


def test_held_until_released_then_really_written(faulted, plan) -> None:
    plan.add(Hold())
    request = faulted.write((0, 0, 64), notify=b"done")
    (held,) = plan.held()
    assert (held.number, held.stage) == (1, Stage.OPERATION)
    assert (held.posted.kind, held.posted.byte_count, held.posted.range_count) == ("write", 64, 1)
    assert faulted.a.ends() == []
    assert _written(faulted) == 0
    plan.release(held.number)
    assert _written(faulted) == 64
    assert faulted.b.notices() == [b"done"]
    assert faulted.a.ends() == [(request, Status.OK)]
    assert plan.held() == ()


def test_a_late_write_shows_in_the_next_owners_block(faulted, plan) -> None:
    """The test that class A of the failure list asks for: without a fence it corrupts."""
    plan.add(Hold(report=Status.OP_UNKNOWN))
    request = faulted.write((0, 0, 64))
    assert faulted.a.ends() == [(request, Status.OP_UNKNOWN)]
    faulted.b.bytes[:] = 1
    plan.release_all()
    assert _written(faulted) == 64
    # It has ended once already.
    assert faulted.a.ends() == []


def test_a_held_write_outlives_its_initiator(faulted, plan) -> None:
    plan.add(Hold())
    faulted.write((0, 0, 64))
    faulted.ops.close(faulted.a.session)
    assert len(plan.held()) == 1
    plan.release_all()
    assert _written(faulted) == 64


def test_a_fence_takes_away_what_is_held(faulted, plan) -> None:
    plan.add(Hold(), times=None)
    requests = [faulted.write((0, 0, 64)) for _ in range(3)]
    assert faulted.b.fence() == Status.OK
    assert plan.held() == ()
    assert plan.release_all() == 0
    assert faulted.a.ends() == [(request, Status.OP_FAILED) for request in requests]
    assert _written(faulted) == 0


def test_a_fence_holds_against_a_dead_initiators_write(faulted, plan) -> None:
    plan.add(Hold())
    faulted.write((0, 0, 64))
    faulted.ops.close(faulted.a.session)
    assert faulted.b.fence() == Status.OK
    assert plan.held() == ()
    assert _written(faulted) == 0


def test_a_refused_fence_leaves_the_late_write_possible_but_stops_posts(make_link, plan) -> None:
    link = make_link(a={"faults": plan}, b={"faults": plan})
    link.a.bytes[:] = 7
    plan.add(Hold())
    link.write((0, 0, 64))
    plan.refuse_fences(times=2)
    assert [link.b.fence() for _ in range(2)] == [Status.NOT_FENCED] * 2
    assert link.post((0, 0, 8))[0] == Status.PEER_FAILED
    plan.release_all()
    assert _written(link) == 64
    assert link.b.fence() == Status.OK
    plan.refuse_fences()
    assert link.b.fence() == Status.OK


def test_a_released_write_into_a_region_that_went_fails(faulted, plan) -> None:
    plan.add(Hold())
    request = faulted.write((0, 0, 64))
    faulted.ops.deregister_region(faulted.b.session, faulted.b.region)
    plan.release_all()
    assert _written(faulted) == 0
    assert faulted.a.ends() == [(request, Status.OP_FAILED)]


def test_operations_can_be_reordered(faulted, plan) -> None:
    plan.add(Hold(), times=2)
    for value in (1, 2):
        faulted.a.bytes[value] = value
        faulted.write((value, 0, 1), notify=b"%d" % value)
    first, second = plan.held()
    plan.release(second.number)
    plan.release(first.number)
    assert faulted.b.notices() == [b"2", b"1"]
    assert faulted.b.bytes[0] == 1


def test_a_held_notification_comes_after_its_completion(faulted, plan) -> None:
    plan.add(Hold(stage=Stage.NOTIFICATION))
    request = faulted.write((0, 0, 64), notify=b"late")
    assert faulted.a.ends() == [(request, Status.OK)]
    assert _written(faulted) == 64
    assert faulted.b.notices() == []
    plan.release_all()
    assert faulted.b.notices() == [b"late"]


def test_a_held_completion_comes_after_the_peer_knows(faulted, plan) -> None:
    plan.add(Hold(stage=Stage.COMPLETION))
    request = faulted.write((0, 0, 64), notify=b"now")
    assert faulted.a.ends() == []
    assert faulted.b.notices() == [b"now"]
    plan.release_all()
    assert faulted.a.ends() == [(request, Status.OK)]


@pytest.mark.parametrize(
    ("drop", "written", "notices"),
    [
        (Drop(), 0, []),
        (Drop(data=False), 64, []),
        (Drop(notification=False), 0, [b"n"]),
        (Drop(status=Status.OP_UNKNOWN), 0, []),
    ],
)
def test_drop_loses_what_it_says(faulted, plan, drop, written, notices) -> None:
    plan.add(drop)
    request = faulted.write((0, 0, 64), notify=b"n")
    assert faulted.a.ends() == [(request, drop.status)]
    assert _written(faulted) == written
    assert faulted.b.notices() == notices


@pytest.mark.parametrize("status", [Status.OP_FAILED, Status.OP_UNKNOWN])
@pytest.mark.parametrize("kept", [0, 1, 40, 64, 100])
def test_fail_writes_the_first_bytes_and_tells_nobody(faulted, plan, kept, status) -> None:
    plan.add(Fail(status=status, after_bytes=kept))
    request = faulted.write((0, 100, 40), (1000, 500, 24), notify=b"n")
    assert faulted.a.ends() == [(request, status)]
    assert int((faulted.b.bytes[100:140] == 7).sum()) == min(kept, 40)
    assert int((faulted.b.bytes[500:524] == 7).sum()) == max(0, min(kept, 64) - 40)
    assert _written(faulted) == min(kept, 64)
    assert faulted.b.notices() == []


def test_duplicate_notifies_again(faulted, plan) -> None:
    plan.add(Duplicate(copies=3))
    request = faulted.write((0, 0, 64), notify=b"n")
    assert faulted.a.ends() == [(request, Status.OK)]
    assert faulted.b.notices() == [b"n"] * 3


@pytest.mark.parametrize("status", [Status.NO_RESOURCE, Status.OP_INVALID, Status.PEER_FAILED])
def test_refuse_posts_nothing(faulted, plan, status) -> None:
    plan.add(Refuse(status=status))
    assert faulted.post((0, 0, 64), notify=b"n") == (status, 0)
    assert faulted.a.ends() == []
    assert _written(faulted) == 0
    assert "fault plan" in faulted.ops.last_error(faulted.a.session)
    faulted.write((0, 0, 64))


def test_faults_meet_notifications_that_travel_alone(faulted, plan) -> None:
    def send(payload: bytes) -> Status:
        return faulted.ops.send_notification(faulted.a.session, faulted.a.peer, payload)

    plan.add(Drop())
    plan.add(Duplicate())
    plan.add(Hold())
    plan.add(Refuse(status=Status.NO_RESOURCE))
    plan.add(Fail(status=Status.OP_FAILED))
    answers = [send(b"%d" % number) for number in range(6)]
    assert answers == [Status.OK] * 3 + [Status.NO_RESOURCE, Status.OP_FAILED, Status.OK]
    assert faulted.b.notices() == [b"1", b"1", b"5"]
    plan.release_all()
    assert faulted.b.notices() == [b"2"]


def test_a_fault_on_a_read_touches_the_readers_memory(faulted, plan) -> None:
    faulted.b.bytes[:] = 9
    plan.add(Hold())
    status, request = faulted.post((0, 0, 64), slot="post_read")
    assert status == Status.OK
    assert plan.held()[0].posted.kind == "read"
    plan.release_all()
    assert (faulted.a.bytes[:64] == 9).all()
    assert faulted.a.ends() == [(request, Status.OK)]


def test_rules_choose_by_what_is_posted_and_by_count(faulted, plan) -> None:
    plan.add(Refuse(), where=lambda posted: posted.byte_count > 8, skip=1, times=2)
    sizes = [16, 16, 8, 16, 16]
    answers = [faulted.post((0, 0, size))[0] for size in sizes]
    refused = Status.NO_RESOURCE
    assert answers == [Status.OK, refused, Status.OK, refused, Status.OK]
    assert plan.posted_count == 5


def test_clear_forgets_rules_and_keeps_what_is_held(faulted, plan) -> None:
    plan.add(Hold(), times=None)
    faulted.write((0, 0, 8))
    plan.clear()
    request = faulted.write((0, 64, 8))
    assert [end for end in faulted.a.ends() if end[0] == request] == [(request, Status.OK)]
    assert len(plan.held()) == 1


def test_wrong_use_of_a_plan_is_named(plan) -> None:
    with pytest.raises(BadValue, match=r"number = 5.*held are \[\]"):
        plan.release(5)
    with pytest.raises(BadValue, match="skip = -1"):
        plan.add(Hold(), skip=-1)
    with pytest.raises(BadValue, match="times = 0"):
        plan.add(Hold(), times=0)
    with pytest.raises(BadValue, match=r"Refuse.status"):
        Refuse(status=Status.OP_FAILED)
    with pytest.raises(BadValue, match=r"Fail.status"):
        Fail(status=Status.OK)
