"""Counts in buckets, cheap enough for every transfer.

Owns the bounds of durations. Knows no metrics library. Invariant: one thread
observes; any thread may take a snapshot, which is at most one observation apart
between its sum and its counts.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import attrs

SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the buckets, in seconds: 100 us to a minute."""


@attrs.frozen
class Snapshot:
    """`counts[k]` observations were at most `bounds[k]` and above the bound before; the last
    one counts what is above all bounds. `total` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@attrs.define
class Histogram:
    """Durations in seconds."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = attrs.field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def snapshot(self) -> Snapshot:
        return Snapshot(self.bounds, tuple(self.counts), self.total)
