"""Wrappers: trace, capabilities taken away, contract checker, faults on any table."""

from __future__ import annotations

import threading

import attrs
import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import (
    Call,
    ContractBroken,
    Drop,
    Duplicate,
    Fail,
    FaultPlan,
    Hold,
    Refuse,
    Stage,
    checked,
    faulty,
    traced,
    without,
)
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import COMPLETION
from kvxfer.transport.stubs import is_stub, stub_ops


def test_traced_tells_each_call_in_order(make_link) -> None:
    calls: list[Call] = []
    link = make_link(traced(make_ops(Hub()), calls.append))
    del calls[:]
    request = link.write((0, 0, 8))
    link.a.poll()
    assert [call.slot for call in calls] == ["post_write", "poll"]
    assert calls[0].args[:2] == (link.a.session, link.a.peer)
    assert calls[0].result == (Status.OK, request)


def test_traced_keeps_stubs() -> None:
    assert is_stub(traced(stub_ops("x"), lambda call: None).fence_peer)


def test_without_takes_the_flag_and_the_slot(make_link) -> None:
    link = make_link(without(make_ops(Hub()), Caps.FENCE_PEER | Caps.READ))
    caps = link.ops.caps(link.a.session)
    assert Caps.FENCE_PEER not in caps
    assert Caps.READ not in caps
    assert Caps.WRITE in caps
    assert link.a.fence() == Status.UNSUPPORTED
    assert link.post((0, 0, 8), slot="post_read") == (Status.UNSUPPORTED, 0)
    assert link.post((0, 0, 8))[0] == Status.OK


class TestChecked:
    def breaks(self, ops, act) -> ContractBroken:
        broken: list[ContractBroken] = []
        with pytest.raises(ContractBroken) as caught:
            act(checked(ops, broken))
        assert broken == [caught.value]
        return caught.value

    def test_an_exception_that_crosses(self) -> None:
        ops = attrs.evolve(make_ops(Hub()), open=lambda options: {}["no"])
        error = self.breaks(ops, lambda table: table.open({}))
        assert error.rule == 1
        assert "KeyError" in str(error)

    @pytest.mark.parametrize("answer", [(0, 1), (Status.OK,), Status.OK, (Status.OK, "1"), None])
    def test_an_answer_of_the_wrong_type(self, answer) -> None:
        ops = attrs.evolve(make_ops(Hub()), open=lambda options: answer)
        assert self.breaks(ops, lambda table: table.open({})).rule == 1

    def test_use_after_close(self) -> None:
        def act(table) -> None:
            _, session = table.open({})
            table.close(session)
            table.poll(session, np.zeros(1, dtype=COMPLETION))

        error = self.breaks(make_ops(Hub()), act)
        assert "after its close" in str(error)

    def test_a_call_from_another_thread(self) -> None:
        table = checked(make_ops(Hub()))
        opened: list[int] = []
        thread = threading.Thread(target=lambda: opened.append(table.open({})[1]))
        thread.start()
        thread.join(30)
        with pytest.raises(ContractBroken, match="another thread") as caught:
            table.caps(opened[0])
        assert caught.value.rule == 3

    def test_a_handle_that_comes_again(self, make_link) -> None:
        ops = make_ops(Hub())
        again = attrs.evolve(ops, register_region=lambda session, memory: (Status.OK, 1))
        link = make_link(checked(again))
        with pytest.raises(ContractBroken, match="handle = 1") as caught:
            link.ops.register_region(link.a.session, link.a.memory)
        assert caught.value.rule == 4

    def test_a_request_that_ends_twice(self, make_link) -> None:
        ops = make_ops(Hub())

        def poll(session, records):
            status, count = ops.poll(session, records)
            if count == 0:
                records[0] = (3, 2, Status.OK)
                count = 1
            return status, count

        link = make_link(checked(attrs.evolve(ops, poll=poll)))
        assert link.write((0, 0, 8)) == 3
        link.a.poll()
        with pytest.raises(ContractBroken, match="request 3 is not open"):
            link.a.poll()

    def test_a_refusal_that_is_not_never_posted(self, make_link) -> None:
        ops = attrs.evolve(make_ops(Hub()), post_write=lambda *args: (Status.OP_UNKNOWN, 0))
        link = make_link(checked(ops))
        with pytest.raises(ContractBroken, match="OP_UNKNOWN"):
            link.post((0, 0, 8))

    def test_a_post_after_a_fence_was_tried(self, make_link) -> None:
        ops = attrs.evolve(make_ops(Hub()), fence_peer=lambda *args: Status.NOT_FENCED)
        link = make_link(checked(ops))
        link.a.fence()
        with pytest.raises(ContractBroken) as caught:
            link.post((0, 0, 8))
        assert caught.value.rule == 8

    def test_an_end_that_is_no_end(self, make_link) -> None:
        ops = make_ops(Hub())

        def poll(session, records):
            status, count = ops.poll(session, records)
            records["status"][:count] = Status.IN_PROGRESS
            return status, count

        link = make_link(checked(attrs.evolve(ops, poll=poll)))
        link.write((0, 0, 8))
        with pytest.raises(ContractBroken, match="ended with 1"):
            link.a.poll()

    def test_more_notifications_than_asked_for(self, make_link) -> None:
        ops = attrs.evolve(
            make_ops(Hub()), poll_notifications=lambda session, room: (Status.OK, [(1, b"")] * 9)
        )
        link = make_link(checked(ops))
        with pytest.raises(ContractBroken, match="gave 9, asked for 3"):
            link.b.notices(3)

    def test_a_good_life_breaks_nothing(self, make_link) -> None:
        broken: list[ContractBroken] = []
        link = make_link(checked(make_ops(Hub()), broken))
        link.write((0, 0, 8), notify=b"x")
        link.a.poll()
        assert link.b.notices() == [b"x"]
        assert link.post((0, 1 << 40, 8))[0] == Status.REGION_BOUNDS
        assert link.b.fence() == Status.OK
        assert broken == []


