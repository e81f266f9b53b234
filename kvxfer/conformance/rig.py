"""The workbench of a case: two sides, their memory, and turning the crank.

Owns the calls into the subject; each is checked for rule 1 (no exception, the
right types) in passing. Refuses to judge anything else: cases do. Invariant:
every wait ends, at the latest after `deadline_s`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import numpy as np

from kvxfer.conformance.case import CaseFailedError, NotSupportedError, expect
from kvxfer.conformance.endpoint import Buffer, DramBuffer, Endpoint, FarControl, Pair
from kvxfer.status import Status, is_never_posted
from kvxfer.transport.answers import answer_fault
from kvxfer.transport.caps import Caps
from kvxfer.transport.faults import FaultPlan
from kvxfer.transport.faulty import faulty
from kvxfer.transport.ops import COMPLETION, U64, Direction, Strided

SETTLE_TURNS: Final = 20
"""Turns without an event after which nothing more is expected, beside `settle_s`."""

_LONG_FACTOR: Final = 6
"""A long run moves up to 1 GiB at a time and waits as much longer for it."""

FENCE_TRIES_S: Final = 2.0
"""How long a fence that is not granted is tried again, at most."""


def u64(values: Iterable[int]) -> U64:
    """A column."""
    return np.fromiter(values, dtype=np.uint64)


def strided(entries: Iterable[tuple[int, int, int, int, int, int]]) -> Strided:
    """Columns from (local, remote, length, count, local stride, remote stride) of each entry."""
    table = np.array(list(entries), dtype=np.uint64).reshape(-1, 6)
    names = ("local", "remote", "length", "count", "local_stride", "remote_stride")
    return Strided(**{name: table[:, at].copy() for at, name in enumerate(names)})


def pattern(seed: int, length: int) -> bytes:
    """Bytes that differ from those of other seeds at nearly every place; never all zero."""
    return np.random.default_rng(seed).integers(1, 256, length, dtype=np.uint8).tobytes()


@attrs.frozen
class Region:
    """A registered buffer."""

    buffer: Buffer
    handle: int

    @property
    def base(self) -> int:
        return self.buffer.memory.base

    @property
    def length(self) -> int:
        return self.buffer.memory.length

    def fill(self, data: bytes, offset: int = 0) -> None:
        """Put `data` at `offset`."""
        self.buffer.write(offset, data)

    def content(self, offset: int = 0, length: int | None = None) -> bytes:
        """What the owner sees there now."""
        return self.buffer.read(offset, self.length - offset if length is None else length)


@attrs.frozen(kw_only=True)
class Limits:
    """How long a case waits and looks, and whether it may take long; see `check_transport`."""

    deadline_s: float
    settle_s: float
    long: bool = False


class Side:
    """One endpoint, with what has come out of its two polls."""

    def __init__(self, name: str, endpoint: Endpoint, make_buffer: Callable[[int], Buffer]) -> None:
        self.name = name
        self.ops = endpoint.ops
        self.session = endpoint.session
        self.closed = False
        self.ends: dict[int, list[Status]] = {}
        """Completions by request, in order; a good transport gives one each."""
        self.requests: list[int] = []
        """Requests in the order in which they were given."""
        self.notices: list[tuple[int, bytes]] = []
        self.on_notice: Callable[[bytes], None] | None = None
        """Called as soon as a notification is out of the table."""
        self.records = np.zeros(64, dtype=COMPLETION)
        self._make_buffer = endpoint.memory_factory or make_buffer
        self._view = endpoint.view
        self.readable = endpoint.readable
        """Whether a descriptor of this end is readable."""
        self.in_flight: dict[int, Any] = {}
        """Columns of requests that have not ended: rule 9, the caller keeps them until then."""

    def call(self, slot: str, *args: Any, session: Any = None) -> Any:
        """Call a slot; rule 1 is checked. `session` replaces the real handle."""
        handle = self.session if session is None else session
        shown = f"{self.name}.{slot}"
        try:
            answer = getattr(self.ops, slot)(handle, *args)
        except Exception as error:
            raise CaseFailedError(
                f"{shown}: {type(error).__name__} crossed the table: {error}"
            ) from error
        fault = answer_fault(slot, answer)
        expect(not fault, f"{shown}: {fault}")
        return answer

    def caps(self) -> Caps:
        """Flags of this end."""
        return Caps(self.call("caps"))

    def must(self, slot: str, *args: Any) -> Any:
        """Call a slot that has to answer OK; gives what came beside the status."""
        answer = self.call(slot, *args)
        status, *rest = answer if isinstance(answer, tuple) else (answer,)
        if status != Status.OK:
            raise CaseFailedError(
                f"{self.name}.{slot}: {status.name}, wanted OK ({self.call('last_error')})"
            )
        return rest[0] if len(rest) == 1 else tuple(rest)

    def region(self, length: int) -> Region:
        """A new buffer of `length` bytes, registered."""
        buffer = self._make_buffer(length)
        return Region(buffer, self.must("register_region", buffer.memory))

    def allocate(self, length: int) -> Region:
        """`length` bytes of host memory of the transport's own."""
        handle, base = self.must("allocate_region", length, "dram", 0)
        return Region(self._view(base, length), handle)

    def post_strided(
        self,
        peer: int,
        columns: Strided,
        notify: bytes | None = None,
        *,
        direction: Direction = Direction.WRITE,
    ) -> tuple[Status, int]:
        """Post strided columns."""
        answer = self.call("post_strided", peer, direction, columns, notify)
        return self._posted("post_strided", answer, columns)

    def post(
        self,
        peer: int,
        local: Iterable[int],
        remote: Iterable[int],
        length: Iterable[int],
        notify: bytes | None = None,
        *,
        slot: str = "post_write",
    ) -> tuple[Status, int]:
        """Post columns given as plain numbers."""
        columns = (u64(local), u64(remote), u64(length))
        return self._posted(slot, self.call(slot, peer, *columns, notify), columns)

    def _posted(self, slot: str, answer: tuple[Status, int], columns: Any) -> tuple[Status, int]:
        status, request = answer
        if status == Status.OK:
            self.in_flight[request] = columns
            self.ends.setdefault(request, [])
            self.requests.append(request)
        else:
            expect(
                is_never_posted(status), f"{self.name}.{slot}: {status.name} is not 'never posted'"
            )
        return status, request

    def write(self, peer: int, source: Region, target: Region, notify: bytes | None = None) -> int:
        """Post the whole of `source` to the start of `target`; gives the request."""
        status, request = self.post(peer, [source.base], [target.base], [source.length], notify)
        expect(status == Status.OK, f"{self.name}.post_write: {status.name}, wanted OK")
        return request

    def poll(self) -> None:
        """Take completions once."""
        if self.closed:
            return
        count = self.must("poll", self.records)
        expect(0 <= count <= len(self.records), f"{self.name}.poll filled {count} records")
        for request, _, status in self.records[:count].tolist():
            known = status in Status._value2member_map_
            expect(known, f"{self.name}.poll: request {request} ended with {status}")
            self.ends.setdefault(request, []).append(Status(status))
            self.in_flight.pop(request, None)

    def take_notices(self) -> None:
        """Take notifications once."""
        if self.closed:
            return
        for peer, payload in self.must("poll_notifications", 64):
            self.notices.append((peer, payload))
            if self.on_notice is not None:
                self.on_notice(payload)

    def close(self) -> None:
        """Close the session."""
        self.must("close")
        self.closed = True


