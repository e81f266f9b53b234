"""The table of the UCX transport: the conformance kit, options, and what a bare import costs."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvxfer.conformance import (
    Endpoint,
    MakePair,
    Pair,
    check_transport,
    transport_cases,
)
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import COMPLETION, Memory, TransportOps

TCP = {"tls": "tcp,self", "net_devices": "lo"}
CMA = {"tls": "posix,cma,self"}
SHARED = {"tls": "posix,self"}
DEFAULT = {"net_devices": "lo"}

_REGISTERED_TWICE = {"T11.3", "T11.4", "T11.9", "T11.10"}
"""Memory of `allocate_region` is registered already: one of two handles does not end it."""


class AllocatedBuffer:
    """Zero bytes that the transport allocated."""

    def __init__(self, ops: TransportOps, session: int, length: int) -> None:
        status, _, base = ops.allocate_region(session, length, "dram", 0)
        assert status == Status.OK, ops.last_error(session)
        self.memory = Memory(base=base, length=length)
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(base))

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length].tobytes()

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)


def _pairs(ops: TransportOps, options: dict[str, Any], *, allocated: bool = False) -> MakePair:
    def endpoint() -> Endpoint:
        status, session = ops.open(options)
        assert status == Status.OK, ops.last_error(session)
        memory = None
        if allocated:
            memory = lambda length: AllocatedBuffer(ops, session, length)  # noqa: E731
        return Endpoint(ops=ops, session=session, memory_factory=memory)

    return lambda: Pair(a=endpoint(), b=endpoint(), third=endpoint)


_UCX_CRASHES = {"T7.2"}
"""Over TCP: where a side closes while both write, UCX may crash in the other one's progress
(docs/design/ucx.md). The case is left out there, and stands in `kvxfer conform`."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("options", "left_out"), [(TCP, _UCX_CRASHES), (CMA, set())], ids=["tcp", "cma"]
)
def test_the_kit_finds_no_failure(
    ucx_ops: TransportOps, options: dict[str, str], left_out: set[str]
) -> None:
    """In a process of its own: a crash of the library costs this test and no other."""
    wanted = sorted({case.address for case in transport_cases()} - left_out)
    call = "from kvxfer.cli import main; main()"
    words = ["conform", "--transport", "ucx", "--options", json.dumps(options), "--json"]
    words += [word for address in wanted for word in ("--only", address)]
    done = subprocess.run(
        [sys.executable, "-c", call, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["failed"] == []


@pytest.mark.timeout(300)
def test_the_kit_over_memory_of_the_transport_alone(ucx_ops: TransportOps) -> None:
    cases = {case.address for case in transport_cases()} - _REGISTERED_TWICE
    pairs = _pairs(ucx_ops, SHARED, allocated=True)
    report = check_transport(pairs, only=cases, deadline_s=20.0)
    assert report.ok, report.text()


@pytest.mark.parametrize(("options", "reads"), [(TCP, False), (CMA, True), (DEFAULT, True)])
def test_read_is_declared_where_no_emulation_is_needed(
    ucx_ops: TransportOps, options: dict[str, str], reads: bool
) -> None:
    status, session = ucx_ops.open(options)
    assert status == Status.OK
    assert (Caps.READ in ucx_ops.caps(session)) is reads
    assert Caps.TARGET_MUST_PROGRESS not in ucx_ops.caps(session)
    ucx_ops.close(session)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ucx": 1}, "ucx"),
        ({"tls": ""}, "tls"),
        ({"tls": "tcp=1"}, "tls"),
        ({"tls": "tcp, self"}, "tls"),
        ({"tls": 7}, "tls"),
        ({"net_devices": "l\n"}, "net_devices"),
        ({"tls": "a" * 300}, "tls"),
        (None, "options"),
    ],
)
def test_bad_options_are_named(ucx_ops: TransportOps, options: Any, named: str) -> None:
    assert ucx_ops.open(options) == (Status.OP_INVALID, 0)
    assert named in ucx_ops.last_error(0)


def test_a_network_that_does_not_exist_is_told_at_open(ucx_ops: TransportOps) -> None:
    assert ucx_ops.open({"tls": "nosuchnet"}) == (Status.SESSION_FAILED, 0)
    assert ucx_ops.last_error(0)


