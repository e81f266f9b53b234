"""A child of a command whose parent has gone, before its first word or after it, ends quietly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from kvxfer.testing.workers import worker_pool

CHILDREN = {
    "demo": ["kvxfer.demo.child", "{fd}"],
    "conform": ["kvxfer.conformance.far_end", "{fd}", "loopback"],
    "bench transport": ["kvxfer.bench.transport_far", "{fd}"],
}


@pytest.mark.parametrize("command", CHILDREN)
def test_a_child_without_a_parent_ends_quietly(command: str) -> None:
    ours, theirs = socket.socketpair()
    words = [word.format(fd=theirs.fileno()) for word in CHILDREN[command]]
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", *words],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    ours.close()
    said = child.communicate(timeout=100)[1]
    assert (child.returncode, said) == (0, "")


def blocked(_number: int) -> list[Any]:
    """What a worker does not see; runs over there."""
    return [number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]


def test_workers_never_see_ctrl_c_and_the_parent_does() -> None:
    with worker_pool(2) as pool:
        assert pool.map(blocked, range(2)) == [["SIGINT"]] * 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
