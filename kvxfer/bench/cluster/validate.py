"""The simulator against what was measured, before it predicts anything.

Owns the comparison. Knows no terminal. Invariant: the cells that are compared are those
of `figures/measured.json`, all of them, whether they fit or not.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

import attrs

from kvxfer.bench.cluster.costs import load_costs
from kvxfer.bench.cluster.run import Cluster, Fleet
from kvxfer.bench.cluster.trace import drawn
from kvxfer.bench.cluster.ways import WAYS

IDLE_RATE: Final = 0.2
"""Requests a second that stand for one at a time."""
AWS_FLEET: Final = Fleet(prefills=6, decodes=1)


@attrs.frozen(kw_only=True)
class Cell:
    """One measured figure and what the simulator says, in milliseconds."""

    costs: str
    way: str
    tokens: int
    rate: float
    what: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        return self.simulated / self.measured

    def to_plain(self) -> dict[str, Any]:
        return attrs.asdict(self) | {"ratio": round(self.ratio, 3)}


def measured() -> dict[str, Any]:
    text = (resources.files(__package__) / "figures" / "measured.json").read_text("utf-8")
    return dict(json.loads(text))


def validate() -> list[Cell]:
    """Every measured pair, then the published figures."""
    table = measured()
    cells = []
    for row in table["cells"]:
        for way in ("pull", "push-steps"):
            found = _pair(row["costs"], way, row["tokens"], row["rate"])
            cells.append(
                Cell(
                    costs=row["costs"],
                    way=way,
                    tokens=row["tokens"],
                    rate=row["rate"],
                    what="after prefill",
                    measured=row[way],
                    simulated=found["after_prefill_ms_p50"],
                )
            )
    return cells + _published(table["published"])


def _pair(costs: str, way: str, tokens: int, rate: float) -> dict[str, Any]:
    """As it was measured: one P, one D, nearly even arrivals."""
    requests = drawn(
        rate=rate or IDLE_RATE,
        count=30 if rate else 5,
        tokens=tokens,
        output_tokens=64,
        seed=1,
        jitter=0.1,
    )
    return Cluster(load_costs(costs), WAYS[way], Fleet()).run(requests)


def _published(told: dict[str, Any]) -> list[Cell]:
    cells = []
    for way in ("pull", "push"):
        requests = drawn(
            rate=told["rate"], count=400, tokens=told["tokens"], output_tokens=128, seed=1
        )
        found = Cluster(load_costs("aws-fit"), WAYS[way], AWS_FLEET).run(requests)
        cells += [
            Cell(
                costs="aws-fit",
                way=way,
                tokens=told["tokens"],
                rate=told["rate"],
                what=what,
                measured=told[what][way],
                simulated=found[f"{what}_ms_p50"],
            )
            for what in ("ttft", "tpot")
        ]
    return cells
