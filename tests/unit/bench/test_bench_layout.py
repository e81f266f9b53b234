"""What the layout benchmark counts; what it times is never asserted."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import attrs
import pytest

from kvxfer.bench import rivals
from kvxfer.bench.layout import run_layout
from kvxfer.bench.layout_cases import (
    CASES,
    LAYERS,
    TOKENS,
    LayoutCase,
    Side,
    geometries,
    plan_request,
    tables_of,
    to_case,
)
from kvxfer.bench.rivals import rival_cases
from kvxfer.errors import LayoutMismatch

BLOCKS = TOKENS // 16
BY_NAME = {case.name: case for case in CASES}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(CASES)


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("LBHNC to LBHNC, runs of 1", len(LAYERS) * BLOCKS),
        ("BLHNC to BLHNC, runs of 1", BLOCKS),
        ("BHLNC to BHLNC, runs of 1", BLOCKS),
        ("LBHNC to LBHNC", len(LAYERS) * round(BLOCKS / 1.2)),
        ("LBHNC to LBHNC, one run", len(LAYERS)),
    ],
)
def test_counts_of_the_design(name: str, ranges: int) -> None:
    facts = to_case(BY_NAME[name], seed=0).facts
    assert facts["ranges"] == ranges
    assert facts["bytes"] == 4 << 30


def test_unequal_tp_over_a_block_outermost_pool() -> None:
    """No more than one range per block and edge, where vLLM refuses the pair."""
    cases = [case for case in CASES if case.ranges_per_edge_max is not None]
    assert {(case.producer.tp, case.consumer.tp) for case in cases} == {(8, 4), (4, 8), (3, 2)}
    for case in cases:
        assert case.ranges_per_edge_max == BLOCKS
        edges = geometries(case)
        plans = plan_request(edges, *tables_of(case, 0), case.tokens)
        assert max(plan.descriptor_count for plan in plans) <= BLOCKS


def test_a_broken_promise_ends_the_run() -> None:
    case = attrs.evolve(BY_NAME["BHLNC, TP 8 to 4"], ranges_per_edge_max=BLOCKS - 1)
    with pytest.raises(LayoutMismatch, match="promised 1023"):
        to_case(case, seed=0)


SMALL = LayoutCase(
    name="small",
    producer=Side(order="LBHNC"),
    consumer=Side(order="LBHNC"),
    tokens=64,
    aim_ms=1.0,
)


def test_a_refused_pair_is_a_row_with_its_reason() -> None:
    kinds = attrs.evolve(SMALL, consumer=Side(order="LBHNC", planes=("k", "v")))
    case = to_case(kinds, seed=0)
    assert case.run is None
    assert case.skipped.startswith("refused: group 'kv': planes")


def test_a_report() -> None:
    report = run_layout(rounds=2, cases=[SMALL]).to_plain()
    assert report["bench"] == "layout"
    assert report["environment"].keys() >= {"python", "numpy", "cpu", "date", "revision"}
    ours = report["cases"][0]
    assert ours["name"] == "small"
    assert ours["ranges"] == len(LAYERS) * 3
    assert 0 < ours["ms_p10"] <= ours["ms_p50"] <= ours["ms_p90"]
    # One row per installed adapter: timed, or with the reason why not.
    for theirs in report["cases"][1:]:
        assert theirs["name"].startswith("small: ids by ")
        assert ("ms_p50" in theirs) != ("skipped" in theirs)


def entry(value: str) -> EntryPoint:
    return EntryPoint(name="other", value=value, group=rivals.GROUP)


def gives_ids(**given: Any) -> Any:
    assert given["regions"] == len(LAYERS)
    assert len(given["source_blocks"]) == len(given["target_blocks"]) == 4
    return lambda: 5


def breaks(**given: Any) -> Any:
    raise RuntimeError("changed")


@pytest.mark.parametrize(
    ("value", "facts", "skipped"),
    [
        (f"{__name__}:gives_ids", {"tokens": 64, "ranges": 5}, ""),
        (f"{__name__}:breaks", {}, "left out: RuntimeError: changed"),
        ("no_such_engine:f", {}, "left out, not installed here"),
    ],
)
def test_an_engines_own_code_stands_beside(
    monkeypatch: pytest.MonkeyPatch, value: str, facts: dict[str, Any], skipped: str
) -> None:
    monkeypatch.setattr(rivals, "entry_points", lambda group: [entry(value)])
    (case,) = rival_cases([SMALL], seed=0)
    assert case.name == "small: ids by other"
    assert case.facts == facts
    assert case.skipped.startswith(skipped)
    assert (case.run is None) == bool(skipped)
