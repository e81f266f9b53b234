"""Two connected loopback sessions on a hub of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from kvxfer.status import Status
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import COMPLETION, Memory, TransportOps

SIZE = 4096


class End:
    """One session with one registered buffer."""

    def __init__(self, ops: TransportOps, options: Mapping[str, Any], size: int) -> None:
        self.ops = ops
        status, self.session = ops.open(options)
        assert status == Status.OK, ops.last_error(0)
        self.bytes = np.zeros(size, dtype=np.uint8)
        self.base = self.bytes.ctypes.data
        self.memory = Memory(base=self.base, length=size, keepalive=self.bytes)
        status, self.region = ops.register_region(self.session, self.memory)
        assert status == Status.OK
        status, self.peer, self.blob = ops.peer_create(self.session)
        assert status == Status.OK

    def poll(self, room: int = 64) -> list[tuple[int, int, int]]:
        records = np.zeros(room, dtype=COMPLETION)
        status, count = self.ops.poll(self.session, records)
        assert status == Status.OK
        return records[:count].tolist()

    def ends(self) -> list[tuple[int, Status]]:
        return [(request, Status(status)) for request, _, status in self.poll()]

    def notices(self, room: int = 64) -> list[bytes]:
        status, taken = self.ops.poll_notifications(self.session, room)
        assert status == Status.OK
        return [payload for _, payload in taken]

    def fence(self) -> Status:
        return self.ops.fence_peer(self.session, self.peer)


class Link:
    """`a` and `b`, connected. Ranges are (offset at a, offset at b, length)."""

    def __init__(
        self,
        ops: TransportOps | None = None,
        *,
        size: int = SIZE,
        a: Mapping[str, Any] | None = None,
        b: Mapping[str, Any] | None = None,
    ) -> None:
        self.ops = make_ops(Hub()) if ops is None else ops
        self.a, self.b = End(self.ops, a or {}, size), End(self.ops, b or {}, size)
        for one, other in ((self.a, self.b), (self.b, self.a)):
            status = self.ops.peer_connect(one.session, one.peer, other.blob)
            assert status == Status.OK

    def columns(self, *ranges: tuple[int, int, int]) -> tuple[Any, Any, Any]:
        local = np.array([self.a.base + at for at, _, _ in ranges], dtype=np.uint64)
        remote = np.array([self.b.base + at for _, at, _ in ranges], dtype=np.uint64)
        return local, remote, np.array([length for _, _, length in ranges], dtype=np.uint64)

    def post(
        self, *ranges: tuple[int, int, int], notify: bytes | None = None, slot: str = "post_write"
    ) -> tuple[Status, int]:
        call = getattr(self.ops, slot)
        return call(self.a.session, self.a.peer, *self.columns(*ranges), notify)

    def write(self, *ranges: tuple[int, int, int], notify: bytes | None = None) -> int:
        status, request = self.post(*ranges, notify=notify)
        assert status == Status.OK, self.ops.last_error(self.a.session)
        return request

    def close(self) -> None:
        for end in (self.a, self.b):
            self.ops.close(end.session)


@pytest.fixture
def make_link() -> Iterator[Callable[..., Link]]:
    links: list[Link] = []

    def make(*args: Any, **kwargs: Any) -> Link:
        links.append(Link(*args, **kwargs))
        return links[-1]

    yield make
    for link in links:
        link.close()


@pytest.fixture
def link(make_link: Callable[..., Link]) -> Link:
    return make_link()