class Rig:
    """Two sides that are not connected yet, `a` and `b`."""

    def __init__(
        self,
        pair: Pair,
        *,
        memory_factory: Callable[[int], Buffer] | None,
        limits: Limits,
    ) -> None:
        self._pair = pair
        self._make_buffer: Callable[[int], Buffer] = memory_factory or DramBuffer
        self._deadline_s = limits.deadline_s * (_LONG_FACTOR if limits.long else 1)
        self._settle_s = limits.settle_s
        self.long = limits.long
        """True where rounds and sizes may take minutes."""
        self.measures: dict[str, float] = {}
        self.a = Side("a", pair.a, self._make_buffer)
        self.b = Side("b", pair.b, self._make_buffer)
        self.sides = [self.a, self.b]

    def third(self) -> Side:
        """One more side, `c`; the case is unsupported where the subject opens no third one."""
        if self._pair.third is None:
            raise NotSupportedError("the pair opens no third endpoint")
        side = Side("c", self._pair.third(), self._make_buffer)
        self.sides.append(side)
        return side

    @property
    def far(self) -> FarControl:
        """Power over the process of b; the case is unsupported where b has none of its own."""
        if self._pair.far is None:
            raise NotSupportedError("end b has no process of its own")
        return self._pair.far

    def kill_b(self) -> None:
        """SIGKILL the process of b; nothing is called there any more."""
        self.b.closed = True
        self.far.kill()

    def restart_b(self) -> Side:
        """A new process in the place of b that was killed: the same options, nothing in it."""
        self.b = Side("b", self.far.restart(), self._make_buffer)
        self.sides[1] = self.b
        return self.b

    def with_faults(self, side: Side, plan: FaultPlan) -> None:
        """Put the faults of `plan` on top of the table of `side`, whose session is open."""
        opened = attrs.evolve(side.ops, open=lambda _options: (Status.OK, side.session))
        side.ops = faulty(opened, plan)
        side.ops.open({})

    def rounds(self, count: int, long_count: int) -> int:
        """How many rounds this run takes."""
        return long_count if self.long else count

    def measure(self, name: str, value: float) -> None:
        """Put a measured value into the report; where one is there, the larger one stays."""
        self.measures[name] = max(value, self.measures.get(name, value))

    def connect(self, one: Side | None = None, other: Side | None = None) -> tuple[int, int]:
        """Peers between two sides, by default a and b; gives the two peer handles."""
        one, other = one or self.a, other or self.b
        one_peer, one_blob = one.must("peer_create")
        other_peer, other_blob = other.must("peer_create")
        one.must("peer_connect", one_peer, other_blob)
        other.must("peer_connect", other_peer, one_blob)
        return one_peer, other_peer

    def turn(self) -> None:
        """Let everything go on a little. Notifications are looked at before any poll."""
        for side in reversed(self.sides):
            side.take_notices()
        for side in self.sides:
            side.poll()
        self._pair.step()

    def until(self, condition: Callable[[], bool], text: str) -> None:
        """Turn until `condition` holds, or fail the case with `text`."""
        if not self.reaches(condition):
            raise CaseFailedError(f"{text}: not within {self._deadline_s} s")

    def wait(self, condition: Callable[[], bool], text: str) -> None:
        """Like `until`, but nothing is polled: only the world between the ends goes on."""
        if not self._loop(condition, self._pair.step, self._deadline_s):
            raise CaseFailedError(f"{text}: not within {self._deadline_s} s")

    def reaches(self, condition: Callable[[], bool]) -> bool:
        """Turn until `condition` holds; False where it does not within the deadline."""
        return self._loop(condition, self.turn, self._deadline_s)

    @staticmethod
    def _loop(
        condition: Callable[[], bool], between: Callable[[], None], duration_s: float
    ) -> bool:
        end = time.monotonic() + duration_s
        while not condition():
            if time.monotonic() > end:
                return False
            between()
        return True

    def settle(self) -> None:
        """Turn for a while in which something wrong could still show."""
        end = time.monotonic() + self._settle_s
        for count in itertools.count():
            if count >= SETTLE_TURNS and time.monotonic() > end:
                return
            self.turn()

    def finish(self, side: Side, request: int) -> Status:
        """Turn until `request` of `side` has ended; gives how."""
        self.until(lambda: bool(side.ends[request]), f"request {request} of {side.name} ends")
        return side.ends[request][0]

    def finish_all(self, side: Side) -> list[Status]:
        """Turn until every request of `side` has ended; gives how, in the order of posting."""
        self.until(lambda: not side.in_flight, f"all requests of {side.name} end")
        return [side.ends[request][0] for request in side.requests]

    def fence(self, side: Side, peer: int) -> bool:
        """Fence `peer` at `side`, trying again; False where no proof is given in time."""
        fenced: list[bool] = []

        def tried() -> bool:
            status = side.call("fence_peer", peer)
            expect(
                status in (Status.OK, Status.NOT_FENCED),
                f"{side.name}.fence_peer: {status.name}, wanted OK or NOT_FENCED",
            )
            fenced.append(status == Status.OK)
            return fenced[-1]

        return self._loop(tried, self.turn, min(FENCE_TRIES_S, self._deadline_s))
