"""From the runs of the arms to the rows and aims of the report.

Owns the arithmetic. Knows no agent. Invariants: a ratio is taken within one round and
its median over rounds shown; a percentile is taken over the samples of all rounds.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from kvxfer.bench.harness import percentile
from kvxfer.bench.peers.arm import Carried, Load
from kvxfer.bench.peers.memory import Bytes

ONE: Final = "one"
MANY: Final = "all"
STOPPED: Final = "one stopped"
ARMS: Final = (ONE, MANY, STOPPED)
THROUGHPUT_MIN: Final = 0.9
BYTES_MAX: Final = 8000


@attrs.define(eq=False)
class Samples:
    """All rounds of one transport and one role of the agent under test."""

    load: Load
    runs: dict[str, list[Carried]] = attrs.field(factory=lambda: {arm: [] for arm in ARMS})
    memory: Bytes | None = None

    def others(self, arm: str) -> dict[int, list[float]]:
        """Latencies by peer, seconds; without the last, which is the one that stands still."""
        last = self.load.peers - 1 if arm != ONE else None
        kept: dict[int, list[float]] = {}
        for run in self.runs[arm]:
            for peer, found in run.latency_s.items():
                if peer != last:
                    kept.setdefault(peer, []).extend(found)
        return kept


def row_of(kept: Samples, arm: str) -> dict[str, Any]:
    """One arm, for JSON and for the table."""
    runs = kept.runs[arm]
    rates = [run.ended / run.wall_s for run in runs]
    by_peer = kept.others(arm)
    samples = list(itertools.chain.from_iterable(by_peer.values()))
    medians = [statistics.median(found) for found in by_peer.values()]
    return {
        "name": f"{kept.load.transport}, {kept.load.hub.name.lower()}, peers: {arm}",
        "transport": kept.load.transport,
        "role": kept.load.hub.name.lower(),
        "arm": arm,
        "peers": 1 if arm == ONE else kept.load.peers,
        "in_flight": kept.load.in_flight,
        "requests_per_s_p50": _rounded(statistics.median(rates)),
        "requests_per_s_p10": _rounded(percentile(rates, 10)),
        "requests_per_s_p90": _rounded(percentile(rates, 90)),
        "writer_cpu_us": _rounded(statistics.median(run.cpu_s / run.ended for run in runs) * 1e6),
        "process_cpu_us": _rounded(
            statistics.median(run.process_cpu_s / run.ended for run in runs) * 1e6
        ),
        "latency_ms_p50": _rounded(statistics.median(samples) * 1e3),
        "latency_ms_p99": _rounded((percentile(samples, 99) or 0.0) * 1e3),
        "slowest_peer": _rounded(max(medians) / statistics.median(medians)),
        "rounds": len(runs),
    }


def aims_of(kept: Samples) -> dict[str, Any]:
    """The figures that the aims speak of, and whether they are met."""
    many, one = kept.runs[MANY], kept.runs[ONE]
    ratios = [(m.ended / m.wall_s) / (o.ended / o.wall_s) for m, o in zip(many, one, strict=True)]
    cpu = [(m.cpu_s / m.ended) / (o.cpu_s / o.ended) for m, o in zip(many, one, strict=True)]
    whole = [
        (o.process_cpu_s / o.ended) / (m.process_cpu_s / m.ended)
        for m, o in zip(many, one, strict=True)
    ]
    throughput = statistics.median(ratios)
    calm, beside = (
        list(itertools.chain.from_iterable(kept.others(arm).values())) for arm in (MANY, STOPPED)
    )
    found = {
        "transport": kept.load.transport,
        "role": kept.load.hub.name.lower(),
        "throughput_ratio": _rounded(throughput),
        "throughput_ratio_min": _rounded(min(ratios)),
        "throughput_ratio_max": _rounded(max(ratios)),
        "throughput_met": throughput >= THROUGHPUT_MIN,
        "throughput_ratio_by_cpu": _rounded(statistics.median(whole)),
        "writer_cpu_ratio": _rounded(statistics.median(cpu)),
        "stopped_latency_ratio_p50": _rounded(statistics.median(beside) / statistics.median(calm)),
        "stopped_latency_ratio_p99": _rounded(_p99(beside) / _p99(calm)),
    }
    if kept.memory is not None:
        found["bytes_per_request"] = round(kept.memory.held)
        found["bytes_remembered"] = round(kept.memory.remembered)
        found["bytes_met"] = kept.memory.held < BYTES_MAX
    return found


def _p99(samples: Sequence[float]) -> float:
    found = percentile(samples, 99)
    assert found is not None
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


@attrs.frozen(kw_only=True)
class PeersReport:
    """All rows of a run and where they were taken."""

    rows: tuple[Mapping[str, Any], ...]
    aims: tuple[Mapping[str, Any], ...]
    setting: Mapping[str, Any]
    environment: Mapping[str, Any]

    def to_plain(self) -> dict[str, Any]:
        return {
            "bench": "peers",
            "environment": dict(self.environment),
            "setting": dict(self.setting),
            "rows": [dict(row) for row in self.rows],
            "aims": [dict(aim) for aim in self.aims],
        }
