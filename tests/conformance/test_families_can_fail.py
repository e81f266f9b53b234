"""The kit itself, the slow groups: a table that breaks one thing fails the case on it."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from kvxfer.conformance import Verdict, check_transport, far_pair_maker, pair_maker, transport_cases
from kvxfer.conformance.cases import transport_life
from kvxfer.status import Status
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import TransportOps

Breaks = Callable[[TransportOps], TransportOps]


def judge(ops: TransportOps, address: str) -> Verdict:
    report = check_transport(pair_maker(ops), only=[address], deadline_s=0.3, settle_s=0.0)
    return report.results[0].verdict


def changed_post(change) -> Breaks:
    """A table whose post_write and post_read go through `change(columns, notify)`."""

    def breaks(ops: TransportOps) -> TransportOps:
        def slot(call):
            def post(session, peer, local, remote, length, notify):
                if isinstance(length, np.ndarray):
                    (local, remote, length), notify = change((local, remote, length), notify)
                return call(session, peer, local, remote, length, notify)

            return post

        return attrs.evolve(ops, post_write=slot(ops.post_write), post_read=slot(ops.post_read))

    return breaks


def now_and_then_early(ops: TransportOps) -> TransportOps:
    count = itertools.count(1)

    def post_write(session, peer, local, remote, length, notify):
        early = notify is not None and next(count) % 301 == 0
        answer = ops.post_write(session, peer, local, remote, length, None if early else notify)
        if early:
            ops.send_notification(session, peer, notify)
        return answer

    return attrs.evolve(ops, post_write=post_write)


def needs_the_target(ops: TransportOps) -> TransportOps:
    """A session gets on with its writes only after another one has polled."""
    waiting = set()

    def post_write(session, *args):
        waiting.add(session)
        return ops.post_write(session, *args)

    def poll(session, records):
        waiting.intersection_update({session})
        return (Status.OK, 0) if session in waiting else ops.poll(session, records)

    return attrs.evolve(ops, post_write=post_write, poll=poll)


def reads_early(ops: TransportOps) -> TransportOps:
    """Every 100th read is said to be done and is carried out at the next poll."""
    count, late = itertools.count(1), []

    def post_read(session, peer, local, remote, length, notify):
        if next(count) % 100:
            return ops.post_read(session, peer, local, remote, length, notify)
        late.append((session, peer, local, remote, length, None))
        return ops.post_read(session, peer, local, local * 0 + remote, length // 2, notify)

    return attrs.evolve(ops, post_read=post_read)


def loses_a_completion(ops: TransportOps) -> TransportOps:
    count = itertools.count(1)

    def poll(session, records):
        status, filled = ops.poll(session, records)
        if status == Status.OK:
            kept = [one for one in records[:filled].tolist() if next(count) % 1000]
            records[: len(kept)] = kept
            return status, len(kept)
        return status, filled

    return attrs.evolve(ops, poll=poll)


def writes_again_later(ops: TransportOps) -> TransportOps:
    """Bytes of a write come once more at each later poll, as a network that repeats."""
    sent = []

    def post_write(session, peer, local, remote, length, notify):
        answer = ops.post_write(session, peer, local, remote, length, notify)
        if answer[0] == Status.OK and isinstance(length, np.ndarray) and len(length) == 1:
            sent.append((int(remote[0]), ctypes.string_at(int(local[0]), int(length[0]))))
        return answer

    def poll(session, records):
        answer = ops.poll(session, records)
        for base, data in sent:
            ctypes.memmove(base, data, len(data))
        return answer

    return attrs.evolve(ops, post_write=post_write, poll=poll)


def notifies_what_was_not_asked(ops: TransportOps) -> TransportOps:
    def post_write(session, peer, local, remote, length, notify):
        ops.send_notification(session, peer, b"stray")
        return ops.post_write(session, peer, local, remote, length, notify)

    return attrs.evolve(ops, post_write=post_write)


def keeps(slot: str, resource: Callable[[], object]) -> Breaks:
    """A table that keeps something for ever at each call of `slot`."""

    def breaks(ops: TransportOps) -> TransportOps:
        kept, call = [], getattr(ops, slot)

        def leaking(*args):
            kept.append(resource())
            return call(*args)

        return attrs.evolve(ops, **{slot: leaking})

    return breaks


def mixes_peers_up(ops: TransportOps) -> TransportOps:
    peers = []

    def peer_create(session):
        status, peer, blob = ops.peer_create(session)
        peers.append(peer)
        return status, peer, blob

    def poll_notifications(session, count_max):
        status, taken = ops.poll_notifications(session, count_max)
        if len(peers) > 100:
            taken = [(peer % 32 + 1, payload) for peer, payload in taken]
        return status, taken

    return attrs.evolve(ops, peer_create=peer_create, poll_notifications=poll_notifications)


def does_not_close_while_busy(ops: TransportOps) -> TransportOps:
    busy = set()

    def post_write(session, *args):
        busy.add(session)
        return ops.post_write(session, *args)

    def close(session):
        return Status.SESSION_FAILED if session in busy else ops.close(session)

    return attrs.evolve(ops, post_write=post_write, close=close)


def writes_after_close(ops: TransportOps) -> TransportOps:
    """The promise CLOSE_FENCES is not kept: the other end's next poll still writes."""
    late = []

    def post_write(session, peer, local, remote, length, notify):
        answer = ops.post_write(session, peer, local, remote, length, notify)
        if answer[0] == Status.OK:
            late.append((int(remote[0]), ctypes.string_at(int(local[0]), 4096)))
        return answer

    def poll(session, records):
        for base, data in late:
            ctypes.memmove(base, data, len(data))
        return ops.poll(session, records)

    return attrs.evolve(ops, post_write=post_write, poll=poll)


