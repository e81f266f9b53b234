"""From the samples of both engines to the rows of the report.

Owns the arithmetic. Knows no process. Invariant: a percentile is taken over the samples
of all rounds together, never over percentiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from kvxfer.bench import harness
from kvxfer.bench.handoff.setting import Setting


def percentile(samples: Sequence[float], percent: int) -> float:
    """As the harness takes it. Raises ValueError where there is no sample."""
    found = harness.percentile(samples, percent)
    if found is None:
        raise ValueError("no samples")
    return found


@attrs.define(eq=False)
class Samples:
    """Of one way in one case, over all rounds. Seconds, of both engines' main threads."""

    start_s: list[float] = attrs.field(factory=list)
    poll_s: list[float] = attrs.field(factory=list)
    start_cpu_s: list[float] = attrs.field(factory=list)
    poll_cpu_s: list[float] = attrs.field(factory=list)
    """Of the engine's thread in the same calls: what they cost where nobody takes its core."""
    ready_s: list[float] = attrs.field(factory=list)
    idle_steps_s: dict[str, list[float]] = attrs.field(factory=lambda: {"P": [], "D": []})
    loaded_steps_s: dict[str, list[float]] = attrs.field(factory=lambda: {"P": [], "D": []})
    other_cpu_s: list[float] = attrs.field(factory=list)
    """Per request: of all threads of both processes but the engines' own."""
    idle_cpu_share: list[float] = attrs.field(factory=list)
    """The same while nothing is in flight, as a part of the time."""
    requests_per_s: list[float] = attrs.field(factory=list)

    def add(self, setting: Setting, p: Mapping[str, Any], d: Mapping[str, Any]) -> None:
        """One run. The first request of each slot has set things up: it is not timed."""
        for side, found in (("P", p), ("D", d)):
            self.start_s += found["loaded"]["start_s"][setting.slots :]
            self.poll_s += found["loaded"]["poll_s"]
            self.start_cpu_s += found["loaded"]["start_cpu_s"][setting.slots :]
            self.poll_cpu_s += found["loaded"]["poll_cpu_s"]
            self.idle_steps_s[side] += found["idle"]["steps_s"]
            self.loaded_steps_s[side] += found["loaded"]["steps_s"]
        done, ready = p["loaded"]["moments_ns"], d["loaded"]["moments_ns"]
        self.ready_s += [(ready[one] - done[one]) / 1e9 for one in done if one[1] > 0]
        self.other_cpu_s.append(
            sum(one["loaded"]["other_cpu_s"] for one in (p, d)) / setting.requests
        )
        self.idle_cpu_share.append(
            sum(one["idle"]["other_cpu_s"] / one["idle"]["wall_s"] for one in (p, d))
        )
        self.requests_per_s.append(setting.requests / d["loaded"]["wall_s"])

    def inflation(self, side: str) -> float:
        """How much longer the 99th percentile of that engine's steps is under transfers."""
        idle = percentile(self.idle_steps_s[side], 99)
        return percentile(self.loaded_steps_s[side], 99) / idle - 1


def row_of(case: Any, way: str, transport: str, kept: Samples) -> dict[str, Any]:
    """The row for JSON and for the table."""
    inflation = {side: kept.inflation(side) for side in ("P", "D")}
    return {
        "case": case.name,
        "descriptors": case.descriptors,
        "impl": way,
        "transport": transport,
        "handoff_us_p50": round(statistics.median(kept.start_s) * 1e6, 1),
        "handoff_us_p99": round(percentile(kept.start_s, 99) * 1e6, 1),
        "poll_us_p50": round(statistics.median(kept.poll_s) * 1e6, 1),
        "poll_us_p99": round(percentile(kept.poll_s, 99) * 1e6, 1),
        "handoff_cpu_us_p50": round(statistics.median(kept.start_cpu_s) * 1e6, 1),
        "handoff_cpu_us_p99": round(percentile(kept.start_cpu_s, 99) * 1e6, 1),
        "poll_cpu_us_p99": round(percentile(kept.poll_cpu_s, 99) * 1e6, 1),
        "step_inflation_p99": round(max(inflation.values()), 3),
        "step_inflation_p99_prefill": round(inflation["P"], 3),
        "step_inflation_p99_decode": round(inflation["D"], 3),
        "ready_ms_p50": round(statistics.median(kept.ready_s) * 1e3, 3),
        "ready_ms_p99": round(percentile(kept.ready_s, 99) * 1e3, 3),
        "writer_cpu_ms": round(statistics.median(kept.other_cpu_s) * 1e3, 3),
        "idle_cpu_percent": round(statistics.median(kept.idle_cpu_share) * 100, 2),
        "requests_per_s": round(statistics.median(kept.requests_per_s), 2),
        "requests": len(kept.ready_s),
    }


def skipped_row(case: Any, way: str, transport: str, reason: str) -> dict[str, Any]:
    return {
        "case": case.name,
        "descriptors": case.descriptors,
        "impl": way,
        "transport": transport,
        "skipped": reason,
    }


@attrs.frozen(kw_only=True)
class HandoffReport:
    """All rows of a run and where they were taken."""

    rows: tuple[Mapping[str, Any], ...]
    setting: Mapping[str, Any]
    environment: Mapping[str, Any]
    seed: int

    def to_plain(self) -> dict[str, Any]:
        return {
            "bench": "handoff",
            "environment": dict(self.environment),
            "seed": self.seed,
            "setting": dict(self.setting),
            "rows": [dict(row) for row in self.rows],
        }
