"""Figures of a comparison of pairs: medians, and ratios within a round with their interval.

Owns the statistics. Refuses to know how an answer was come by. Invariant: a ratio or a
difference is of two answers to the same prompt in the same round.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvxfer.bench.harness import percentile
from kvxfer_vllm.pd.timing import Times

ALONE = "one-engine"
"""D itself computes the prompt: what no disaggregation costs."""
RESAMPLES = 2000

Found = Mapping[str, Sequence[Times | None]]


def figures(times: Sequence[Times | None]) -> dict[str, Any]:
    """Medians and 90th percentiles in milliseconds of the answers that were whole."""
    whole = [one for one in times if one is not None]
    row: dict[str, Any] = {"requests": len(whole), "failed": len(times) - len(whole)}
    for name in ("ttft", "tpot", "gap_max"):
        key = "gap_s_max" if name == "gap_max" else f"{name}_s"
        for percent in (50, 90):
            found = percentile([getattr(one, key) * 1e3 for one in whole], percent)
            row[f"{name}_ms_p{percent}"] = None if found is None else round(found, 3)
    return row


def ratios(found: Found, name: str) -> dict[str, Any]:
    """To each of vLLM's own arms: the median over rounds and its 95 % interval (bootstrap).

    To one engine alone, where that was measured: not a ratio but milliseconds on top.
    """
    row: dict[str, Any] = {}
    for other in found:
        if other == name:
            continue
        for what in ("ttft", "tpot"):
            if other.startswith("vllm-"):
                key, of = f"{what}_to_{other}", _ratio
            elif other == ALONE:
                key, of = f"{what}_ms_over_{other}", _difference_ms
            else:
                continue
            values = _of_each_round(found[name], found[other], f"{what}_s", of)
            if values:
                row[key] = [round(one, 3) for one in interval(values)]
    return row


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs


def _difference_ms(ours: float, theirs: float) -> float:
    return (ours - theirs) * 1e3


def _of_each_round(
    ours: Sequence[Times | None],
    theirs: Sequence[Times | None],
    what: str,
    of: Callable[[float, float], float],
) -> list[float]:
    return [
        of(getattr(a, what), getattr(b, what))
        for a, b in zip(ours, theirs, strict=True)
        if a is not None and b is not None
    ]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the bounds between which 95 % of the medians of resamples lie."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
    return statistics.median(values), low, high