def drops_all_registrations_of_the_memory(ops: TransportOps) -> TransportOps:
    bases = {}

    def register_region(session, memory):
        status, region = ops.register_region(session, memory)
        if status == Status.OK:
            bases[session, region] = memory.base
        return status, region

    def deregister_region(session, region):
        status = ops.deregister_region(session, region)
        base = bases.pop((session, region), None) if isinstance(region, int) else None
        for (of, other), start in list(bases.items()):
            if of == session and start == base:
                ops.deregister_region(session, other)
        return status

    return attrs.evolve(ops, register_region=register_region, deregister_region=deregister_region)


def fails_reads_late(ops: TransportOps) -> TransportOps:
    def post_read(*args):
        status, request = ops.post_read(*args)
        return (Status.OP_FAILED if status == Status.REGION_BOUNDS else status), request

    return attrs.evolve(ops, post_read=post_read)


def loses_notifications_in_a_flood(ops: TransportOps) -> TransportOps:
    count = itertools.count(1)

    def send_notification(session, peer, payload):
        if next(count) % 700 == 0:
            return Status.OK
        return ops.send_notification(session, peer, payload)

    return attrs.evolve(ops, send_notification=send_notification)


def refuses_itself(ops: TransportOps) -> TransportOps:
    blobs = {}

    def peer_create(session):
        status, peer, blob = ops.peer_create(session)
        blobs[blob] = session
        return status, peer, blob

    def peer_connect(session, peer, blob):
        own = isinstance(blob, bytes) and blobs.get(blob) == session
        return Status.PEER_BLOB if own else ops.peer_connect(session, peer, blob)

    return attrs.evolve(ops, peer_create=peer_create, peer_connect=peer_connect)


def forgets_a_long_list_s_end(columns, notify):
    many = len(columns[2]) > 100_000
    return (tuple(column[:-1] for column in columns) if many else columns), notify


def cuts_large_ranges(columns, notify):
    local, remote, length = columns
    return (local, remote, np.minimum(length, np.uint64((32 << 20) - 1))), notify


def aligns_to_eight(columns, notify):
    local, remote, length = columns
    return (local // np.uint64(8) * np.uint64(8), remote, length), notify


def _descriptor() -> int:
    return os.dup(0)


BROKEN: list[tuple[str, Breaks]] = [
    ("T4.3", keeps("register_region", _descriptor)),
    ("T4.3", keeps("post_write", lambda: np.ones(1 << 20, dtype=np.uint8))),
    ("T4.4", keeps("peer_create", _descriptor)),
    ("T4.5", keeps("open", _descriptor)),
    ("T5.7", loses_a_completion),
    ("T5.8", notifies_what_was_not_asked),
    ("T5.9", writes_again_later),
    ("T5.10", writes_again_later),
    ("T5.11", notifies_what_was_not_asked),
    ("T6.7", now_and_then_early),
    ("T6.9", needs_the_target),
    ("T6.10", reads_early),
    ("T7.4", does_not_close_while_busy),
    ("T7.5", writes_after_close),
    ("T9.10", changed_post(forgets_a_long_list_s_end)),
    ("T9.11", changed_post(cuts_large_ranges)),
    ("T9.12", changed_post(aligns_to_eight)),
    ("T9.13", refuses_itself),
    ("T10.7", mixes_peers_up),
    ("T11.9", drops_all_registrations_of_the_memory),
    ("T11.11", fails_reads_late),
    ("T12.4", loses_notifications_in_a_flood),
]


@pytest.mark.parametrize(
    ("address", "breaks"), BROKEN, ids=[f"{n}-{e[0]}" for n, e in enumerate(BROKEN)]
)
def test_a_broken_table_fails_its_case(address: str, breaks: Breaks) -> None:
    assert judge(breaks(make_ops(Hub())), address) is Verdict.FAIL


def test_a_connect_that_takes_its_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_life, "_CONNECT_S", 0.0)
    assert judge(make_ops(Hub()), "T2.3") is Verdict.FAIL


