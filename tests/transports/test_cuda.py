"""Memory of a GPU over the plug-ins that reach it: bytes, both ways, between two processes,
with a GPU each where there are two.

Skips with its reason where there is no GPU. docs/gpu.md says on what it was run.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvxfer.conformance.cuda import CudaBuffer, CudaLink, cuda_count, cuda_is_here
from kvxfer.conformance.endpoint import pair_maker
from kvxfer.conformance.kit import check_transport
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import TransportOps

_SIZE = 4 << 20
_KNOWN_S = 20.0
_SUBJECTS = {
    "cuda": ("kvxfer_cuda", {"device": 0}),
    "nixl": ("kvxfer_nixl", {}),
    "ucx": ("kvxfer_ucx", {}),
}

pytestmark = [
    pytest.mark.skipif(bool(cuda_is_here()), reason=cuda_is_here()),
    pytest.mark.timeout(300),
]


@pytest.fixture(params=sorted(_SUBJECTS))
def subject(request: pytest.FixtureRequest) -> tuple[str, TransportOps, dict[str, Any]]:
    """Module, table and options of a plug-in that says it reaches a GPU."""
    plugin, options = _SUBJECTS[request.param]
    descriptor = importlib.import_module(plugin).DESCRIPTOR
    status, text = descriptor.probe()
    if status != Status.OK:
        pytest.skip(text)
    ops = descriptor.load()
    status, session = ops.open(options)
    assert status == Status.OK, ops.last_error(0)
    caps = ops.caps(session)
    ops.close(session)
    if Caps.MEM_CUDA not in caps:
        pytest.skip(f"{request.param} declares no MEM_CUDA here")
    return plugin, ops, dict(options)


@pytest.fixture
def link(subject: tuple[str, TransportOps, dict[str, Any]]) -> Iterator[CudaLink]:
    plugin, ops, options = subject
    made = CudaLink(plugin, ops, options, _SIZE, devices=(0, cuda_count() - 1))
    yield made
    if made.process.poll() is None:
        made.close()
    else:
        ops.close(made.session)


def _scattered(seed: int, count: int = 1000) -> tuple[Any, Any, Any]:
    chance = random.Random(seed)
    slot = _SIZE // count
    places = chance.sample(range(count), count)
    length = np.array([chance.randint(1, slot - 99) for _ in places])
    remote = np.array([to * slot + chance.randint(0, 99) for to in places])
    return np.arange(count) * slot, remote, length


def _moved(source: bytes, start: Any, to: Any, length: Any) -> bytes:
    wanted = bytearray(_SIZE)
    for a, b, n in zip(start.tolist(), to.tolist(), length.tolist()):
        wanted[b : b + n] = source[a : a + n]
    return bytes(wanted)


def test_write_moves_exactly_its_ranges_and_then_notifies(link: CudaLink) -> None:
    source = random.Random(1).randbytes(_SIZE)
    link.buffer.write(0, source)
    local, remote, length = _scattered(1)
    assert link.move("post_write", local, remote, length, b"part 1") == Status.OK
    payload, digest = link.hear()
    assert payload == b"part 1"
    assert digest == hashlib.sha256(_moved(source, local, remote, length)).hexdigest()


def test_read_fetches_exactly_its_ranges(link: CudaLink) -> None:
    source = random.Random(2).randbytes(_SIZE)
    link.fill_far(source)
    local, remote, length = _scattered(2)
    assert link.move("post_read", local, remote, length, None) == Status.OK
    assert link.buffer.read(0, _SIZE) == _moved(source, remote, local, length)


def test_a_killed_peer_harms_nothing_of_ours(link: CudaLink) -> None:
    source = random.Random(3).randbytes(_SIZE)
    link.buffer.write(0, source)
    local, remote, length = _scattered(3)
    assert link.move("post_write", local, remote, length, b"up") == Status.OK
    link.hear()
    link.process.kill()
    link.process.wait()
    end = time.monotonic() + _KNOWN_S
    while _move_or_refusal(link, local, remote, length) == Status.OK:
        assert time.monotonic() < end, "the peer is dead, and every write succeeds"
    assert link.buffer.read(0, _SIZE) == source
    assert link.ops.fence_peer(link.session, link.peer) == Status.OK


def _move_or_refusal(link: CudaLink, local: Any, remote: Any, length: Any) -> Status:
    try:
        return link.move("post_write", local, remote, length, b"late")
    except AssertionError:
        return Status.PEER_FAILED


def test_the_kit_over_gpu_memory(subject: tuple[str, TransportOps, dict[str, Any]]) -> None:
    _, ops, options = subject
    make = pair_maker(ops, options=lambda _name: options, memory_factory=CudaBuffer)
    report = check_transport(make, memory_factory=CudaBuffer, deadline_s=30.0)
    assert report.ok, report.text()
