"""The loopback beyond what the conformance kit asks of every transport."""

from __future__ import annotations

import gc
import select
import threading
import weakref

import attrs
import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport import loopback_admission, loopback_engine, loopback_hub
from kvxfer.transport.loopback import OPS, make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.loopback_state import Blob
from kvxfer.transport.ops import COMPLETION, Memory

TOKEN = bytes(range(16))


def test_a_write_moves_only_in_the_initiators_poll(link) -> None:
    link.a.bytes[:16] = 7
    request = link.write((0, 100, 16), notify=b"there")
    link.b.poll()
    assert not link.b.bytes.any()
    assert link.b.notices() == []
    assert link.a.poll() == [(request, link.a.peer, Status.OK)]
    assert link.b.bytes.tolist() == [0] * 100 + [7] * 16 + [0] * (4096 - 116)
    assert link.b.notices() == [b"there"]


def test_requests_are_carried_out_in_post_order(link) -> None:
    for value in range(5):
        link.a.bytes[value] = value
        link.write((value, 0, 1), notify=b"%d" % value)
    assert [request for request, _ in link.a.ends()] == sorted(
        request for request in range(1, 100) if request > link.a.peer
    )[:5]
    assert link.b.notices() == [b"0", b"1", b"2", b"3", b"4"]
    assert link.b.bytes[0] == 4


def test_two_hubs_of_one_token_give_the_same_handles_and_blobs(make_link) -> None:
    one, two = make_link(make_ops(Hub(TOKEN))), make_link(make_ops(Hub(TOKEN)))
    for x, y in ((one.a, two.a), (one.b, two.b)):
        assert (x.session, x.region, x.peer, x.blob) == (y.session, y.region, y.peer, y.blob)
    assert one.write((0, 0, 8)) == two.write((0, 0, 8))


def test_two_hubs_cannot_reach_each_other(make_link) -> None:
    one, two = make_link(), make_link()
    _, peer, _ = one.ops.peer_create(one.a.session)
    assert one.ops.peer_connect(one.a.session, peer, two.b.blob) == Status.PEER_BLOB
    assert "another process" in one.ops.last_error(one.a.session)


def test_a_blob_is_versioned(link) -> None:
    _, peer, _ = link.ops.peer_create(link.a.session)
    later = bytearray(link.b.blob)
    later[8] = 2
    assert link.ops.peer_connect(link.a.session, peer, bytes(later)) == Status.PEER_BLOB
    assert "version" in link.ops.last_error(link.a.session)
    assert Blob.decode(link.b.blob)[0] == Blob(
        token=Blob.decode(link.a.blob)[0].token, session=link.b.session, peer=link.b.peer
    )


def test_a_blob_serves_one_link(link) -> None:
    _, other, _ = link.ops.peer_create(link.a.session)
    assert link.ops.peer_connect(link.a.session, other, link.b.blob) == Status.PEER_BLOB
    # Connecting the right one again changes nothing.
    assert link.ops.peer_connect(link.a.session, link.a.peer, link.b.blob) == Status.OK


def test_a_connected_peer_takes_no_second_blob(link) -> None:
    _, _, blob = link.ops.peer_create(link.b.session)
    assert link.ops.peer_connect(link.a.session, link.a.peer, blob) == Status.OP_INVALID


def test_regions_registered_after_the_blob_are_not_in_it(link) -> None:
    later = np.zeros(64, dtype=np.uint8)
    memory = Memory(base=later.ctypes.data, length=64, keepalive=later)
    assert link.ops.register_region(link.b.session, memory)[0] == Status.OK
    remote = np.array([later.ctypes.data], dtype=np.uint64)
    local, _, length = link.columns((0, 0, 64))
    status, _ = link.ops.post_write(link.a.session, link.a.peer, local, remote, length, None)
    assert status == Status.REGION_BOUNDS
    assert "remote_addr[0]" in link.ops.last_error(link.a.session)


def test_a_dropped_region_of_the_peer_is_stale(link) -> None:
    assert link.ops.deregister_region(link.b.session, link.b.region) == Status.OK
    assert link.post((0, 0, 8))[0] == Status.REGION_STALE