def test_memory_of_the_transport_is_zeroed_and_a_piece_of_it_may_be_registered(
    ucx_ops: TransportOps,
) -> None:
    status, session = ucx_ops.open(SHARED)
    assert status == Status.OK
    status, region, base = ucx_ops.allocate_region(session, 1 << 20, "dram", 0)
    assert status == Status.OK, ucx_ops.last_error(session)
    assert ctypes.string_at(base, 1 << 20) == bytes(1 << 20)
    status, piece = ucx_ops.register_region(session, Memory(base=base + 4096, length=4096))
    assert status == Status.OK
    assert ucx_ops.deregister_region(session, region) == Status.OK
    # The piece holds the memory, so that this read cannot fault.
    assert ctypes.string_at(base + 4096, 4096) == bytes(4096)
    assert ucx_ops.deregister_region(session, piece) == Status.OK
    for length, kind, device in ((0, "dram", 0), (64, "cuda", 0), (64, "dram", 1), (-1, "dram", 0)):
        status, handle, _ = ucx_ops.allocate_region(session, length, kind, device)
        assert (status, handle) == (Status.OP_INVALID, 0)
    ucx_ops.close(session)


def test_cancel_knows_only_open_requests(ucx_ops: TransportOps) -> None:
    status, session = ucx_ops.open(CMA)
    assert status == Status.OK
    for request in (0, 1, -1, 1 << 80, None, "1"):
        assert ucx_ops.cancel(session, request) == Status.OP_INVALID
    ucx_ops.close(session)


def test_columns_may_be_views_of_a_table(connect_ucx: Callable) -> None:
    # `Near.post` gives columns of one table: not in one piece each.
    near, far, base = connect_ucx(4096, **CMA)
    near.memory[:] = np.arange(4096) % 251
    ranges = [(at, 4000 - at, 50) for at in range(0, 4000, 100)]
    assert near.post("post_write", base, ranges, None)[0] == Status.OK
    near.until(lambda: near.ends == [Status.OK])
    content = far.call("content")
    for ours, theirs, length in ranges:
        assert content[theirs : theirs + length] == near.memory[ours : ours + length].tobytes()


def test_handles_and_threads_do_not_grow(ucx_ops: TransportOps) -> None:
    def open_and_close() -> tuple[int, int]:
        _, ours = ucx_ops.open(DEFAULT)
        _, theirs = ucx_ops.open(DEFAULT)
        _, peer, blob = ucx_ops.peer_create(ours)
        _, other, other_blob = ucx_ops.peer_create(theirs)
        assert ucx_ops.peer_connect(ours, peer, other_blob) == Status.OK
        assert ucx_ops.peer_connect(theirs, other, blob) == Status.OK
        assert ucx_ops.send_notification(ours, peer, b"x") == Status.OK
        records = np.zeros(8, dtype=COMPLETION)
        while not ucx_ops.poll_notifications(theirs, 8)[1]:
            ucx_ops.poll(ours, records)
        ucx_ops.close(ours)
        ucx_ops.close(theirs)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    first = open_and_close()
    for _ in range(5):
        assert open_and_close() <= first


def _fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout


def test_the_package_and_its_probe_load_no_ucx() -> None:
    code = """
import sys, kvxfer_ucx
kvxfer_ucx.DESCRIPTOR.probe()
print([name for name in ("cffi", "libucx") if name in sys.modules])
print("libucp" in open("/proc/self/maps").read())
"""
    assert _fresh(code) == "[]\nFalse\n"


def test_nothing_is_written_to_standard_output_and_the_environment_stays(
    ucx_ops: TransportOps, connect_ucx: Callable
) -> None:
    code = """
import os
before = dict(os.environ)
from kvxfer_ucx import DESCRIPTOR
ops = DESCRIPTOR.load()
_, ours = ops.open({"tls": "tcp,self", "net_devices": "lo"})
_, theirs = ops.open({"tls": "tcp,self", "net_devices": "lo"})
(_, peer, _), (_, _, blob) = ops.peer_create(ours), ops.peer_create(theirs)
ops.close(theirs)
ops.peer_connect(ours, peer, blob)
for _ in range(1000):
    ops.send_notification(ours, peer, b"x")
    ops.poll_notifications(ours, 1)
assert dict(os.environ) == before
import subprocess
shown = subprocess.run(["env"], capture_output=True, text=True).stdout
assert "UCX_HANDLE_ERRORS" not in shown
"""
    assert _fresh(code) == ""
