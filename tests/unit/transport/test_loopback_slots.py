"""Strided posts, cancel and allocated memory: the loopback, and the wrappers around it."""

from __future__ import annotations

import ctypes

import attrs
import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport import loopback_hub
from kvxfer.transport.hooks import ContractBroken, Drop, Fail, FaultPlan, Hold, checked, faulty
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import Direction, Strided
from kvxfer.transport.ranges import STRIDED_RANGES_MAX, expand_strided, strided_fault


def columns(*entries: tuple[int, ...]) -> Strided:
    table = np.array(entries, dtype=np.uint64)
    names = [field.name for field in attrs.fields(Strided)]
    return Strided(**{name: table[:, at].copy() for at, name in enumerate(names)})


def test_a_strided_post_is_its_ranges_written_out() -> None:
    local, remote, length = expand_strided(columns((10, 100, 4, 3, 8, 16), (50, 60, 2, 1, 9, 9)))
    assert local.tolist() == [10, 18, 26, 50]
    assert remote.tolist() == [100, 116, 132, 60]
    assert length.tolist() == [4, 4, 4, 2]
    assert {column.dtype for column in (local, remote, length)} == {np.dtype(np.uint64)}


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ((1, 1, 1, 0, 1, 1), "count"),
        ((1, 1, 0, 1, 1, 1), "length"),
        ((1, 1, 1, STRIDED_RANGES_MAX + 1, 0, 0), "sums up"),
        ((1, 1, 1, 1 << 63, 0, 0), "sums up"),
        ((2, 1, 1, 3, (1 << 63) - 1, 0), "local_stride"),
        ((1, 2, 1, 2, 0, (1 << 64) - 2), "remote_stride"),
    ],
)
def test_columns_that_cannot_be_meant_are_named(entry, text) -> None:
    assert text in strided_fault(columns((1, 1, 1, 1, 0, 0), entry))


def test_the_last_address_may_be_the_highest() -> None:
    assert strided_fault(columns((1, 2, 1, 3, (1 << 63) - 1, 0))) == ""
    assert strided_fault(columns((1, 2, 1, 1, (1 << 64) - 1, (1 << 64) - 1))) == ""


class Strides:
    """One strided post over a link: 4 pieces of 8 bytes, 16 apart, packed at the target."""

    def __init__(self, link) -> None:
        self.link = link
        link.a.bytes[:] = np.arange(len(link.a.bytes)) % 251
        self.entry = columns((link.a.base, link.b.base, 8, 4, 16, 8))

    def post(self, notify=None) -> int:
        a = self.link.a
        status, request = self.link.ops.post_strided(
            a.session, a.peer, Direction.WRITE, self.entry, notify
        )
        assert status == Status.OK, self.link.ops.last_error(a.session)
        return request

    def arrived(self) -> int:
        wanted = np.concatenate([self.link.a.bytes[at : at + 8] for at in range(0, 64, 16)])
        same = self.link.b.bytes[:32] == wanted
        return int(np.argmin(same)) if not same.all() else 32


def test_a_strided_write(link) -> None:
    strides = Strides(link)
    request = strides.post(b"n")
    assert link.a.ends() == [(request, Status.OK)]
    assert strides.arrived() == 32
    assert link.b.notices() == [b"n"]
    assert not link.b.bytes[32:].any()


@pytest.mark.parametrize("kept", [0, 1, 11, 32])
def test_a_planned_failure_of_a_strided_write(make_link, kept) -> None:
    plan = FaultPlan()
    strides = Strides(make_link(faulty(make_ops(Hub()), plan)))
    strides.link.a.bytes[:] += 1
    plan.add(Fail(after_bytes=kept))
    request = strides.post(b"n")
    assert strides.link.a.ends() == [(request, Status.OP_FAILED)]
    assert strides.arrived() == kept
    assert strides.link.b.notices() == []


def test_a_strided_write_whose_data_is_lost(make_link) -> None:
    plan = FaultPlan()
    strides = Strides(make_link(faulty(make_ops(Hub()), plan)))
    plan.add(Drop(notification=False))
    request = strides.post(b"n")
    assert strides.link.a.ends() == [(request, Status.OK)]
    assert not strides.link.b.bytes.any()
    assert strides.link.b.notices() == [b"n"]


def test_a_direction_that_is_none_is_refused(link) -> None:
    strides = Strides(link)
    a = link.a
    for direction in (0, 3, None):
        answer = link.ops.post_strided(a.session, a.peer, direction, strides.entry, None)
        assert answer == (Status.OP_INVALID, 0)


def cancel(link, request) -> Status:
    return link.ops.cancel(link.a.session, request)


def test_cancel_before_anything_left(link) -> None:
    link.a.bytes[:] = 7
    request, other = link.write((0, 0, 64), notify=b"n"), link.write((0, 64, 64))
    assert cancel(link, request) == Status.OK
    assert link.a.ends() == [(request, Status.OP_FAILED), (other, Status.OK)]
    assert link.b.notices() == []
    assert not link.b.bytes[:64].any()
    assert link.b.bytes[64:128].all()
    assert cancel(link, request) == Status.OP_INVALID


