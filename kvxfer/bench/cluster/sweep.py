"""The same requests in every way, at every load.

Owns the sweep and its report. Invariant: the ways of one load get equal requests, drawn
anew from the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from kvxfer.bench.cluster.costs import Costs
from kvxfer.bench.cluster.run import Cluster, Fleet
from kvxfer.bench.cluster.trace import Request, drawn, read_trace
from kvxfer.bench.cluster.ways import Way


@attrs.frozen(kw_only=True)
class Load:
    """What arrives: a trace at several speeds, or requests of one size at several rates."""

    trace: Path | None = None
    rates: Sequence[float] = (1.0,)
    """Requests a second; with a trace, how many times as fast as it was."""
    count: int = 1000
    tokens: int = 4096
    output_tokens: int = 128
    seed: int = 0

    def requests(self, rate: float) -> list[Request]:
        if self.trace is not None:
            return read_trace(self.trace, rate, self.count)
        return drawn(
            rate=rate,
            count=self.count,
            tokens=self.tokens,
            output_tokens=self.output_tokens,
            seed=self.seed,
        )

    def to_plain(self) -> dict[str, Any]:
        name = self.trace.name if self.trace is not None else None
        return attrs.asdict(self) | {"trace": name, "rates": list(self.rates)}


def sweep(
    costs: Costs,
    ways: Sequence[Way],
    fleet: Fleet,
    load: Load,
    on_row: Callable[[dict[str, Any]], None] = lambda _row: None,
) -> dict[str, Any]:
    """The report as it goes into JSON; `rows` has one row per rate and way."""
    rows = []
    for rate in load.rates:
        for way in ways:
            row = {"rate": rate, "way": way.name}
            row |= Cluster(costs, way, fleet).run(load.requests(rate))
            rows.append(row)
            on_row(row)
    return {
        "bench": "cluster",
        "costs": attrs.asdict(costs),
        "fleet": attrs.asdict(fleet),
        "load": load.to_plain(),
        "rows": rows,
    }