def test_region_handles_are_stale_or_unknown(link) -> None:
    assert link.ops.deregister_region(link.a.session, link.a.region) == Status.OK
    assert link.ops.deregister_region(link.a.session, link.a.region) == Status.REGION_STALE
    assert link.ops.revoke_region(link.a.session, link.a.region) == Status.REGION_STALE
    assert link.ops.deregister_region(link.a.session, 10**6) == Status.REGION_UNKNOWN
    assert link.post((0, 0, 8))[0] == Status.REGION_UNKNOWN


def test_an_operation_posted_before_its_region_went_fails_quietly(link) -> None:
    link.a.bytes[:] = 9
    request = link.write((0, 0, 4096), notify=b"never")
    assert link.ops.deregister_region(link.b.session, link.b.region) == Status.OK
    assert link.a.ends() == [(request, Status.OP_FAILED)]
    assert not link.b.bytes.any()
    assert link.b.notices() == []


def test_losing_another_region_does_no_harm_to_a_posted_operation(link) -> None:
    other = np.zeros(64, dtype=np.uint8)
    memory = Memory(base=other.ctypes.data, length=64, keepalive=other)
    _, region = link.ops.register_region(link.b.session, memory)
    request = link.write((0, 0, 8))
    link.ops.deregister_region(link.b.session, region)
    assert link.a.ends() == [(request, Status.OK)]


def test_memory_is_let_go_with_its_region(link) -> None:
    held = np.zeros(64, dtype=np.uint8)
    gone = weakref.ref(held)
    memory = Memory(base=held.ctypes.data, length=64, keepalive=held)
    _, region = link.ops.register_region(link.b.session, memory)
    link.ops.peer_create(link.b.session)
    del held, memory
    gc.collect()
    assert gone() is not None
    link.ops.deregister_region(link.b.session, region)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "cuda"}, "kind = 'cuda'"),
        ({"length": 0}, "0 bytes"),
        ({"base": 0}, "at 0"),
        ({"base": (1 << 64) - 8, "length": 8}, "2**64"),
    ],
)
def test_memory_that_cannot_be_registered_is_named(link, changes, says) -> None:
    memory = attrs.evolve(link.a.memory, **changes)
    assert link.ops.register_region(link.a.session, memory) == (Status.OP_INVALID, 0)
    assert says in link.ops.last_error(link.a.session)


def test_unknown_options_are_named() -> None:
    ops = make_ops(Hub())
    assert ops.open({"speed": 9}) == (Status.OP_INVALID, 0)
    assert "speed" in ops.last_error(0)
    assert ops.open({"faults": "many"}) == (Status.OP_INVALID, 0)
    assert "FaultPlan" in ops.last_error(0)


def test_posts_are_refused_when_too_many_requests_wait(link, monkeypatch) -> None:
    monkeypatch.setattr(loopback_admission, "REQUESTS_MAX", 3)
    for _ in range(3):
        link.write((0, 0, 8))
    assert link.post((0, 0, 8))[0] == Status.NO_RESOURCE
    assert len(link.a.poll(room=2)) == 2
    link.write((0, 0, 8))


def test_notifications_are_refused_when_too_many_wait(link, monkeypatch) -> None:
    monkeypatch.setattr(loopback_admission, "INBOX_MAX", 2)
    for _ in range(2):
        assert link.ops.send_notification(link.a.session, link.a.peer, b"x") == Status.OK
    assert link.ops.send_notification(link.a.session, link.a.peer, b"x") == Status.NO_RESOURCE
    assert link.post((0, 0, 8), notify=b"x")[0] == Status.NO_RESOURCE
    assert link.post((0, 0, 8))[0] == Status.OK
    link.b.notices()
    assert link.ops.send_notification(link.a.session, link.a.peer, b"x") == Status.OK


