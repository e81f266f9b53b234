"""Virtual time: what happens next, and how each agent's clock reads it.

Owns the order of everything in a run. Knows no protocol. Invariant: entries of
one instant run in the order in which they were made, so a run is a function of
its seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import attrs

CLOCK_RATE_PPM_MAX = 20_000
"""Clocks of two agents drift apart by at most 2 %, far worse than any crystal."""
CLOCK_OFFSET_MS_MAX = 1_000_000_000


@attrs.define(eq=False)
class Agenda:
    """A heap of things to come. Times are in microseconds of the world's own clock."""

    now_us: int = 0
    steps: int = 0
    _heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = attrs.field(factory=list)
    _serial: int = 0

    def at(self, at_us: int, action: Callable[..., object], *args: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (max(at_us, self.now_us), self._serial, action, args))

    def later(self, delay_us: int, action: Callable[..., object], *args: Any) -> None:
        self.at(self.now_us + delay_us, action, *args)

    def run(self, until_us: int) -> bool:
        """Do everything up to `until_us`. True where nothing is left at all."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now_us, _, action, args = heapq.heappop(heap)
            self.steps += 1
            action(*args)
        return not heap


@attrs.frozen
class Clock:
    """One agent's monotonic clock: another start and another rate than the world's."""

    offset_ms: int = 0
    rate_ppm: int = 0

    def read_ms(self, now_us: int) -> int:
        return self.offset_ms + now_us * (1_000_000 + self.rate_ppm) // 1_000_000_000

    def when_us(self, local_ms: int) -> int:
        """The first instant at which this clock shows `local_ms`."""
        return -(-(local_ms - self.offset_ms) * 1_000_000_000 // (1_000_000 + self.rate_ppm))