def test_cancel_inside_an_operation(link, monkeypatch) -> None:
    monkeypatch.setattr(loopback_hub, "POLL_BYTES_MAX", 1000)
    link.a.bytes[:] = 7
    request = link.write((0, 0, 4096), notify=b"n")
    assert link.a.ends() == []
    assert cancel(link, request) == Status.OK
    assert link.a.ends() == [(request, Status.OP_FAILED)]
    assert int((link.b.bytes == 7).sum()) == 1000
    assert link.b.notices() == []


def test_cancel_takes_nothing_back_from_a_slow_network(make_link) -> None:
    plan = FaultPlan()
    link = make_link(a={"faults": plan})
    link.a.bytes[:] = 7
    plan.add(Hold())
    request = link.write((0, 0, 64), notify=b"n")
    assert cancel(link, request) == Status.OK
    assert link.a.ends() == []
    plan.release_all()
    assert link.a.ends() == [(request, Status.OK)]
    assert link.b.notices() == [b"n"]


def test_cancel_of_what_the_wrapper_has_not_given_to_the_table(make_link) -> None:
    plan = FaultPlan()
    link = make_link(faulty(make_ops(Hub()), plan))
    link.a.bytes[:] = 7
    plan.add(Hold())
    held, given = link.write((0, 0, 64), notify=b"n"), link.write((0, 64, 64), notify=b"m")
    assert cancel(link, held) == cancel(link, given) == Status.OK
    assert plan.held() == ()
    assert sorted(link.a.ends()) == [(held, Status.OP_FAILED), (given, Status.OP_FAILED)]
    assert cancel(link, held) == cancel(link, given) == Status.OP_INVALID
    assert cancel(link, 99) == Status.OP_INVALID
    assert not link.b.bytes.any()
    assert link.b.notices() == []


def test_a_cancelled_request_counts_until_it_is_polled(link) -> None:
    request = link.write((0, 0, 64))
    assert cancel(link, request) == cancel(link, request) == Status.OK
    assert link.a.ends() == [(request, Status.OP_FAILED)]


def allocate(link, length=4096, kind="dram", device=0):
    return link.ops.allocate_region(link.b.session, length, kind, device)


def test_allocated_memory_is_used_as_any_other(link) -> None:
    link.a.bytes[:] = 7
    status, region, base = allocate(link)
    assert status == Status.OK
    assert base % 4096 == 0
    assert ctypes.string_at(base, 4096) == bytes(4096)
    # A link knows the regions that were there when its blob was made.
    _, ours, blob = link.ops.peer_create(link.a.session)
    _, theirs, other = link.ops.peer_create(link.b.session)
    assert link.ops.peer_connect(link.a.session, ours, other) == Status.OK
    assert link.ops.peer_connect(link.b.session, theirs, blob) == Status.OK
    column = [np.array([value], dtype=np.uint64) for value in (link.a.base, base, 4096)]
    status, request = link.ops.post_write(link.a.session, ours, *column, None)
    assert status == Status.OK
    assert link.a.ends() == [(request, Status.OK)]
    assert ctypes.string_at(base, 4096) == b"\x07" * 4096
    assert link.ops.deregister_region(link.b.session, region) == Status.OK
    assert link.ops.post_write(link.a.session, ours, *column, None)[0] == Status.REGION_STALE


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((0,), Status.OP_INVALID),
        ((-5,), Status.OP_INVALID),
        ((4096, "cuda"), Status.OP_INVALID),
        ((4096, "dram", 1), Status.OP_INVALID),
        ((1 << 62,), Status.NO_RESOURCE),
        ((1 << 80,), Status.NO_RESOURCE),
    ],
)
def test_what_cannot_be_allocated(link, arguments, status) -> None:
    assert allocate(link, *arguments) == (status, 0, 0)
    assert link.ops.last_error(link.b.session)


class TestChecked:
    def test_a_cancel_of_an_open_request_that_is_called_invalid(self, make_link) -> None:
        ops = attrs.evolve(make_ops(Hub()), cancel=lambda session, request: Status.OP_INVALID)
        link = make_link(checked(ops))
        request = link.write((0, 0, 8))
        with pytest.raises(ContractBroken, match="is open") as caught:
            cancel(link, request)
        assert caught.value.rule == 13

    def test_a_cancel_of_nothing_that_is_called_done(self, make_link) -> None:
        ops = attrs.evolve(make_ops(Hub()), cancel=lambda session, request: Status.OK)
        with pytest.raises(ContractBroken, match="not open"):
            cancel(make_link(checked(ops)), 77)

    def test_memory_at_no_address(self, make_link) -> None:
        ops = attrs.evolve(make_ops(Hub()), allocate_region=lambda *args: (Status.OK, 99, 0))
        with pytest.raises(ContractBroken) as caught:
            allocate(make_link(checked(ops)))
        assert caught.value.rule == 14
