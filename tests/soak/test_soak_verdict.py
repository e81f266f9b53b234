"""The soak's verdict: what grew, what was wrong and what waited is seen."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from soak import RSS_KIB, STAYING, Soak, report

REST = {
    "rss_kib": 80_000,
    "threads": 5,
    "descriptors": 30,
    "live": 0,
    "quarantined": 0,
    "blocks_held": 0,
    "late_writes": 0,
}


def soaked(**last: int) -> Soak:
    """A run of 100 transfers that is as it was, but for these figures of one engine."""
    soak = Soak("none", 1.0, 1.0, random.Random(1))
    soak.traffic.ends["landed"] = 100
    soak.samples = [dict.fromkeys(STAYING, REST), {STAYING[0]: REST | last, STAYING[1]: REST}]
    return soak


def test_a_run_that_ends_where_it_began_is_good() -> None:
    plain = report(soaked(rss_kib=80_400, threads=4))
    assert plain["good"]
    assert plain["stays"][STAYING[0]]["rss_kib_per_transfer"] == 4.0


@pytest.mark.parametrize(
    "last",
    [
        {"rss_kib": 88_000 + RSS_KIB + 1},
        {"threads": 6},
        {"descriptors": 31},
        {"live": 1},
        {"quarantined": 1},
        {"blocks_held": 1},
        {"late_writes": 1},
    ],
)
def test_what_grew_is_seen(last: dict[str, int]) -> None:
    assert not report(soaked(**last))["good"]


@pytest.mark.parametrize(
    "change",
    [
        {"late_writes": 1},
        {"ends": {"landed": 0}},
        {"ends": {"wrong": 1}},
        {"waited_s_max": 1000.0},
    ],
)
def test_what_went_wrong_is_seen(change: dict[str, Any]) -> None:
    soak = soaked()
    soak.late_writes = change.get("late_writes", 0)
    soak.traffic.ends.update(change.get("ends", {}))
    if change.get("ends") == {"landed": 0}:
        soak.traffic.ends.clear()
    soak.traffic.waited_s_max = change.get("waited_s_max", 0.0)
    assert not report(soak)["good"]