def test_every_class_of_failure_of_the_public_systems_has_a_case() -> None:
    covered = {letter for case in transport_cases() for letter in case.failures}
    assert covered == set("ABCKMPQ")


# Between two processes, over the sample in C: what breaks is this side's table.


def says_ok_of_the_dead(ops: TransportOps) -> TransportOps:
    def poll(session, records):
        status, count = ops.poll(session, records)
        records["status"][:count] = Status.OK
        return status, count

    given = itertools.count(1 << 40)

    def post_write(session, peer, local, remote, length, notify):
        status, request = ops.post_write(session, peer, local, remote, length, notify)
        if status == Status.PEER_FAILED:
            posted.append((next(given), peer, Status.OK))
            return Status.OK, posted[-1][0]
        return status, request

    posted: list[tuple[int, int, int]] = []

    def poll_both(session, records):
        status, count = poll(session, records)
        if count == 0 and posted and status == Status.OK:
            records[0] = posted.pop()
            return status, 1
        return status, count

    return attrs.evolve(ops, poll=poll_both, post_write=post_write)


def never_ends_what_failed(ops: TransportOps) -> TransportOps:
    given = itertools.count(1 << 40)

    def post_write(session, peer, local, remote, length, notify):
        status, request = ops.post_write(session, peer, local, remote, length, notify)
        return (Status.OK, next(given)) if status == Status.PEER_FAILED else (status, request)

    def poll(session, records):
        status, count = ops.poll(session, records)
        kept = [one for one in records[:count].tolist() if one[2] == Status.OK]
        records[: len(kept)] = kept
        return status, len(kept)

    return attrs.evolve(ops, post_write=post_write, poll=poll)


def claims_every_fence(ops: TransportOps) -> TransportOps:
    def fence_peer(session, peer):
        return Status.OK

    return attrs.evolve(ops, fence_peer=fence_peer)


def waits_for_the_peer(ops: TransportOps) -> TransportOps:
    """A post goes through only once the peer has taken everything."""
    import time

    def post_write(*args):
        answer = ops.post_write(*args)
        time.sleep(2.1 if args[-1] is not None and args[-1].startswith(b"stopped") else 0)
        return answer

    return attrs.evolve(ops, post_write=post_write)


def loses_every_other_notification(ops: TransportOps) -> TransportOps:
    count = itertools.count()

    def send_notification(session, peer, payload):
        return ops.send_notification(session, peer, payload) if next(count) % 2 == 0 else Status.OK

    return attrs.evolve(ops, send_notification=send_notification)


FAR_BROKEN: list[tuple[str, Breaks]] = [
    ("T6.8", now_and_then_early),
    ("T7.6", says_ok_of_the_dead),
    ("T7.7", never_ends_what_failed),
    ("T7.8", says_ok_of_the_dead),
    ("T7.9", waits_for_the_peer),
    ("T7.10", never_ends_what_failed),
    ("T7.11", says_ok_of_the_dead),
    ("T7.12", waits_for_the_peer),
    ("T8.7", claims_every_fence),
    ("T12.5", loses_every_other_notification),
]


@pytest.mark.parametrize(("address", "breaks"), FAR_BROKEN, ids=[entry[0] for entry in FAR_BROKEN])
def test_a_broken_table_fails_its_case_between_two_processes(
    address: str, breaks: Breaks, cma_library: str
) -> None:
    options = {"library": cma_library}
    report = check_transport(
        pair_maker(make_ops(Hub())),
        make_far_pair=far_pair_maker("capi", options=lambda _end: options, wrap=breaks),
        only=[address],
        deadline_s=1.0,
    )
    assert report.results[0].verdict is Verdict.FAIL, report.text()


def test_every_slow_case_is_shown_to_fail() -> None:
    shown = {address for address, _ in (*BROKEN, *FAR_BROKEN)} | {"T2.3"}
    # The fence of T8.6 is proven by the death of a process: claiming it is no lie there.
    groups = {"load", "sizes", "failures", "life", "death"}
    slow = {c.address for c in transport_cases() if c.body.__module__.rpartition("_")[2] in groups}
    assert slow - shown == {"T8.6"}
