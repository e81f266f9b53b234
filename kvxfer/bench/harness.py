"""Timing that can be compared: warmed up, interleaved, with its spread.

Owns the clock of a benchmark and the arithmetic on samples. Knows nothing of what is
timed. Invariant: all cases of a call take turns, in an order that rotates, so that a
machine that slows down for a while slows all of them, and none always runs in the cache
that its neighbour left.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from kvxfer.errors import BadValue

Fact = str | int | float | bool
ROUNDS_MAX = 100_000


def percentile(samples: Sequence[float], percent: int) -> float | None:
    """The sample below which `percent` of 100 lie; None where there is none."""
    if not samples:
        return None
    return sorted(samples)[min(len(samples) - 1, len(samples) * percent // 100)]


def cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds of this process in `action`; the cyclic collector stands still meanwhile."""
    gc.disable()
    try:
        started = time.process_time()
        action()
        return time.process_time() - started
    finally:
        gc.enable()


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """One thing to time: `run` is called once per round and its result dropped.

    `facts` go into the row as they are (counts, sizes). A case that cannot run here has
    no `run` and says why in `skipped`: it gets a row and no time.
    """

    name: str
    run: Callable[[], object] | None = None
    facts: Mapping[str, Fact] = attrs.field(factory=dict)
    skipped: str = ""


@attrs.frozen(kw_only=True)
class Row:
    """A case and its samples, in milliseconds, in the order in which they were taken."""

    name: str
    facts: Mapping[str, Fact]
    samples_ms: tuple[float, ...] = ()
    skipped: str = ""

    def ms(self, percent: int) -> float | None:
        """The sample below which `percent` of 100 lie; None where nothing was measured."""
        return percentile(self.samples_ms, percent)

    @property
    def ms_p50(self) -> float | None:
        return statistics.median(self.samples_ms) if self.samples_ms else None

    def to_plain(self) -> dict[str, Any]:
        """The row for JSON; a skipped one has its reason in place of the times."""
        row: dict[str, Any] = {"name": self.name, **self.facts}
        if self.skipped:
            return row | {"skipped": self.skipped}
        times = {"ms_p50": self.ms_p50, "ms_p10": self.ms(10), "ms_p90": self.ms(90)}
        shown = {name: None if ms is None else round(ms, 6) for name, ms in times.items()}
        return row | shown | {"rounds": len(self.samples_ms)}


def measure(
    cases: Sequence[Case],
    *,
    rounds: int,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    on_round: Callable[[int], None] = lambda _: None,
) -> list[Row]:
    """Run every case `warmup` + `rounds` times, in turns; one row per case, in their order.

    `clock` returns seconds. The cyclic garbage collector stands still meanwhile.
    Raises BadValue for a number of rounds out of its bound.
    """
    if not 1 <= rounds <= ROUNDS_MAX:
        raise BadValue("rounds", rounds, f"from 1 to {ROUNDS_MAX}")
    samples: list[list[float]] = [[] for _ in cases]
    live = [(case.run, kept) for case, kept in zip(cases, samples, strict=True) if case.run]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(-warmup, rounds):
            first = number % len(live) if live else 0
            for run, kept in live[first:] + live[:first]:
                start = clock()
                run()
                taken = clock() - start
                if number >= 0:
                    kept.append(taken * 1e3)
            on_round(number)
    finally:
        if collecting:
            gc.enable()
    return [
        Row(name=case.name, facts=case.facts, samples_ms=tuple(kept), skipped=case.skipped)
        for case, kept in zip(cases, samples, strict=True)
    ]
