"""What the kit is given: two open sessions that can reach each other.

Owns the shape of a subject. Refuses to know how its sessions were opened, in
which threads or processes they live, and what memory they use. Invariant: the
kit talks to an endpoint through its table alone.
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np

from kvxfer.errors import TransportFault
from kvxfer.status import Status
from kvxfer.transport.ops import Memory, TransportOps


class Buffer(Protocol):
    """Memory that the kit can register and look into."""

    @property
    def memory(self) -> Memory:
        """What is given to `register_region`."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes as the memory's owner sees them now."""

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes there."""


class DramBuffer:
    """`length` zero bytes of this process."""

    def __init__(self, length: int) -> None:
        self._bytes = np.zeros(length, dtype=np.uint8)
        self.memory = Memory(base=self._bytes.ctypes.data, length=length, keepalive=self._bytes)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length].tobytes()

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)


class RawBuffer:
    """`length` bytes at `base` that somebody else keeps, in this process."""

    def __init__(self, base: int, length: int) -> None:
        self.memory = Memory(base=base, length=length)

    def read(self, offset: int, length: int) -> bytes:
        return ctypes.string_at(self.memory.base + offset, length)

    def write(self, offset: int, data: bytes) -> None:
        ctypes.memmove(self.memory.base + offset, data, len(data))


def readable(fd: int) -> bool:
    """Whether a descriptor of this process is readable now."""
    # Not select(): it takes no descriptor above 1023, and a process may hold more.
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


@attrs.frozen(kw_only=True)
class Endpoint:
    """One open session of a table. Nothing is registered and no peer exists in it.

    `memory_factory(length)` gives memory that this end can register; where it is
    None the kit uses the factory of the run.
    """

    ops: TransportOps
    session: int
    memory_factory: Callable[[int], Buffer] | None = None
    view: Callable[[int, int], Buffer] = RawBuffer
    """view(base, length): a look at host memory of this end that the transport allocated."""
    readable: Callable[[int], bool] = readable
    """readable(fd): whether the descriptor that `wakeup_fd` gave is readable, asked at this end."""


class FarControl(Protocol):
    """Power over the process in which end b lives."""

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""

    def stop(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def restart(self) -> Endpoint:
        """After `kill`: a new process opens the transport with the same options."""

    def memory_at(self, base: int, length: int) -> Buffer:
        """Memory of the process at an address that is free in it, as the old process had it."""


def _nothing() -> None:
    """Nothing needs to be done between two polls."""


@attrs.frozen(kw_only=True)
class Pair:
    """Two endpoints of one run of one case.

    `step` lets the world between the endpoints go on (a simulated network, a
    short pause); the kit itself polls both tables, from one thread. `close` ends
    the sessions that are still open; where it is None the kit calls the tables.
    `third` opens one more endpoint for the cases that need it. `far` is there where b lives
    in a process of its own.
    """

    a: Endpoint
    b: Endpoint
    step: Callable[[], None] = _nothing
    close: Callable[[], None] | None = None
    third: Callable[[], Endpoint] | None = None
    far: FarControl | None = None


MakePair: TypeAlias = Callable[[], Pair]


def pair_maker(
    ops: TransportOps,
    *,
    options: Callable[[str], Mapping[str, Any]] = lambda _name: {},
    step: Callable[[], None] = _nothing,
    memory_factory: Callable[[int], Buffer] | None = None,
) -> MakePair:
    """Pairs whose sessions are all opened from one table in this process.

    `options(name)` gives the `open` options of the endpoint called "a", "b" or
    "c". Making a pair raises `TransportFault` where a session does not open.
    """

    def open_endpoint(name: str) -> Endpoint:
        status, session = ops.open(options(name))
        if status != Status.OK:
            raise TransportFault("open", Status(status), ops.last_error(session))
        return Endpoint(ops=ops, session=session, memory_factory=memory_factory)

    def make_pair() -> Pair:
        a = open_endpoint("a")
        try:
            b = open_endpoint("b")
        except TransportFault:
            ops.close(a.session)
            raise
        return Pair(a=a, b=b, step=step, third=lambda: open_endpoint("c"))

    return make_pair