def test_one_poll_moves_a_bounded_number_of_bytes(link, monkeypatch) -> None:
    monkeypatch.setattr(loopback_hub, "POLL_BYTES_MAX", 1000)
    monkeypatch.setattr(loopback_engine, "SLICE_BYTES", 300)
    link.a.bytes[:] = np.arange(4096, dtype=np.uint32).astype(np.uint8)
    request = link.write((0, 2000, 1500), (1500, 0, 1000), (2600, 1100, 100))
    assert link.a.ends() == []
    assert (link.b.bytes != 0).sum() > 990
    assert not link.b.bytes[3000:].any()
    assert link.a.ends() == []
    assert link.a.ends() == [(request, Status.OK)]
    wanted = np.zeros(4096, dtype=np.uint8)
    wanted[2000:3500] = link.a.bytes[:1500]
    wanted[:1000] = link.a.bytes[1500:2500]
    wanted[1100:1200] = link.a.bytes[2600:2700]
    assert (link.b.bytes == wanted).all()


def test_a_peer_that_closed_fails_later_posts_and_the_ones_in_flight(link) -> None:
    request = link.write((0, 0, 8))
    link.ops.close(link.b.session)
    assert link.a.ends() == [(request, Status.OP_FAILED)]
    assert link.post((0, 0, 8))[0] == Status.PEER_FAILED
    assert link.ops.send_notification(link.a.session, link.a.peer, b"x") == Status.PEER_FAILED


def test_a_peer_that_was_destroyed_is_gone_for_the_other_end(link) -> None:
    assert link.ops.peer_destroy(link.b.session, link.b.peer) == Status.OK
    assert link.post((0, 0, 8))[0] == Status.PEER_FAILED


def test_destroying_the_peer_is_no_fence(link) -> None:
    link.a.bytes[:8] = 5
    request = link.write((0, 0, 8), notify=b"too late")
    link.ops.peer_destroy(link.b.session, link.b.peer)
    assert link.a.ends() == [(request, Status.OK)]
    assert (link.b.bytes[:8] == 5).all()
    assert link.b.notices() == []


@pytest.mark.parametrize("by", ["target", "initiator"])
def test_a_fence_ends_what_is_posted_in_both_directions(link, by) -> None:
    link.a.bytes[:] = 1
    link.b.bytes[:] = 2
    ours = link.write((0, 0, 8))
    local, remote, length = link.columns((100, 100, 8))
    status, theirs = link.ops.post_write(link.b.session, link.b.peer, remote, local, length, None)
    assert status == Status.OK
    assert (link.b if by == "target" else link.a).fence() == Status.OK
    assert link.a.ends() == [(ours, Status.OP_FAILED)]
    assert link.b.ends() == [(theirs, Status.OP_FAILED)]
    assert (link.a.bytes == 1).all()
    assert (link.b.bytes == 2).all()
    assert link.post((0, 0, 8))[0] == Status.PEER_FAILED


def test_a_fence_while_bytes_are_copied_in_another_thread_is_not_granted(link, monkeypatch) -> None:
    """The fence never waits and never lies: NOT_FENCED during the slice, OK after it."""
    inside, go_on = threading.Event(), threading.Event()
    copy = loopback_engine._copy

    def slow_copy(operation, byte_count):
        inside.set()
        assert go_on.wait(30)
        return copy(operation, byte_count)

    monkeypatch.setattr(loopback_engine, "SLICE_BYTES", 1000)
    monkeypatch.setattr(loopback_engine, "_copy", slow_copy)
    link.a.bytes[:] = 3
    request = link.write((0, 0, 4096), notify=b"done")
    ends = []
    thread = threading.Thread(target=lambda: ends.extend(link.a.ends()))
    thread.start()
    assert inside.wait(30)
    assert link.b.fence() == Status.NOT_FENCED
    assert link.ops.revoke_region(link.b.session, link.b.region) == Status.NOT_FENCED
    # Deregistering is allowed, and stops the operation at its next slice.
    assert link.ops.deregister_region(link.b.session, link.b.region) == Status.OK
    go_on.set()
    thread.join(30)
    assert ends == [(request, Status.OP_FAILED)]
    assert link.b.bytes.sum() == 3 * 1000
    assert link.b.fence() == Status.OK
    assert link.b.notices() == []


