"""The kit itself: a table that breaks one rule fails the cases on that rule and no others."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from kvxfer.conformance import Verdict, check_transport, pair_maker, transport_cases
from kvxfer.errors import BadValue
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import without
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import Strided, TransportOps
from kvxfer.transport.stubs import stub_ops


def notifies_before_the_bytes(ops: TransportOps) -> TransportOps:
    def post_write(session, peer, local, remote, length, notify):
        answer = ops.post_write(session, peer, local, remote, length, None)
        if answer[0] == Status.OK and notify is not None:
            ops.send_notification(session, peer, notify)
        return answer

    return attrs.evolve(ops, post_write=post_write)


def completes_twice(ops: TransportOps) -> TransportOps:
    ended = {}

    def poll(session, records):
        status, count = ops.poll(session, records)
        if count:
            ended[session] = records[count - 1].copy()
        elif status == Status.OK and session in ended and len(records):
            records[0] = ended.pop(session)
            return status, 1
        return status, count

    return attrs.evolve(ops, poll=poll)


def lies_about_a_flag(ops: TransportOps) -> TransportOps:
    return attrs.evolve(ops, wakeup_fd=stub_ops("x").wakeup_fd)


def lets_an_exception_out(ops: TransportOps) -> TransportOps:
    def peer_connect(session, peer, blob):
        status = ops.peer_connect(session, peer, blob)
        if status == Status.PEER_BLOB:
            raise ValueError("bad blob")
        return status

    return attrs.evolve(ops, peer_connect=peer_connect)


def pretends_to_fence(ops: TransportOps) -> TransportOps:
    def fence_peer(session, peer):
        known = ops.peer_connect(session, peer, b"") == Status.PEER_BLOB
        return Status.OK if known else ops.fence_peer(session, peer)

    return attrs.evolve(ops, fence_peer=fence_peer)


def never_fences_and_goes_on(ops: TransportOps) -> TransportOps:
    def fence_peer(session, peer):
        known = ops.peer_connect(session, peer, b"") == Status.PEER_BLOB
        return Status.NOT_FENCED if known else ops.fence_peer(session, peer)

    return attrs.evolve(ops, fence_peer=fence_peer)


def cuts_notifications(ops: TransportOps) -> TransportOps:
    def poll_notifications(session, count_max):
        status, taken = ops.poll_notifications(session, count_max)
        return status, [(peer, payload[:1024]) for peer, payload in taken]

    return attrs.evolve(ops, poll_notifications=poll_notifications)


def ends_notifications_at_zero(ops: TransportOps) -> TransportOps:
    def poll_notifications(session, count_max):
        status, taken = ops.poll_notifications(session, count_max)
        return status, [(peer, payload.split(b"\0")[0]) for peer, payload in taken]

    return attrs.evolve(ops, poll_notifications=poll_notifications)


def drops_the_last_range_of_many(ops: TransportOps) -> TransportOps:
    def post_write(session, peer, local, remote, length, notify):
        if isinstance(length, np.ndarray) and len(length) >= 4096:
            return ops.post_write(session, peer, local[:-1], remote[:-1], length[:-1], notify)
        return ops.post_write(session, peer, local, remote, length, notify)

    return attrs.evolve(ops, post_write=post_write)


def writes_the_good_part_of_a_bad_post(ops: TransportOps) -> TransportOps:
    def post_write(session, peer, local, remote, length, notify):
        answer = ops.post_write(session, peer, local, remote, length, notify)
        if answer[0] == Status.REGION_BOUNDS and len(length) > 1:
            ops.post_write(session, peer, local[:-1], remote[:-1], length[:-1], None)
        return answer

    return attrs.evolve(ops, post_write=post_write)


def calls_a_bad_blob_invalid(ops: TransportOps) -> TransportOps:
    def peer_connect(session, peer, blob):
        status = ops.peer_connect(session, peer, blob)
        return Status.OP_INVALID if status == Status.PEER_BLOB else status

    return attrs.evolve(ops, peer_connect=peer_connect)


def closes_twice(ops: TransportOps) -> TransportOps:
    seen = set()

    def open_(options):
        status, session = ops.open(options)
        seen.add(session)
        return status, session

    def close(session):
        status = ops.close(session)
        return Status.OK if status == Status.CLOSED and session in seen else status

    return attrs.evolve(ops, open=open_, close=close)


def gives_ended_requests_again(ops: TransportOps) -> TransportOps:
    shown, free = {}, deque(range(1, 65))

    def post_write(session, peer, local, remote, length, notify):
        status, request = ops.post_write(session, peer, local, remote, length, notify)
        if status == Status.OK:
            shown[session, request] = request = free.popleft()
        return status, request

    def poll(session, records):
        status, count = ops.poll(session, records)
        for at in range(count):
            number = shown.pop((session, int(records["request"][at])), None)
            if number is not None:
                records["request"][at] = number
                free.append(number)
        return status, count

    return attrs.evolve(ops, post_write=post_write, poll=poll)


def says_failed_where_it_refuses(ops: TransportOps) -> TransportOps:
    def post_write(session, peer, local, remote, length, notify):
        status, request = ops.post_write(session, peer, local, remote, length, notify)
        return (Status.OP_FAILED if status == Status.REGION_BOUNDS else status), request

    return attrs.evolve(ops, post_write=post_write)


def keeps_a_revoked_region(ops: TransportOps) -> TransportOps:
    regions = set()

    def register_region(session, memory):
        status, region = ops.register_region(session, memory)
        regions.add((session, region))
        return status, region

    def revoke_region(session, region):
        if ops.caps(session) and any(region == known for _, known in regions):
            return Status.OK
        return ops.revoke_region(session, region)

    return attrs.evolve(ops, register_region=register_region, revoke_region=revoke_region)


def forgets_to_wake(ops: TransportOps) -> TransportOps:
    other = {}

    def wakeup_fd(session):
        if not ops.caps(session):
            return ops.wakeup_fd(session)
        # The descriptor of a session that nothing ever happens to.
        other.setdefault(session, ops.open({})[1])
        return ops.wakeup_fd(other[session])

    def close(session):
        if session in other:
            ops.close(other.pop(session))
        return ops.close(session)

    return attrs.evolve(ops, wakeup_fd=wakeup_fd, close=close)


def cancels_and_notifies_all_the_same(ops: TransportOps) -> TransportOps:
    posted = {}

    def post_write(session, peer, local, remote, length, notify):
        status, request = ops.post_write(session, peer, local, remote, length, notify)
        if status == Status.OK:
            posted[session, request] = (peer, notify)
        return status, request

    def cancel(session, request):
        status = ops.cancel(session, request)
        peer, notify = (
            posted.pop((session, request), (0, None)) if status == Status.OK else (0, None)
        )
        if notify is not None:
            ops.send_notification(session, peer, notify)
        return status

    return attrs.evolve(ops, post_write=post_write, cancel=cancel)


def forgets_a_cancelled_request(ops: TransportOps) -> TransportOps:
    gone = set()

    def cancel(session, request):
        status = ops.cancel(session, request)
        if status == Status.OK:
            gone.add((session, request))
        return status

    def poll(session, records):
        status, count = ops.poll(session, records)
        if status != Status.OK:
            return status, 0
        kept = [r for r in records[:count].tolist() if (session, r[0]) not in gone]
        for at, record in enumerate(kept):
            records[at] = record
        return status, len(kept)

    return attrs.evolve(ops, cancel=cancel, poll=poll)


def cancels_what_has_ended(ops: TransportOps) -> TransportOps:
    def cancel(session, request):
        status = ops.cancel(session, request)
        known = isinstance(request, int) and 0 < request < 1 << 40 and ops.caps(session)
        return Status.OK if known and status == Status.OP_INVALID else status

    return attrs.evolve(ops, cancel=cancel)


def allocates_used_memory(ops: TransportOps) -> TransportOps:
    def allocate_region(session, length, kind, device):
        status, region, base = ops.allocate_region(session, length, kind, device)
        if status == Status.OK:
            ctypes.memset(base, 7, 16)
        return status, region, base

    return attrs.evolve(ops, allocate_region=allocate_region)


def allocates_where_nothing_is_registered(ops: TransportOps) -> TransportOps:
    kept = []

    def allocate_region(session, length, kind, device):
        status, region, base = ops.allocate_region(session, length, kind, device)
        if status == Status.OK:
            kept.append(np.zeros(length, dtype=np.uint8))
            base = kept[-1].ctypes.data
        return status, region, base

    return attrs.evolve(ops, allocate_region=allocate_region)


def takes_the_local_stride_for_both(ops: TransportOps) -> TransportOps:
    def post_strided(session, peer, direction, columns, notify):
        if isinstance(columns, Strided):
            columns = attrs.evolve(columns, remote_stride=columns.local_stride)
        return ops.post_strided(session, peer, direction, columns, notify)

    return attrs.evolve(ops, post_strided=post_strided)


def checks_only_the_first_of_a_stride(ops: TransportOps) -> TransportOps:
    def post_strided(session, peer, direction, columns, notify):
        status, request = ops.post_strided(session, peer, direction, columns, notify)
        if status == Status.REGION_BOUNDS:
            first = attrs.evolve(columns, count=np.ones_like(columns.count))
            return ops.post_strided(session, peer, direction, first, notify)
        return status, request

    return attrs.evolve(ops, post_strided=post_strided)


FAMILIES = {"load", "sizes", "failures", "life", "death"}
"""Groups of cases that take long; tests/conformance/test_families_can_fail.py has their tables."""
QUICK = [
    case.address
    for case in transport_cases()
    if case.body.__module__.rpartition("_")[2] not in FAMILIES
]


BROKEN: list[tuple[Callable[[TransportOps], TransportOps], set[str]]] = [
    (notifies_before_the_bytes, {"T6.1", "T12.3", "T13.2", "T13.3"}),
    (completes_twice, {"T5.1", "T11.8", "T13.1", "T13.2"}),
    (lies_about_a_flag, {"T1.3", "T2.2"}),
    (lets_an_exception_out, {"T10.2"}),
    (pretends_to_fence, {"T7.3", "T8.1", "T8.2"}),
    (never_fences_and_goes_on, {"T8.2"}),
    (cuts_notifications, {"T12.1", "T12.3"}),
    (ends_notifications_at_zero, {"T12.1"}),
    (drops_the_last_range_of_many, {"T9.2"}),
    (writes_the_good_part_of_a_bad_post, {"T5.3"}),
    (calls_a_bad_blob_invalid, {"T10.2"}),
    (closes_twice, {"T1.2"}),
    (gives_ended_requests_again, {"T5.1", "T13.2", "T13.3", "T13.4"}),
    (
        says_failed_where_it_refuses,
        {"T5.3", "T6.6", "T11.1", "T11.2", "T11.3", "T11.9", "T14.2"},
    ),
    (keeps_a_revoked_region, {"T11.7"}),
    (forgets_to_wake, {"T2.2"}),
    (cancels_and_notifies_all_the_same, {"T13.2", "T13.3"}),
    (forgets_a_cancelled_request, {"T13.2", "T13.3", "T13.4"}),
    (cancels_what_has_ended, {"T13.1"}),
    (allocates_used_memory, {"T14.1"}),
    (allocates_where_nothing_is_registered, {"T14.1", "T14.2"}),
    (takes_the_local_stride_for_both, {"T15.1", "T15.2", "T15.3", "T15.4"}),
    (checks_only_the_first_of_a_stride, {"T15.3"}),
]


@pytest.mark.parametrize(("breaks", "wanted"), BROKEN, ids=[entry[0].__name__ for entry in BROKEN])
def test_a_broken_table_fails_exactly_the_cases_on_its_rule(breaks, wanted) -> None:
    report = check_transport(
        pair_maker(breaks(make_ops(Hub()))), only=QUICK, deadline_s=0.2, settle_s=0.0
    )
    assert set(report.failed) == wanted, report.text()
    assert not report.ok


def test_a_case_for_a_capability_that_is_not_declared_is_unsupported() -> None:
    lacking = Caps.READ | Caps.FENCE_PEER | Caps.REVOKE_REGION | Caps.WAKEUP_FD
    ops = without(make_ops(Hub()), lacking)
    report = check_transport(pair_maker(ops), only=QUICK, deadline_s=0.2, settle_s=0.0)
    unsupported = {r.address for r in report.results if r.verdict is Verdict.UNSUPPORTED}
    lacking |= Caps.CROSS_PROCESS
    wanted = {case.address for case in transport_cases() if case.needs & lacking} & set(QUICK)
    assert wanted < unsupported
    # These ask about fences too, and find out when they are told UNSUPPORTED.
    assert unsupported - wanted == {"T7.3", "T8.2", "T8.3", "T8.4", "T8.5"}
    assert report.ok


def test_cases_that_need_a_third_endpoint_are_unsupported_without_one() -> None:
    make_pair = pair_maker(make_ops(Hub()))
    report = check_transport(
        lambda: attrs.evolve(make_pair(), third=None), only=["T8.4", "T10.6"], settle_s=0.0
    )
    assert [r.verdict for r in report.results] == [Verdict.UNSUPPORTED] * 2
    assert not report.ok


def test_a_pair_that_cannot_be_made_is_a_failure_of_every_case() -> None:
    report = check_transport(pair_maker(stub_ops("empty")), settle_s=0.0)
    assert set(report.failed) == {case.address for case in transport_cases() if not case.far}
    assert "make_pair" in report.results[0].detail
    assert "UNSUPPORTED" in report.results[0].detail


def test_an_unknown_case_address_is_refused_by_name() -> None:
    with pytest.raises(BadValue, match=r"T99\.9"):
        check_transport(pair_maker(make_ops(Hub())), only=["T1.1", "T99.9"])


def test_every_rule_of_the_table_that_a_kit_can_judge_has_a_case() -> None:
    rules = {int(case.address[1:].split(".")[0]) for case in transport_cases()}
    # Rule 3, one owner thread, binds the caller; `hooks.checked` watches it.
    assert rules == set(range(1, 16)) - {3}


def test_cases_run_in_the_order_of_the_rules_and_each_has_a_requirement() -> None:
    cases = transport_cases()
    numbers = [tuple(int(part) for part in case.address[1:].split(".")) for case in cases]
    assert numbers == sorted(set(numbers))
    assert all(case.requirement for case in cases)