class TestFaulty:
    """Faults above a table that knows nothing of plans."""

    @pytest.fixture
    def plan(self) -> FaultPlan:
        return FaultPlan()

    @pytest.fixture
    def link(self, make_link, plan):
        link = make_link(faulty(make_ops(Hub()), plan))
        link.a.bytes[:] = 7
        return link

    def written(self, link) -> int:
        return int((link.b.bytes == 7).sum())

    def test_refuse(self, link, plan) -> None:
        plan.add(Refuse(status=Status.PEER_FAILED))
        assert link.post((0, 0, 8)) == (Status.PEER_FAILED, 0)
        request = link.write((0, 0, 8))
        assert link.a.ends() == [(request, Status.OK)]

    @pytest.mark.parametrize("kept", [0, 5, 64])
    def test_fail(self, link, plan, kept) -> None:
        plan.add(Fail(status=Status.OP_UNKNOWN, after_bytes=kept))
        request = link.write((0, 0, 64), notify=b"n")
        assert link.a.ends() == [(request, Status.OP_UNKNOWN)]
        assert self.written(link) == kept
        assert link.b.notices() == []

    @pytest.mark.parametrize(
        ("drop", "written", "notices"),
        [
            (Drop(), 0, []),
            (Drop(data=False), 64, []),
            (Drop(notification=False), 0, [b"n"]),
            (Drop(data=False, status=Status.OP_FAILED), 64, []),
        ],
    )
    def test_drop(self, link, plan, drop, written, notices) -> None:
        plan.add(drop)
        request = link.write((0, 0, 64), notify=b"n")
        assert link.a.ends() == [(request, drop.status)]
        assert self.written(link) == written
        assert link.b.notices() == notices

    def test_duplicate(self, link, plan) -> None:
        plan.add(Duplicate(copies=2))
        plan.add(Duplicate(copies=3))
        link.write((0, 0, 8), notify=b"w")
        link.a.poll()
        link.ops.send_notification(link.a.session, link.a.peer, b"s")
        assert link.b.notices() == [b"w"] * 2 + [b"s"] * 3

    def test_hold_an_operation(self, link, plan) -> None:
        plan.add(Hold())
        request = link.write((0, 0, 64), notify=b"n")
        assert link.a.ends() == []
        assert [held.stage for held in plan.held()] == [Stage.OPERATION]
        plan.release_all()
        assert link.a.ends() == [(request, Status.OK)]
        assert self.written(link) == 64
        assert link.b.notices() == [b"n"]

    def test_hold_and_report(self, link, plan) -> None:
        plan.add(Hold(report=Status.OP_UNKNOWN))
        request = link.write((0, 0, 64))
        assert link.a.ends() == [(request, Status.OP_UNKNOWN)]
        plan.release_all()
        assert link.a.ends() == []
        assert self.written(link) == 64

    def test_hold_a_notification_and_a_completion(self, link, plan) -> None:
        plan.add(Hold(stage=Stage.NOTIFICATION))
        plan.add(Hold(stage=Stage.COMPLETION))
        first = link.write((0, 0, 8), notify=b"1")
        second = link.write((0, 8, 8), notify=b"2")
        assert link.a.ends() == [(first, Status.OK)]
        assert link.b.notices() == [b"2"]
        plan.release_all()
        assert link.a.ends() == [(second, Status.OK)]
        assert link.b.notices() == [b"1"]

    def test_the_peers_fence_stops_what_is_held(self, link, plan) -> None:
        plan.add(Hold())
        request = link.write((0, 0, 64))
        assert link.b.fence() == Status.OK
        plan.release_all()
        assert link.a.ends() == [(request, Status.OP_FAILED)]
        assert self.written(link) == 0

    def test_the_own_fence_ends_what_is_held(self, link, plan) -> None:
        plan.add(Hold())
        request = link.write((0, 0, 64))
        assert link.a.fence() == Status.OK
        assert plan.held() == ()
        assert link.a.ends() == [(request, Status.OP_FAILED)]
        assert link.post((0, 0, 8))[0] == Status.PEER_FAILED

    def test_a_close_forgets_what_is_held(self, link, plan) -> None:
        plan.add(Hold())
        link.write((0, 0, 64))
        link.ops.close(link.a.session)
        assert plan.held() == ()

    def test_a_refused_fence_stops_posts(self, link, plan) -> None:
        plan.refuse_fences(times=1)
        assert link.a.fence() == Status.NOT_FENCED
        assert link.post((0, 0, 8))[0] == Status.PEER_FAILED
        assert link.a.fence() == Status.OK

    def test_requests_keep_handles_of_their_own(self, link, plan) -> None:
        plan.add(Fail(), skip=1)
        requests = [link.write((0, 0, 8)) for _ in range(3)]
        assert len(set(requests)) == 3
        assert sorted(link.a.ends()) == sorted(
            zip(requests, [Status.OK, Status.OP_FAILED, Status.OK])
        )

    def test_completions_wait_for_room(self, link, plan) -> None:
        plan.add(Fail(), times=None)
        requests = [link.write((0, 0, 8)) for _ in range(5)]
        seen = [request for _ in range(3) for request, _, _ in link.a.poll(room=2)]
        assert seen == requests
