"""What the transports aim at, and whether a run met it.

Owns the aims of `kvxfer bench transport` as data. Knows no process. Invariant: an aim
is a figure that is reported, it fails no run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from kvxfer.bench.transport import Measured

SPEED_AIMS: Final = (
    ("1 x 256 MiB", "ucx", "raw ucx", 0.95),
    ("1 x 256 MiB", "nixl", "raw nixl", 0.95),
    ("1,024 x 64 KiB", "ucx", "raw ucx", 0.9),
    ("1,024 x 64 KiB", "nixl", "raw nixl", 0.9),
    ("16,384 x 4 KiB", "ucx", "raw nixl", 1.0),
    ("16,384 x 4 KiB", "nixl", "raw nixl", 1.0),
)
"""(shape, ours, beside, least speed as a part of the other's)."""

ROUND_TRIP_AIMS: Final = (("ucx", "raw ucx"), ("nixl", "raw nixl"))
ROUND_TRIP_MAX: Final = 1.3
POST_ADDED_US: Final = 20.0
POST_ADDED_US_EACH: Final = 0.02


@attrs.frozen(kw_only=True)
class Aim:
    """One aim with what was measured: median and the middle 80 % of the rounds."""

    what: str
    unit: str
    measured: float
    p10: float
    p90: float
    aim: float
    met: bool


def aims_of(measured: Sequence[Measured]) -> Iterator[Aim]:
    """The aims for which both sides were measured."""
    by = {(one.shape, one.subject): one for one in measured}
    for shape, ours, other, least in SPEED_AIMS:
        pair = by.get((shape, ours)), by.get((shape, other))
        if pair[0] and pair[1]:
            ratios = [b / a for a, b in zip(pair[0].whole_s, pair[1].whole_s)]
            what = f"{shape}: speed of {ours} as a part of {other}'s"
            yield _aim(what, "ratio", ratios, least, at_least=True)
    for ours, other in ROUND_TRIP_AIMS:
        pair = by.get(("notification round trip", ours)), by.get(("notification round trip", other))
        if pair[0] and pair[1]:
            ratios = [a / b for a, b in zip(pair[0].whole_s, pair[1].whole_s)]
            what = f"notification round trip: {ours} in units of {other}'s"
            yield _aim(what, "ratio", ratios, ROUND_TRIP_MAX, at_least=False)
    for ours, other in ROUND_TRIP_AIMS:
        for shape in dict.fromkeys(one.shape for one in measured if one.count):
            pair = by.get((shape, ours)), by.get((shape, other))
            if pair[0] and pair[1]:
                added = [(a - b) * 1e6 for a, b in zip(pair[0].post_s, pair[1].post_s)]
                aim = POST_ADDED_US + POST_ADDED_US_EACH * pair[0].count
                what = f"{shape}: post call of {ours} beyond that of {other}"
                yield _aim(what, "us", added, aim, at_least=False)


def _aim(what: str, unit: str, samples: list[float], aim: float, *, at_least: bool) -> Aim:
    ordered = sorted(samples)
    middle = statistics.median(ordered)
    return Aim(
        what=what,
        unit=unit,
        measured=round(middle, 3),
        p10=round(ordered[len(ordered) // 10], 3),
        p90=round(ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)], 3),
        aim=round(aim, 3),
        met=middle >= aim if at_least else middle <= aim,
    )
