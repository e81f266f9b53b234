"""The transport for GPUs of one host, over a CUDA driver of host memory.

What runs here is all of the transport but the kernel's machine code; `test_cuda.py` runs the
same on a GPU where there is one.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvxfer.conformance.cuda import CudaLink
from kvxfer.conformance.endpoint import pair_maker
from kvxfer.conformance.kit import check_transport
from kvxfer.conformance.report import Verdict
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import COMPLETION, Memory, TransportOps
from kvxfer_cuda import DESCRIPTOR
from kvxfer_cuda.driver import CUDA_VARIABLE
from kvxfer_cuda.memory import DriverBuffer
from kvxfer_cuda.nvrtc import NVRTC_VARIABLE

_SOURCE = Path(__file__).with_name("fake_cuda.c")
_BUFFER = "kvxfer_cuda.memory:DriverBuffer"
_SIZE = 1 << 20


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("fake") / "libfake_cuda.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]
    subprocess.run([*command, str(built), str(_SOURCE)], check=True)
    return built


@pytest.fixture
def ops(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> TransportOps:
    monkeypatch.setenv(CUDA_VARIABLE, str(fake_driver))
    monkeypatch.setenv(NVRTC_VARIABLE, str(fake_driver))
    status, text = DESCRIPTOR.probe()
    assert status == Status.OK, text
    return DESCRIPTOR.load()


@pytest.fixture
def connect(ops: TransportOps) -> Iterator[Callable[[], CudaLink]]:
    links: list[CudaLink] = []

    def made() -> CudaLink:
        links.append(CudaLink("kvxfer_cuda", ops, {}, _SIZE, buffer=_BUFFER))
        return links[-1]

    yield made
    for link in links:
        if link.process.poll() is None:
            link.process.kill()
            link.process.wait()
        ops.close(link.session)


def test_the_kit(ops: TransportOps) -> None:
    report = check_transport(pair_maker(ops, memory_factory=DriverBuffer))
    assert report.ok, report.text()
    lacking = [r for r in report.results if r.verdict is Verdict.UNSUPPORTED]
    reasons = ("declares no", "no pair with an end in another process")
    assert all(r.detail.startswith(reasons) for r in lacking), report.text()


def test_two_processes_write_and_notify(connect: Callable[[], CudaLink]) -> None:
    link = connect()
    source = random.Random(1).randbytes(_SIZE)
    link.buffer.write(0, source)
    at = np.arange(0, _SIZE, 1024)
    assert link.move("post_write", at, _SIZE - 1024 - at, np.full(len(at), 1000), b"n") == Status.OK
    payload, digest = link.hear()
    wanted = bytearray(_SIZE)
    for start in at.tolist():
        to = _SIZE - 1024 - start
        wanted[to : to + 1000] = source[start : start + 1000]
    assert (payload, digest) == (b"n", hashlib.sha256(wanted).hexdigest())


def test_two_processes_read(connect: Callable[[], CudaLink]) -> None:
    link = connect()
    source = random.Random(2).randbytes(_SIZE)
    link.fill_far(source)
    assert link.move("post_read", [0], [0], [_SIZE], None) == Status.OK
    assert link.buffer.read(0, _SIZE) == source


def test_a_plan_longer_than_all_slots_goes_through_in_turn(connect: Callable[[], CudaLink]) -> None:
    link = connect()
    source = random.Random(3).randbytes(_SIZE)
    link.buffer.write(0, source)
    at = np.arange(0, _SIZE, 4)
    assert link.move("post_write", at, at, np.full(len(at), 4), b"all") == Status.OK
    assert link.hear()[1] == hashlib.sha256(source).hexdigest()


def test_a_killed_peer_is_known_and_fenced(connect: Callable[[], CudaLink]) -> None:
    link = connect()
    link.process.kill()
    link.process.wait()
    end = time.monotonic() + 10.0
    while link.ops.send_notification(link.session, link.peer, b"x") != Status.PEER_FAILED:
        assert time.monotonic() < end
        link.ops.poll(link.session, link.records)
    assert link.ops.fence_peer(link.session, link.peer) == Status.OK


def test_a_live_peer_is_fenced_once_it_says_that_it_has_unmapped(
    connect: Callable[[], CudaLink],
) -> None:
    link = connect()
    assert link.ops.fence_peer(link.session, link.peer) == Status.NOT_FENCED
    end = time.monotonic() + 10.0
    while link.ops.fence_peer(link.session, link.peer) != Status.OK:
        assert time.monotonic() < end, "the peer does not answer"
    columns = [np.array([v], dtype=np.uint64) for v in (link.buffer.memory.base, link.remote, 1)]
    assert link.ops.post_write(link.session, link.peer, *columns, None)[0] == Status.PEER_FAILED


def test_a_stopped_peer_is_not_fenced(connect: Callable[[], CudaLink]) -> None:
    link = connect()
    link.process.send_signal(19)
    for _ in range(50):
        assert link.ops.fence_peer(link.session, link.peer) == Status.NOT_FENCED
    link.process.send_signal(18)


@pytest.mark.parametrize(
    "memory",
    [
        Memory(base=4096, length=1),
        Memory(base=4096, length=1, kind="cuda", device=1),
        Memory(base=4096, length=1, kind="cuda"),
        Memory(base=0, length=1, kind="cuda"),
    ],
)
def test_memory_that_cannot_be_lent_is_refused_with_a_reason(
    ops: TransportOps, memory: Memory
) -> None:
    _, session = ops.open({})
    assert ops.register_region(session, memory) == (Status.OP_INVALID, 0)
    assert "memory" in ops.last_error(session)
    ops.close(session)


def test_memory_beyond_its_allocation_is_refused(ops: TransportOps) -> None:
    buffer = DriverBuffer(4096)
    _, session = ops.open({})
    longer = Memory(base=buffer.memory.base, length=1 << 30, kind="cuda")
    assert ops.register_region(session, longer)[0] == Status.OP_INVALID
    assert "allocation ends" in ops.last_error(session)
    ops.close(session)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"devices": 1}, "devices"),
        ({"device": -1}, "device"),
        ({"device": "0"}, "device"),
        ({"thread_blocks": 0}, "thread_blocks"),
        ({"thread_blocks": True}, "thread_blocks"),
    ],
)
def test_bad_options_are_named(ops: TransportOps, options: dict[str, object], named: str) -> None:
    assert ops.open(options) == (Status.OP_INVALID, 0)
    assert named in ops.last_error(0)


def test_a_device_that_is_not_there_is_told_at_open(ops: TransportOps) -> None:
    assert ops.open({"device": 3})[0] == Status.SESSION_FAILED
    assert "cuDeviceGet" in ops.last_error(0)


def test_without_a_driver_the_probe_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA_VARIABLE, "/nonexistent/libcuda.so.1")
    status, text = DESCRIPTOR.probe()
    assert status == Status.LIBRARY_MISSING
    assert "NVIDIA driver" in text


def test_cancel_drops_what_has_not_left(ops: TransportOps) -> None:
    buffers = [DriverBuffer(_SIZE), DriverBuffer(_SIZE)]
    sessions, peers, blobs = [], [], []
    for buffer in buffers:
        sessions.append(ops.open({})[1])
        ops.register_region(sessions[-1], buffer.memory)
        _, peer, blob = ops.peer_create(sessions[-1])
        peers.append(peer)
        blobs.append(blob)
    assert ops.peer_connect(sessions[0], peers[0], blobs[1]) == Status.OK
    assert ops.peer_connect(sessions[1], peers[1], blobs[0]) == Status.OK
    count = 1 << 18
    ones = np.ones(count, dtype=np.uint64)
    local = np.uint64(buffers[0].memory.base) + np.arange(count, dtype=np.uint64)
    remote = np.uint64(buffers[1].memory.base) + np.arange(count, dtype=np.uint64)
    status, request = ops.post_write(sessions[0], peers[0], local, remote, ones, b"never")
    assert status == Status.OK
    assert ops.cancel(sessions[0], request) == Status.OK
    records = np.zeros(8, dtype=COMPLETION)
    end = time.monotonic() + 10.0
    while not (filled := ops.poll(sessions[0], records)[1]):
        assert time.monotonic() < end
    assert filled == 1
    assert records["status"][0] == Status.OP_FAILED
    assert ops.cancel(sessions[0], request) == Status.OP_INVALID
    assert ops.poll_notifications(sessions[1], 8) == (Status.OK, [])
    for session in sessions:
        ops.close(session)


def test_flags(ops: TransportOps) -> None:
    _, session = ops.open({})
    assert Caps.MEM_CUDA | Caps.WAKEUP_FD | Caps.CANCEL in ops.caps(session)
    assert Caps.MEM_DRAM not in ops.caps(session)
    ops.close(session)
