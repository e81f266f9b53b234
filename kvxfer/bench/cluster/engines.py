"""P and D as their steps, and the thread that posts beside them.

Owns when steps begin and end. Knows no router and no way. Invariants: a request joins
or leaves an engine at the boundary of a step only; D's steps between two changes are
reckoned, not played, so that a run costs what its requests do and not what its steps do.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import attrs

from kvxfer.bench.cluster.costs import Costs
from kvxfer.bench.cluster.events import Action, Events

PREFIX_TOKENS = 512
"""Tokens of one hash id of a trace."""


@attrs.define(eq=False)
class Line:
    """Something that serves one at a time, in order: a thread that posts, a network port."""

    free_s: float = 0.0
    busy_s: float = 0.0

    def take(self, from_s: float, length_s: float) -> float:
        """Use it as soon as it is free; gives the end."""
        self.free_s = max(self.free_s, from_s) + length_s
        self.busy_s += length_s
        return self.free_s


@attrs.define(eq=False)
class PrefixCache:
    """Which prefix blocks an engine still has: the least recently used leave first."""

    blocks_max: int
    _blocks: OrderedDict[int, None] = attrs.field(factory=OrderedDict)

    def hit_tokens(self, prefix: Sequence[int], tokens: int) -> int:
        """How many leading tokens are there; one at least has to be computed."""
        found = 0
        for block in prefix:
            if block not in self._blocks:
                break
            found += 1
        return min(found * PREFIX_TOKENS, tokens - 1)

    def add(self, prefix: Sequence[int]) -> None:
        if not self.blocks_max:
            return
        for block in prefix:
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > self.blocks_max:
            self._blocks.popitem(last=False)


@attrs.define(eq=False)
class _Job:
    left: int
    before: int
    on_chunk: Callable[[int, bool], None]


@attrs.define(eq=False)
class Prefill:
    """One P: steps of at most `chunk_tokens` tokens, first come first served."""

    events: Events
    costs: Costs
    cache: PrefixCache
    thread: Line = attrs.field(factory=Line)
    port: Line = attrs.field(factory=Line)
    waiting_tokens: int = 0
    """Sent here and not computed yet; counted by who sends, before they arrive."""
    busy_s: float = 0.0
    _jobs: deque[_Job] = attrs.field(factory=deque)
    _busy: bool = False
    _began_s: float = 0.0
    _ends_s: float = 0.0

    def add(self, tokens: int, before: int, on_chunk: Callable[[int, bool], None]) -> None:
        """`on_chunk(tokens, last)` is called at the end of every step that computed some."""
        self._jobs.append(_Job(left=tokens, before=before, on_chunk=on_chunk))
        if not self._busy:
            self._step()

    def at_poll(self, action: Action) -> None:
        """When the engine next looks at its transfers: in or after its step, or soon where idle."""
        if not self._busy:
            self.events.after(self.costs.idle_poll_ms / 1e3, action)
            return
        apart_s = (self._ends_s - self._began_s) / self.costs.prefill_polls
        passed = (self.events.now_s - self._began_s) / apart_s
        self.events.at(self._began_s + math.ceil(passed) * apart_s, action)

    def _step(self) -> None:
        self._busy = True
        room, length_s, ended = self.costs.chunk_tokens, 0.0, []
        for job in self._jobs:
            take = min(room, job.left)
            if not take:
                break
            length_s += self.costs.prefill_s(take, job.before)
            ended.append((job, take))
            room -= take
        # The base is of a step, however many requests share it.
        length_s -= (len(ended) - 1) * self.costs.prefill_base_ms / 1e3
        self.busy_s += length_s
        self._began_s, self._ends_s = self.events.now_s, self.events.now_s + length_s
        self.events.at(self._ends_s, lambda: self._end(ended))

    def _end(self, ended: list[tuple[_Job, int]]) -> None:
        self._busy = False
        for job, took in ended:
            job.left -= took
            job.before += took
            self.waiting_tokens -= took
            if not job.left:
                self._jobs.remove(job)
            job.on_chunk(took, job.left == 0)
        if self._jobs and not self._busy:
            self._step()


@attrs.define(eq=False)
class Decode:
    """One D: one token a step for each request that runs."""

    events: Events
    costs: Costs
    thread: Line = attrs.field(factory=Line)
    port: Line = attrs.field(factory=Line)
    library: Line = attrs.field(factory=Line)
    """Where transfers only move while this engine polls: they share its polls."""
    held: int = 0
    """Requests that were sent here and have not ended."""
    stalled_s: float = 0.0
    _running: list[tuple[int, int, Action]] = attrs.field(factory=list)
    _boundary_s: float = 0.0
    _steps: int = 0
    """Ended at `_boundary_s`."""
    _version: int = 0
    _count: int = 0

    @property
    def running(self) -> int:
        return len(self._running)

    def at_poll(self, action: Action) -> None:
        """At the end of the step that runs, or soon where none does."""
        if not self._running:
            self.events.after(self.costs.idle_poll_ms / 1e3, action)
            return
        due_s = self._next_boundary()

        def look() -> None:
            # Stalls move boundaries.
            later_s = self._next_boundary()
            if self._running and later_s > self.events.now_s + 1e-9:
                self.events.at(later_s, look)
            else:
                action()

        self.events.at(due_s, look)

    def stall(self, length_s: float) -> None:
        """The engine's thread does something else between two steps. Call it at a boundary."""
        self._settle()
        self.stalled_s += length_s
        self._boundary_s = max(self._boundary_s, self.events.now_s) + length_s
        self._plan()

    def join(self, tokens: int, on_first: Action, on_last: Action) -> None:
        """Run a request for so many tokens. Call it at a boundary."""
        self._settle()
        if not self._running:
            self._boundary_s = max(self._boundary_s, self.events.now_s)
        self._count += 1
        heapq.heappush(self._running, (self._steps + tokens, self._count, on_last))
        self._plan()
        self.events.at(self._boundary_s + self._length(), on_first)

    @property
    def step_s(self) -> float:
        """Of the step that runs, or of one with a single request."""
        return self.costs.decode_s(max(1, len(self._running)))

    def _length(self) -> float:
        return self.costs.decode_s(len(self._running))

    def _next_boundary(self) -> float:
        passed = (self.events.now_s - self._boundary_s) / self._length()
        return self._boundary_s + max(0, math.ceil(passed - 1e-6)) * self._length()

    def _settle(self) -> None:
        """Count the steps that have ended until now."""
        if self._running and self.events.now_s > self._boundary_s:
            passed = round((self.events.now_s - self._boundary_s) / self._length())
            self._steps += passed
            self._boundary_s += passed * self._length()

    def _plan(self) -> None:
        """When the next request has all its tokens."""
        self._version += 1
        version = self._version
        if self._running:
            steps = self._running[0][0] - self._steps
            end_s = self._boundary_s + steps * self._length()
            self.events.at(end_s, lambda: self._leave(version))

    def _leave(self, version: int) -> None:
        if version != self._version:
            return
        self._settle()
        while self._running and self._running[0][0] <= self._steps:
            heapq.heappop(self._running)[2]()
        self._plan()
