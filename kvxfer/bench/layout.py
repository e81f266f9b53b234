"""`kvxfer bench layout`: what the translation of one request costs.

Owns the run and the shape of its report. Knows no terminal. Invariant: our rows and
those of an engine's own code are timed in the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kvxfer.bench.environment import environment
from kvxfer.bench.harness import Row, measure
from kvxfer.bench.layout_cases import CASES, LayoutCase, to_case
from kvxfer.bench.rivals import REGIONS, rival_cases


@attrs.frozen(kw_only=True)
class LayoutReport:
    """All rows of a run, in the order of the cases."""

    rows: tuple[Row, ...]
    environment: dict[str, str | int | float]
    seed: int

    def to_plain(self) -> dict[str, Any]:
        return {
            "bench": "layout",
            "environment": self.environment,
            "seed": self.seed,
            "cases": [row.to_plain() for row in self.rows],
        }


def run_layout(
    *,
    rounds: int = 50,
    seed: int = 0,
    cases: Sequence[LayoutCase] = CASES,
    on_round: Callable[[int], None] = lambda _: None,
) -> LayoutReport:
    """Time all cases. Raises LayoutMismatch where a promise on the number of ranges is broken."""
    where = environment()
    ours = [to_case(case, seed) for case in cases]
    theirs = rival_cases([case for case in cases if _has_rival(case)], seed)
    rows = measure([*ours, *theirs], rounds=rounds, on_round=on_round)
    return LayoutReport(rows=tuple(rows), environment=where, seed=seed)


def _has_rival(case: LayoutCase) -> bool:
    """Equal engines with an aim: there the engine's own code does the same work."""
    return (
        case.aim_ms is not None
        and case.producer == case.consumer
        and case.producer.order in REGIONS
    )