def test_a_close_during_a_copy_returns_when_the_slice_is_over(make_link, monkeypatch) -> None:
    """CLOSE_FENCES: after the close nothing is written; OP_FAILED: said when it is quiet."""
    inside, go_on, closing = threading.Event(), threading.Event(), threading.Event()
    copy = loopback_engine._copy

    def slow_copy(operation, byte_count):
        inside.set()
        assert go_on.wait(30)
        return copy(operation, byte_count)

    monkeypatch.setattr(loopback_engine, "SLICE_BYTES", 1000)
    monkeypatch.setattr(loopback_engine, "_copy", slow_copy)
    hub = Hub()
    link = make_link(make_ops(hub))
    link.a.bytes[:] = 3
    request = link.write((0, 0, 4096))
    wait_untouched = hub._engine.wait_untouched_locked

    def wait(session):
        closing.set()
        wait_untouched(session)

    monkeypatch.setattr(hub._engine, "wait_untouched_locked", wait)
    ends, written = [], []

    def close() -> None:
        assert link.ops.close(link.b.session) == Status.OK
        written.append(int(link.b.bytes.sum()))

    poller = threading.Thread(target=lambda: ends.extend(link.a.ends()))
    poller.start()
    assert inside.wait(30)
    closer = threading.Thread(target=close)
    closer.start()
    assert closing.wait(30)
    assert not hub._sessions[link.a.session].completed
    assert written == []
    go_on.set()
    for thread in (poller, closer):
        thread.join(30)
    assert ends == [(request, Status.OP_FAILED)]
    assert written == [3 * 1000]
    assert int(link.b.bytes.sum()) == 3 * 1000


def test_sessions_in_two_threads_write_to_each_other(make_link) -> None:
    link = make_link(size=1 << 16)
    rounds = 200
    errors: list[str] = []

    def run(end, other, mine: int, value: int) -> None:
        for number in range(rounds):
            end.bytes[mine : mine + 64] = value
            columns = [
                np.array([at], dtype=np.uint64) for at in (end.base + mine, other.base + mine, 64)
            ]
            payload = b"%d" % number
            status, _ = link.ops.post_write(end.session, end.peer, *columns, payload)
            if status != Status.OK:
                errors.append(status.name)
            end.poll()

    threads = [
        threading.Thread(target=run, args=(link.a, link.b, 0, 1)),
        threading.Thread(target=run, args=(link.b, link.a, 4096, 2)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    wanted = [b"%d" % number for number in range(rounds)]
    assert link.a.notices(rounds) == wanted
    assert link.b.notices(rounds) == wanted
    assert (link.b.bytes[:64] == 1).all()
    assert (link.a.bytes[4096:4160] == 2).all()


def _readable(fd: int, wait_ms: int = 0) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(wait_ms))


def test_a_session_can_sleep_on_its_descriptor(link) -> None:
    _, fd = link.ops.wakeup_fd(link.b.session)
    assert link.ops.wakeup_fd(link.b.session) == (Status.OK, fd)
    assert not _readable(fd)
    thread = threading.Thread(
        target=lambda: link.ops.send_notification(link.a.session, link.a.peer, b"wake")
    )
    thread.start()
    assert _readable(fd, 30_000)
    thread.join(30)
    assert link.b.notices() == [b"wake"]
    assert not _readable(fd)


def test_a_descriptor_asked_for_late_is_readable_at_once(link) -> None:
    link.write((0, 0, 8))
    _, fd = link.ops.wakeup_fd(link.a.session)
    assert _readable(fd)
    link.a.poll(room=0)
    assert _readable(fd)
    assert len(link.a.poll()) == 1
    assert not _readable(fd)


def test_records_of_another_kind_are_refused(link) -> None:
    for records in (np.zeros(4, dtype=np.uint64), np.zeros((2, 2), dtype=COMPLETION), [], None):
        assert link.ops.poll(link.a.session, records) == (Status.OP_INVALID, 0)


def test_the_table_of_the_registry_is_one_hub_for_the_process(make_link) -> None:
    link = make_link(OPS)
    link.a.bytes[:4] = 1
    link.write((0, 0, 4))
    link.a.poll()
    assert link.b.bytes[:4].all()
