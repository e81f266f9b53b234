"""The table of the NIXL transport: the conformance kit, options, and what a bare import costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import kvxfer_nixl
from kvxfer.conformance import Verdict, check_transport, transport_cases
from kvxfer.status import Status, is_never_posted
from kvxfer.transport.ops import Memory, TransportOps
from kvxfer_nixl.errors import STATUS_OF, status_of

_WAIT_FOR_A_FENCE = {"T7.3", "T8.1"}
"""On one host a live peer is not fenced: these two would wait for it until their deadline."""


@pytest.mark.timeout(300)
def test_the_kit_finds_no_failure(make_nixl_pair: Callable) -> None:
    cases = {case.address for case in transport_cases()} - _WAIT_FOR_A_FENCE
    report = check_transport(make_nixl_pair({}), only=cases, deadline_s=20.0)
    assert report.ok, report.text()


def test_the_kit_gets_no_fence_of_a_live_peer(make_nixl_pair: Callable) -> None:
    report = check_transport(make_nixl_pair({}), only=_WAIT_FOR_A_FENCE, deadline_s=0.2)
    assert {result.verdict for result in report.results} == {Verdict.UNSUPPORTED}, report.text()


@pytest.mark.timeout(300)
def test_the_kit_over_sockets_alone(make_nixl_pair: Callable) -> None:
    moving = ("T5.", "T6.", "T7.", "T8.", "T9.", "T11.")
    cases = [case.address for case in transport_cases() if case.address.startswith(moving)]
    report = check_transport(make_nixl_pair({"ucx_tls": "tcp"}), only=cases, deadline_s=20.0)
    assert report.ok, report.text()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ucx": 1}, "ucx"),
        ({"backends": []}, "backends"),
        ({"backends": ["UCX", "LIBFABRIC"]}, "backends"),
        ({"backends": ["LIBFABRIC"], "ucx_tls": "tcp"}, "ucx_tls"),
        ({"preload": "libcuda.so.1"}, "preload"),
        ({"preload": [7]}, "preload"),
        ({"backends": "UCX"}, "backends"),
        ({"ucx_tls": ""}, "ucx_tls"),
        ({"ucx_tls": "tcp,self"}, "ucx_tls"),
        ({"ucx_tls": "tcp=1"}, "ucx_tls"),
        ({"ucx_tls": 7}, "ucx_tls"),
        (None, "options"),
    ],
)
def test_bad_options_are_named(nixl_ops: TransportOps, options: Any, named: str) -> None:
    assert nixl_ops.open(options) == (Status.OP_INVALID, 0)
    assert named in nixl_ops.last_error(0)


def test_a_backend_that_nixl_does_not_have_is_told_at_open(nixl_ops: TransportOps) -> None:
    assert nixl_ops.open({"backends": ["NOSUCH"]}) == (Status.SESSION_FAILED, 0)
    assert nixl_ops.last_error(0)


def test_memory_that_the_backend_does_not_reach_is_refused(nixl_ops: TransportOps) -> None:
    _, session = nixl_ops.open({})
    for memory in (Memory(base=4096, length=1, kind="neuron"), Memory(base=1, length=1, device=-1)):
        assert nixl_ops.register_region(session, memory) == (Status.OP_INVALID, 0)
        assert "memory" in nixl_ops.last_error(session)
    nixl_ops.close(session)


def test_a_network_that_does_not_exist_is_told_at_open(nixl_ops: TransportOps) -> None:
    status, session = nixl_ops.open({"ucx_tls": "nosuchnet"})
    assert (status, session) == (Status.SESSION_FAILED, 0)
    assert nixl_ops.last_error(0)


def test_each_exception_of_the_library_has_a_status(nixl_ops: TransportOps) -> None:
    bindings = sys.modules["nixl._bindings"]
    raised = {
        name
        for name, value in vars(bindings).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert raised - {"nixlNoTelemetryError"} <= STATUS_OF.keys()
    assert all(is_never_posted(status) for status in STATUS_OF.values())
    assert is_never_posted(status_of(RuntimeError("anything else")))


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


def test_the_package_and_its_probe_import_no_nixl() -> None:
    code = "import sys, kvxfer_nixl; kvxfer_nixl.DESCRIPTOR.probe(); print('nixl' in sys.modules)"
    assert _fresh(code) == "False\n"


def test_nothing_is_written_to_standard_output(nixl_ops: TransportOps) -> None:
    code = """
import time
from kvxfer.status import Status
from kvxfer_nixl import DESCRIPTOR
ops = DESCRIPTOR.load()
(_, ours), (_, theirs) = ops.open({"ucx_tls": "tcp"}), ops.open({"ucx_tls": "tcp"})
(_, peer, _), (_, _, blob) = ops.peer_create(ours), ops.peer_create(theirs)
ops.close(theirs)
ops.peer_connect(ours, peer, blob)
end = time.monotonic() + 30
# UCX writes an error for each connection that is refused.
while ops.send_notification(ours, peer, b"x") == Status.OK and time.monotonic() < end:
    ops.poll_notifications(ours, 1)
"""
    assert _fresh(code) == ""


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvxfer_nixl, "find_spec", lambda _name: None)
    status, text = kvxfer_nixl.DESCRIPTOR.probe()
    assert status == Status.LIBRARY_MISSING
    assert "pip install --no-deps nixl nixl-cu12" in text
    monkeypatch.setattr(kvxfer_nixl, "find_spec", lambda name: name if name == "nixl" else None)
    status, text = kvxfer_nixl.DESCRIPTOR.probe()
    assert status == Status.LIBRARY_MISSING
    assert "nixl-cu12" in text
