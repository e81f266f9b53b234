"""Two ends for tests of the NIXL transport: in this process, and in another one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvxfer_ucx
from kvxfer.conformance.endpoint import MakePair, pair_maker
from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, Memory, TransportOps
from kvxfer_nixl import DESCRIPTOR

DEADLINE_S = 30.0
_FAR_END = Path(__file__).with_name("nixl_far_end.py")


class Near:
    """This process's end: one session with one region and one peer."""

    def __init__(self, ops: TransportOps, options: dict[str, Any], length: int) -> None:
        self.ops = ops
        status, self.session = ops.open(options)
        assert status == Status.OK, ops.last_error(self.session)
        self.memory = np.zeros(length, dtype=np.uint8)
        self.base = self.memory.ctypes.data
        self.must("register_region", Memory(base=self.base, length=length))
        self.peer, self.blob = self.must("peer_create")
        self.records = np.zeros(64, dtype=COMPLETION)
        self.ends: list[Status] = []
        self.notices: list[bytes] = []

    def must(self, slot: str, *args: Any) -> Any:
        answer = getattr(self.ops, slot)(self.session, *args)
        status, *rest = answer if isinstance(answer, tuple) else (answer,)
        assert status == Status.OK, f"{slot}: {status.name} {self.ops.last_error(self.session)}"
        return rest[0] if len(rest) == 1 else tuple(rest)

    def post(
        self, slot: str, remote: int, ranges: list[tuple[int, int, int]], notify: bytes | None
    ) -> tuple[Status, int]:
        """Post (local offset, remote offset, length) ranges."""
        table = np.array(ranges, dtype=np.uint64).reshape(-1, 3)
        return getattr(self.ops, slot)(
            self.session,
            self.peer,
            self.base + table[:, 0],
            remote + table[:, 1],
            table[:, 2],
            notify,
        )

    def turn(self) -> None:
        count = self.must("poll", self.records)
        self.ends += [Status(end) for end in self.records["status"][:count].tolist()]
        self.notices += [payload for _, payload in self.must("poll_notifications", 64)]

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until `condition` holds; fails after the deadline."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, "the condition did not come true in time"
            self.turn()

    def fence(self) -> Status:
        return self.ops.fence_peer(self.session, self.peer)

    def close(self) -> None:
        self.ops.close(self.session)


class Far:
    """The other process's end, by commands."""

    def __init__(self, name: str, options: dict[str, Any], length: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(_FAR_END), str(theirs.fileno()), name],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._link = Connection(ours.detach())
        self._link.send((options, length))
        assert self._recv() == "ready"

    def call(self, name: str, *args: Any) -> Any:
        """One command and its answer."""
        self._link.send((name, args))
        return self._recv()

    def send(self, name: str, *args: Any) -> None:
        """One command whose answer never comes."""
        self._link.send((name, args))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._link.close()
        if self.process.poll() is None:
            self.go_on()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def _recv(self) -> Any:
        assert self._link.poll(DEADLINE_S), "the other process does not answer"
        return self._link.recv()


@pytest.fixture(scope="session")
def nixl_ops() -> TransportOps:
    """The table; skips where nixl is not installed."""
    status, text = DESCRIPTOR.probe()
    if status != Status.OK:
        pytest.skip(text)
    return DESCRIPTOR.load()


@pytest.fixture
def make_nixl_pair(nixl_ops: TransportOps) -> Callable[[dict[str, Any]], MakePair]:
    """Gives pairs of sessions of this process for the conformance kit, by their options."""
    return lambda options: pair_maker(nixl_ops, options=lambda _name: options)


@pytest.fixture
def connect_nixl(nixl_ops: TransportOps) -> Iterator[Callable[..., tuple[Near, Far, int]]]:
    """Gives two connected ends in two processes and the base address of the far region."""
    yield from _connecting("nixl", nixl_ops)


@pytest.fixture(scope="session")
def ucx_ops() -> TransportOps:
    """The table of UCX; skips where it is not installed."""
    status, text = kvxfer_ucx.DESCRIPTOR.probe()
    if status != Status.OK:
        pytest.skip(text)
    return kvxfer_ucx.DESCRIPTOR.load()


@pytest.fixture
def connect_ucx(ucx_ops: TransportOps) -> Iterator[Callable[..., tuple[Near, Far, int]]]:
    """As `connect_nixl`, over UCX."""
    yield from _connecting("ucx", ucx_ops)


def _connecting(name: str, ops: TransportOps) -> Iterator[Callable[..., tuple[Near, Far, int]]]:
    nears: list[Near] = []
    fars: list[Far] = []

    def connect(length: int, **options: Any) -> tuple[Near, Far, int]:
        nears.append(Near(ops, options, length))
        fars.append(Far(name, options, length))
        near, far = nears[-1], fars[-1]
        base, blob = far.call("create")
        near.must("peer_connect", near.peer, blob)
        assert far.call("connect", near.blob) == Status.OK
        return near, far, base

    yield connect
    for far in fars:
        far.end()
    for near in nears:
        near.close()
