"""UCX between two processes: bytes, notices, and what a death or a stop of either side does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport.ops import TransportOps

_SIZE = 1 << 20
_STREAM = 16 << 20
_OWNER = 0xA5
"""What the new owner of fenced memory writes there."""
_WRITER = 7
_SETTLE_TURNS = 500
_KNOWN_WITHIN_S = 1.0
"""The promise of the issue: a killed peer is known to the caller within a second."""

TCP = {"tls": "tcp,self", "net_devices": "lo"}
CMA = {"tls": "posix,cma,self"}
DEFAULT = {"net_devices": "lo"}

every_tls = pytest.mark.parametrize("options", [TCP, CMA, DEFAULT], ids=["tcp", "cma", "default"])


def _scattered(seed: int) -> list[tuple[int, int, int]]:
    chance = random.Random(seed)
    count, slot = 2000, _SIZE // 2000
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


def _stream_arrives(near: object, far: object) -> None:
    far.call("start_stream", near.base, _WRITER)
    near.until(lambda: bool((near.memory == _WRITER).any()))


@every_tls
def test_write_moves_the_bytes_and_then_notifies(connect_ucx: Callable, options: dict) -> None:
    near, far, base = connect_ucx(_SIZE, **options)
    source = random.Random(1).randbytes(_SIZE)
    near.memory[:] = np.frombuffer(source, dtype=np.uint8)
    ranges = _scattered(1)
    status, _ = near.post("post_write", base, ranges, b"part 1 \x00\xff")
    assert status == Status.OK
    near.until(lambda: bool(near.ends))
    assert near.ends == [Status.OK]
    near.until(lambda: far.call("state")[1] == [b"part 1 \x00\xff"])
    assert far.call("content") == _moved(source, ranges, forward=True)


@pytest.mark.parametrize("options", [CMA, DEFAULT], ids=["cma", "default"])
def test_read_fetches_the_bytes(connect_ucx: Callable, options: dict) -> None:
    near, far, base = connect_ucx(_SIZE, **options)
    source = random.Random(2).randbytes(_SIZE)
    far.call("fill", source)
    ranges = _scattered(2)
    status, _ = near.post("post_read", base, ranges, b"fetched")
    assert status == Status.OK
    near.until(lambda: bool(near.ends))
    assert near.ends == [Status.OK]
    assert near.memory.tobytes() == _moved(source, ranges, forward=False)
    near.until(lambda: far.call("state")[1] == [b"fetched"])


def test_a_read_that_ucx_would_emulate_is_refused(connect_ucx: Callable) -> None:
    # The process that is read from would abort when the reader dies in the middle of it.
    near, _, base = connect_ucx(_SIZE, **TCP)
    assert near.post("post_read", base, [(0, 0, 1)], None)[0] == Status.UNSUPPORTED
    assert "read" in near.ops.last_error(near.session)


@every_tls
def test_bytes_land_and_requests_end_though_the_target_never_polls(
    connect_ucx: Callable, options: dict
) -> None:
    near, far, base = connect_ucx(_SIZE, **options)
    near.memory[:] = _WRITER
    far.call("set_turning", False)
    assert near.post("post_write", base, [(0, 0, _SIZE)], b"x")[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    assert far.call("content") == bytes([_WRITER]) * _SIZE


def test_memory_of_the_transport_is_written_to_and_read(connect_ucx: Callable) -> None:
    near, far, _ = connect_ucx(_SIZE, tls="posix,self")
    base, blob = far.call("create_allocated", _SIZE)
    near.peer, peer_blob = near.must("peer_create")
    near.must("peer_connect", near.peer, blob)
    assert far.call("connect", peer_blob) == Status.OK
    near.memory[:] = np.frombuffer(random.Random(3).randbytes(_SIZE), dtype=np.uint8)
    assert near.post("post_write", base, [(0, 0, _SIZE)], None)[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    assert far.call("peek", base, _SIZE) == near.memory.tobytes()
    wanted, near.memory[:] = near.memory.tobytes(), 0
    assert near.post("post_read", base, [(0, 0, _SIZE)], None)[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK] * 2)
    assert near.memory.tobytes() == wanted


@every_tls
def test_a_live_writer_is_fenced_by_its_own_word(connect_ucx: Callable, options: dict) -> None:
    near, far, _ = connect_ucx(_STREAM, **options)
    _stream_arrives(near, far)
    near.until(lambda: near.fence() == Status.OK)
    near.memory[:] = _OWNER
    near.until(lambda: bool(far.call("state")[2]))
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert bool((near.memory == _OWNER).all())
    assert far.call("state")[2] == [Status.PEER_FAILED]


@every_tls
def test_a_killed_writer_is_fenced_and_its_target_stays_stable(
    connect_ucx: Callable, options: dict
) -> None:
    near, far, _ = connect_ucx(_STREAM, **options)
    _stream_arrives(near, far)
    far.kill()
    near.until(lambda: near.fence() == Status.OK)
    near.memory[:] = _OWNER
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert bool((near.memory == _OWNER).all())


def test_a_stopped_writer_of_this_host_is_not_fenced_before_its_death(
    connect_ucx: Callable,
) -> None:
    near, far, _ = connect_ucx(_STREAM, **CMA)
    _stream_arrives(near, far)
    far.stop()
    assert near.fence() == Status.NOT_FENCED
    assert "alive" in near.ops.last_error(near.session)
    assert near.post("post_write", near.base, [(0, 0, 1)], None)[0] == Status.PEER_FAILED
    far.kill()
    near.until(lambda: near.fence() == Status.OK)
    assert near.fence() == Status.OK


def test_a_stopped_writer_over_sockets_alone_is_shut_out(connect_ucx: Callable) -> None:
    near, far, _ = connect_ucx(_STREAM, **TCP)
    _stream_arrives(near, far)
    far.stop()
    near.until(lambda: near.fence() == Status.OK)
    near.memory[:] = _OWNER
    far.go_on()
    near.until(lambda: bool(far.call("state")[2]))
    assert bool((near.memory == _OWNER).all())


@every_tls
def test_a_killed_target_is_known_at_once_and_every_request_ends(
    connect_ucx: Callable, options: dict
) -> None:
    near, far, base = connect_ucx(_STREAM, **options)
    whole = [(at, at, 1 << 16) for at in range(0, _STREAM, 1 << 16)]
    posted = 3
    for _ in range(posted):
        assert near.post("post_write", base, whole, b"x")[0] == Status.OK
    far.kill()
    killed = time.monotonic()

    def refused() -> bool:
        nonlocal posted
        status, _ = near.post("post_write", base, whole, None)
        posted += status == Status.OK
        return status == Status.PEER_FAILED

    near.until(refused)
    assert time.monotonic() - killed < _KNOWN_WITHIN_S
    near.until(lambda: len(near.ends) == posted)
    assert set(near.ends) <= {Status.OK, Status.OP_UNKNOWN, Status.OP_FAILED}
    near.turn()
    assert len(near.ends) == posted
    assert near.ops.send_notification(near.session, near.peer, b"x") == Status.PEER_FAILED
    near.until(lambda: near.fence() == Status.OK)


@every_tls
def test_a_target_killed_while_nothing_is_under_way_is_known_too(
    connect_ucx: Callable, options: dict
) -> None:
    near, far, _ = connect_ucx(_SIZE, **options)
    far.kill()
    killed = time.monotonic()

    def refused() -> bool:
        return near.ops.send_notification(near.session, near.peer, b"x") == Status.PEER_FAILED

    near.until(refused)
    assert time.monotonic() - killed < _KNOWN_WITHIN_S


def test_a_killed_reader_does_no_harm_to_the_memory_owner(connect_ucx: Callable) -> None:
    near, far, _ = connect_ucx(_STREAM, **DEFAULT)
    far.call("start_reading", near.base)
    near.until(lambda: bool(far.call("state")[0]))
    far.kill()
    near.until(lambda: near.fence() == Status.OK)
    _, other, base = connect_ucx(_SIZE, **DEFAULT)
    assert other.call("content") == bytes(_SIZE)
    assert base > 0


@every_tls
def test_a_stopped_target_blocks_no_call_and_no_other_peer(
    connect_ucx: Callable, options: dict
) -> None:
    near, far, base = connect_ucx(_STREAM, **options)
    other_near, _, other_base = connect_ucx(_SIZE, **options)
    near.memory[:] = _WRITER
    far.stop()
    assert near.post("post_write", base, [(0, 0, _STREAM)], b"late")[0] == Status.OK
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert other_near.post("post_write", other_base, [(0, 0, _SIZE)], b"x")[0] == Status.OK
    other_near.until(lambda: other_near.ends == [Status.OK])
    near.fence()
    near.until(lambda: bool(near.ends))
    assert near.ends[0] in (Status.OK, Status.OP_UNKNOWN)


def test_cancel_takes_back_what_has_not_left(connect_ucx: Callable) -> None:
    near, far, base = connect_ucx(_STREAM, **TCP)
    far.stop()
    pieces = [(at, at, 1 << 12) for at in range(0, _STREAM, 1 << 12)]
    random.Random(4).shuffle(pieces)
    status, request = near.post("post_write", base, pieces, b"cancelled")
    assert status == Status.OK
    for _ in range(_SETTLE_TURNS):
        near.turn()
    assert near.ops.cancel(near.session, request) == Status.OK
    near.turn()
    assert near.ends == []
    far.go_on()
    near.until(lambda: bool(near.ends))
    assert near.ends == [Status.OP_FAILED]
    assert near.ops.cancel(near.session, request) == Status.OP_INVALID
    assert near.post("post_write", base, [(0, 0, 1)], b"next")[0] == Status.OK
    near.until(lambda: far.call("state")[1] == [b"next"])


def test_a_process_that_leaves_everything_open_ends_cleanly(connect_ucx: Callable) -> None:
    near, far, _ = connect_ucx(_STREAM, **DEFAULT)
    _stream_arrives(near, far)
    far.send("leave")
    near.until(lambda: far.process.poll() is not None)
    assert far.process.returncode == 0
    near.until(lambda: near.fence() == Status.OK)


def test_a_restarted_peer_is_reached_through_a_new_link(connect_ucx: Callable) -> None:
    near, far, _ = connect_ucx(_SIZE, **DEFAULT)
    old = near.peer
    far.kill()
    near.until(lambda: near.ops.send_notification(near.session, old, b"x") == Status.PEER_FAILED)
    again, new, base = connect_ucx(_SIZE, **DEFAULT)
    assert again.post("post_write", base, [(0, 0, 64)], b"hello")[0] == Status.OK
    again.until(lambda: new.call("state")[1] == [b"hello"])


def test_blobs_of_a_closed_session_do_no_harm(ucx_ops: TransportOps, connect_ucx: Callable) -> None:
    near, far, base = connect_ucx(_SIZE, **DEFAULT)
    status, other = ucx_ops.open(DEFAULT)
    assert status == Status.OK
    blob = ucx_ops.peer_create(other)[2]
    assert ucx_ops.close(other) == Status.OK
    status, stray, _ = ucx_ops.peer_create(near.session)
    assert status == Status.OK
    assert ucx_ops.peer_connect(near.session, stray, blob) in (Status.OK, Status.PEER_BLOB)
    assert near.post("post_write", base, [(0, 0, 64)], b"hello")[0] == Status.OK
    near.until(lambda: far.call("state")[1] == [b"hello"])
