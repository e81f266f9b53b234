"""Virtual time: a heap of what is due.

Owns the clock of a simulation. Invariant: two events of one moment happen in the order
in which they were asked for, so that a run depends on nothing but its input.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import attrs

Action = Callable[[], None]


@attrs.define
class Events:
    """Seconds since the start."""

    now_s: float = 0.0
    _due: list[tuple[float, int, Action]] = attrs.field(factory=list)
    _count: int = 0

    def at(self, when_s: float, action: Action) -> None:
        """Call `action` at that time, or now where it has passed."""
        self._count += 1
        heapq.heappush(self._due, (max(when_s, self.now_s), self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_s + delay_s, action)

    def run(self) -> int:
        """Until nothing is due; gives the number of events."""
        happened = 0
        while self._due:
            self.now_s, _, action = heapq.heappop(self._due)
            action()
            happened += 1
        return happened
