"""NIXL between two processes: bytes, notices, and what a death of either side proves."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport.ops import Memory, TransportOps

_SIZE = 1 << 20
_STREAM = 16 << 20
_OWNER = 0xA5
"""What the new owner of fenced memory writes there."""
_WRITER = 7
_SETTLE_TURNS = 2000

every_tls = pytest.mark.parametrize("options", [{}, {"ucx_tls": "tcp"}], ids=["default", "tcp"])


def _scattered(seed: int) -> list[tuple[int, int, int]]:
    chance = random.Random(seed)
    count, slot = 200, _SIZE // 200
    places = list(range(count))
    chance.shuffle(places)
    return [
        (at * slot, to * slot + chance.randint(0, 99), chance.randint(1, slot - 99))
        for at, to in enumerate(places)
    ]


def _moved(source: bytes, ranges: list[tuple[int, int, int]], *, forward: bool) -> bytes:
    wanted = bytearray(_SIZE)
    for ours, theirs, length in ranges:
        start, to = (ours, theirs) if forward else (theirs, ours)
        wanted[to : to + length] = source[start : start + length]
    return bytes(wanted)


@every_tls
def test_write_moves_the_bytes_and_then_notifies(connect_nixl: Callable, options: dict) -> None:
    near, far, base = connect_nixl(_SIZE, **options)
    source = random.Random(1).randbytes(_SIZE)
    near.memory[:] = np.frombuffer(source, dtype=np.uint8)
    ranges = _scattered(1)
    status, _ = near.post("post_write", base, ranges, b"part 1 \x00\xff")
    assert status == Status.OK
    near.until(lambda: bool(near.ends))
    assert near.ends == [Status.OK]
    near.until(lambda: far.call("state")[1] == [b"part 1 \x00\xff"])
    assert far.call("content") == _moved(source, ranges, forward=True)


@every_tls
def test_read_fetches_the_bytes(connect_nixl: Callable, options: dict) -> None:
    near, far, base = connect_nixl(_SIZE, **options)
    source = random.Random(2).randbytes(_SIZE)
    far.call("fill", source)
    ranges = _scattered(2)
    status, _ = near.post("post_read", base, ranges, b"fetched")
    assert status == Status.OK
    near.until(lambda: bool(near.ends))
    assert near.ends == [Status.OK]
    assert near.memory.tobytes() == _moved(source, ranges, forward=False)
    near.until(lambda: far.call("state")[1] == [b"fetched"])


def test_a_region_that_comes_after_the_peer_is_a_source_for_it(connect_nixl: Callable) -> None:
    near, far, base = connect_nixl(_SIZE)
    late = np.full(4096, _WRITER, dtype=np.uint8)
    columns = [np.array([value], dtype=np.uint64) for value in (late.ctypes.data, base, 4096)]
    post = (near.session, near.peer, *columns, None)
    assert near.ops.post_write(*post)[0] == Status.REGION_BOUNDS
    assert "local range 0 is outside" in near.ops.last_error(near.session)
    memory = Memory(base=late.ctypes.data, length=4096, keepalive=late)
    region = near.must("register_region", memory)
    assert near.ops.post_write(*post)[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    assert far.call("content")[:4096] == late.tobytes()
    near.must("deregister_region", region)
    assert near.ops.post_write(*post)[0] == Status.REGION_BOUNDS


def test_over_tcp_nothing_lands_until_the_target_turns(connect_nixl: Callable) -> None:
    near, far, base = connect_nixl(_SIZE, ucx_tls="tcp")
    near.memory[:] = _WRITER
    far.call("set_turning", False)
    assert near.post("post_write", base, [(0, 0, _SIZE)], b"x")[0] == Status.OK
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert near.ends == []
    assert far.call("content") == bytes(_SIZE)
    far.call("set_turning", True)
    near.until(lambda: near.ends == [Status.OK])
    assert far.call("content") == bytes([_WRITER]) * _SIZE


@every_tls
def test_a_killed_writer_is_fenced_and_its_target_stays_stable(
    connect_nixl: Callable, options: dict
) -> None:
    near, far, _ = connect_nixl(_STREAM, **options)
    far.call("start_stream", near.base, _WRITER)
    near.until(lambda: bool((near.memory == _WRITER).any()))
    far.kill()
    assert near.fence() == Status.OK
    near.memory[:] = _OWNER
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert bool((near.memory == _OWNER).all())


def test_a_live_writer_of_this_host_is_not_fenced_before_its_death(
    connect_nixl: Callable,
) -> None:
    near, far, _ = connect_nixl(_STREAM)
    far.call("start_stream", near.base, _WRITER)
    near.until(lambda: bool((near.memory == _WRITER).any()))
    assert near.fence() == Status.NOT_FENCED
    assert "alive" in near.ops.last_error(near.session)
    assert near.post("post_write", near.base, [(0, 0, 1)], None)[0] == Status.PEER_FAILED
    far.stop()
    assert near.fence() == Status.NOT_FENCED
    far.kill()
    assert near.fence() == Status.OK
    assert near.fence() == Status.OK


def test_a_live_writer_over_tcp_alone_is_shut_out(connect_nixl: Callable) -> None:
    near, far, _ = connect_nixl(_STREAM, ucx_tls="tcp")
    far.call("start_stream", near.base, _WRITER)
    near.until(lambda: bool((near.memory == _WRITER).any()))
    assert near.fence() == Status.OK
    near.memory[:] = _OWNER

    def writer_has_noticed() -> bool:
        ends, _, refused = far.call("state")
        return bool(refused) and Status.OP_UNKNOWN in ends

    near.until(writer_has_noticed)
    assert far.call("state")[2] == [Status.PEER_FAILED]
    assert bool((near.memory == _OWNER).all())


@every_tls
def test_a_killed_target_fails_the_peer_and_ends_every_request(
    connect_nixl: Callable, options: dict
) -> None:
    near, far, base = connect_nixl(_STREAM, **options)
    whole = [(at, at, 1 << 16) for at in range(0, _STREAM, 1 << 16)]
    posted = 0
    for _ in range(2):
        assert near.post("post_write", base, whole, None)[0] == Status.OK
        posted += 1
    near.turn()
    far.kill()

    def refused() -> bool:
        nonlocal posted
        status, _ = near.post("post_write", base, whole, None)
        posted += status == Status.OK
        return status == Status.PEER_FAILED

    near.until(refused)
    near.until(lambda: len(near.ends) == posted)
    assert near.ends[-1] == Status.OP_UNKNOWN
    assert set(near.ends) <= {Status.OK, Status.OP_UNKNOWN}
    near.turn()
    assert len(near.ends) == posted
    assert near.ops.send_notification(near.session, near.peer, b"x") == Status.PEER_FAILED
    assert near.fence() == Status.OK


def test_requests_in_flight_towards_a_killed_target_end_by_polling_alone(
    connect_nixl: Callable,
) -> None:
    near, far, base = connect_nixl(_STREAM, ucx_tls="tcp")
    far.call("set_turning", False)
    for at in range(3):
        assert near.post("post_write", base, [(at, at, _SIZE)], b"x")[0] == Status.OK
    near.turn()
    assert near.ends == []
    far.kill()
    near.until(lambda: len(near.ends) >= 3)
    near.turn()
    assert near.ends == [Status.OP_UNKNOWN] * 3


def test_a_stopped_target_blocks_no_call_and_no_fence(connect_nixl: Callable) -> None:
    near, far, base = connect_nixl(_STREAM, ucx_tls="tcp")
    near.memory[:] = _WRITER
    far.call("set_turning", False)
    far.stop()
    assert near.post("post_write", base, [(0, 0, _STREAM)], b"late")[0] == Status.OK
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert near.ends == []
    assert near.fence() == Status.OK
    near.turn()
    # What sits in socket buffers may still arrive, so the request is not called quiet.
    assert near.ends == [Status.OP_UNKNOWN]


def test_a_process_that_leaves_everything_open_ends_cleanly(connect_nixl: Callable) -> None:
    near, far, _ = connect_nixl(_STREAM)
    far.call("start_stream", near.base, _WRITER)
    near.until(lambda: bool((near.memory == _WRITER).any()))
    far.send("leave")
    near.until(lambda: far.process.poll() is not None)
    assert far.process.returncode == 0
    assert near.fence() == Status.OK


def test_blobs_of_a_closed_session_do_no_harm(
    nixl_ops: TransportOps, connect_nixl: Callable
) -> None:
    near, far, base = connect_nixl(_SIZE)
    status, other = nixl_ops.open({})
    assert status == Status.OK
    blob = nixl_ops.peer_create(other)[2]
    assert nixl_ops.close(other) == Status.OK
    status, stray, _ = nixl_ops.peer_create(near.session)
    assert status == Status.OK
    assert nixl_ops.peer_connect(near.session, stray, blob) in (Status.OK, Status.PEER_BLOB)
    assert near.post("post_write", base, [(0, 0, 64)], b"hello")[0] == Status.OK
    near.until(lambda: far.call("state")[1] == [b"hello"])
