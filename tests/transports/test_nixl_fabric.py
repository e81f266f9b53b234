"""NIXL over LIBFABRIC, the path of AWS's EFA, here over libfabric's tcp provider.

Runs in a network namespace of its own with a nixl whose plug-in the libfabric at hand
can load: `make fabric` sets up both. Elsewhere every test skips with the loader's words.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest

from kvxfer.conformance.kit import check_transport, transport_cases
from kvxfer.conformance.report import Verdict
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Memory, TransportOps

_FABRIC = {"backends": ["LIBFABRIC"]}
_SIZE = 1 << 20
_STREAM = 16 << 20
_OWNER, _WRITER = 0xA5, 7
_SETTLE_TURNS = 500

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _fabric(nixl_ops: TransportOps) -> None:
    status, session = nixl_ops.open(_FABRIC)
    if status != Status.OK:
        text = nixl_ops.last_error(0)
        assert os.environ.get("KVXFER_FABRIC") != "required", text
        pytest.skip(text)
    nixl_ops.close(session)


def test_flags_say_what_this_backend_does(nixl_ops: TransportOps) -> None:
    _, session = nixl_ops.open(_FABRIC)
    caps = nixl_ops.caps(session)
    nixl_ops.close(session)
    assert Caps.WRITE | Caps.READ | Caps.NOTIFY_AFTER_VISIBLE in caps
    assert Caps.TARGET_MUST_PROGRESS not in caps
    assert Caps.MEM_CUDA not in caps


@pytest.mark.timeout(600)
def test_the_kit(make_nixl_pair: Callable) -> None:
    wanted = [case.address for case in transport_cases() if case.address not in _LEFT_OUT]
    report = check_transport(make_nixl_pair(_FABRIC), only=wanted, deadline_s=60.0)
    assert report.ok, report.text()
    lacking = [r for r in report.results if r.verdict is Verdict.UNSUPPORTED]
    reasons = ("declares no", "no pair with an end in another process")
    unexplained = {r.address for r in lacking if not r.detail.startswith(reasons)}
    assert unexplained <= _MAY_LACK, report.text()


_LEFT_OUT = {"T9.10"}
"""A list of 131,072 ranges does not end within minutes over libfabric's tcp provider; the driver
posts 4,096 at a time."""
_MAY_LACK = {"T8.5"}
"""A peer that closes while the link is being made can leave nixl's call for it without an end,
and our agent with it (docs/design/nixl-fabric.md)."""


def test_bytes_and_then_the_notice(connect_nixl: Callable) -> None:
    near, far, base = connect_nixl(_SIZE, **_FABRIC)
    source = random.Random(1).randbytes(_SIZE)
    near.memory[:] = np.frombuffer(source, dtype=np.uint8)
    ranges = [(at, _SIZE - at - 4096, 4096) for at in range(0, _SIZE, 4096)]
    assert near.post("post_write", base, ranges, b"part 1 \x00\xff")[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    near.until(lambda: far.call("state")[1] == [b"part 1 \x00\xff"])
    want = b"".join(source[at : at + 4096] for at in range(_SIZE - 4096, -1, -4096))
    assert far.call("content") == want


def test_read(connect_nixl: Callable) -> None:
    near, far, base = connect_nixl(_SIZE, **_FABRIC)
    source = random.Random(2).randbytes(_SIZE)
    far.call("fill", source)
    assert near.post("post_read", base, [(0, 0, _SIZE)], b"fetched")[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    assert near.memory.tobytes() == source
    near.until(lambda: far.call("state")[1] == [b"fetched"])


def test_a_target_that_makes_no_calls_still_takes_what_is_written(connect_nixl: Callable) -> None:
    near, far, base = connect_nixl(_SIZE, **_FABRIC)
    assert near.post("post_write", base, [(0, 0, 4096)], b"first")[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    near.memory[:] = _WRITER
    far.call("set_turning", False)
    assert near.post("post_write", base, [(0, 0, _SIZE)], None)[0] == Status.OK
    # The completion tells that the source may be reused; what is at the target, a notice tells.
    near.until(lambda: far.call("content") == bytes([_WRITER]) * _SIZE)
    assert near.ends == [Status.OK, Status.OK]


def test_a_killed_target_ends_its_requests_and_stalls_nobody_else(connect_nixl: Callable) -> None:
    doomed, far, doomed_base = connect_nixl(_STREAM, **_FABRIC)
    healthy, _, base = connect_nixl(_SIZE, **_FABRIC)
    assert doomed.post("post_write", doomed_base, [(0, 0, 64)], b"up")[0] == Status.OK
    doomed.until(lambda: doomed.ends == [Status.OK])
    far.stop()
    assert doomed.post("post_write", doomed_base, [(0, 0, _STREAM)] * 4, b"late")[0] == Status.OK
    far.kill()
    doomed.until(lambda: len(doomed.ends) == 2)
    assert doomed.ends[1] in (Status.OP_UNKNOWN, Status.OP_FAILED)
    post = ("post_write", doomed_base, [(0, 0, 64)], None)
    assert doomed.post(*post)[0] == Status.PEER_FAILED
    for count in range(1, 21):
        assert healthy.post("post_write", base, [(0, 0, _SIZE)], b"on")[0] == Status.OK
        healthy.until(lambda wanted=count: len(healthy.ends) == wanted)
    assert set(healthy.ends) == {Status.OK}


def test_a_live_writer_is_shut_out_by_the_end_of_our_agent(connect_nixl: Callable) -> None:
    near, far, _ = connect_nixl(_STREAM, **_FABRIC)
    far.call("start_stream", near.base, _WRITER)
    near.until(lambda: bool((near.memory == _WRITER).any()))
    near.until(lambda: near.fence() == Status.OK)
    near.memory[:] = _OWNER
    for _ in range(_SETTLE_TURNS):
        near.turn()
        far.call("state")
    assert bool((near.memory == _OWNER).all())


def test_a_base_is_taken_once(nixl_ops: TransportOps) -> None:
    held = np.zeros(8192, dtype=np.uint8)
    _, session = nixl_ops.open(_FABRIC)
    whole = Memory(base=held.ctypes.data, length=8192, keepalive=held)
    half = Memory(base=held.ctypes.data, length=4096, keepalive=held)
    assert nixl_ops.register_region(session, whole)[0] == Status.OK
    assert nixl_ops.register_region(session, whole)[0] == Status.OK
    assert nixl_ops.register_region(session, half)[0] == Status.OP_INVALID
    assert "takes a base once" in nixl_ops.last_error(session)
    assert nixl_ops.peer_create(session)[0] == Status.OK
    nixl_ops.close(session)
