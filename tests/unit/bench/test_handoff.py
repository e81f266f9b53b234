"""The hand-off bench: settings, arithmetic, one small run of two real processes, the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from kvxfer.bench.handoff.report import Samples, percentile, row_of
from kvxfer.bench.handoff.run import CASES, Case, Steps, loops_of, run_handoff
from kvxfer.bench.handoff.setting import Setting
from kvxfer.cli import main
from kvxfer.errors import BadValue

SMALL = Case(name="6", layers=2, blocks=3)


def setting(**changes: object) -> Setting:
    values: dict[str, object] = {
        "way": "kvxfer",
        "transport": "ucx",
        "layers": 2,
        "blocks": 3,
        "page_bytes": 64,
        "slots": 4,
        "per_slot": 2,
        "prefill_steps": 1,
        "hold_loops": 10,
        "wait_s": 0.001,
        "idle_steps": 3,
        "seed": 1,
    }
    return Setting(**(values | changes))  # type: ignore[arg-type]


def test_blocks_are_scattered_and_of_one_slot_alone() -> None:
    one = setting()
    for side in ("P", "D"):
        ids = np.concatenate(one.blocks_of(side))
        assert len(set(ids.tolist())) == 12
        assert ids.min() >= 1
        assert ids.max() < one.pool_blocks
        assert (np.abs(np.diff(np.sort(ids))) > 1).all()
    assert not np.array_equal(one.blocks_of("P")[0], one.blocks_of("D")[0])


@pytest.mark.parametrize(
    "changes",
    [{"slots": 0}, {"page_bytes": 24}, {"page_bytes": 0}, {"blocks": 1 << 30}],
)
def test_sizes_out_of_bounds_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(BadValue):
        setting(**changes)


def test_percentiles_are_samples() -> None:
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile([3.0, 1.0, 2.0], 0) == 1.0
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_what_a_row_says() -> None:
    """The first request of each slot warms up; a step's inflation is against idle steps."""
    idle = {"steps_s": [0.010] * 100, "other_cpu_s": 0.0, "wall_s": 1.0}
    steps = {"steps_s": [0.010] * 50 + [0.030] * 50, "other_cpu_s": 0.4, "wall_s": 2.0}
    cpu = {"start_cpu_s": [9.0] * 4 + [5e-6] * 4, "poll_cpu_s": [1e-6] * 100}
    p = {"start_s": [9.0] * 4 + [1e-5] * 4, "poll_s": [2e-6] * 100} | cpu
    d = {"start_s": [9.0] * 4 + [3e-5] * 4, "poll_s": [4e-6] * 100} | cpu
    names = [(slot, number) for slot in range(4) for number in (0, 1)]
    at_p = {"moments_ns": dict.fromkeys(names, 0)}
    at_d = {"moments_ns": {(s, n): 2_000_000 if n else 10**12 for s, n in names}}
    kept = Samples()
    kept.add(
        setting(),
        {"idle": idle, "loaded": p | steps | at_p},
        {"idle": idle, "loaded": d | steps | at_d},
    )
    row = row_of(SMALL, "kvxfer", "ucx", kept)
    assert row["handoff_us_p99"] == 30.0
    assert row["poll_us_p99"] == 4.0
    assert row["handoff_cpu_us_p99"] == 5.0
    assert row["poll_cpu_us_p99"] == 1.0
    assert row["step_inflation_p99"] == 2.0
    assert row["ready_ms_p50"] == 2.0
    assert row["writer_cpu_ms"] == 100.0
    assert row["requests"] == 4
    assert row["requests_per_s"] == 4.0


def test_a_step_has_one_turn_at_least() -> None:
    assert loops_of(0.0) == 1
    assert loops_of(1.0) > 1


def test_two_engines() -> None:
    """Bytes are compared, and each stamp at the moment in which D is told."""
    report = run_handoff(
        rounds=1,
        slots=3,
        per_slot=3,
        page_bytes=64,
        cases=[SMALL],
        ways=[("kvxfer", "ucx"), ("kvxfer", "no such")],
        steps=Steps(hold_ms=0.1, wait_ms=0.5, idle_steps=3),
    )
    told = report.to_plain()
    ours, other = told["rows"]
    assert ours["requests"] == 6
    assert ours["descriptors"] == 6
    assert "no such" in other["skipped"]


def test_the_command() -> None:
    ran = CliRunner().invoke(
        main,
        "bench handoff --rounds 1 --slots 1 --per-slot 2 --case 10 --way kvxfer:ucx "
        "--hold-ms 0.1 --wait-ms 0.5 --json",
    )
    assert ran.exit_code == 0, ran.output
    (row,) = json.loads(ran.stdout)["rows"]
    assert row["impl"] == "kvxfer"
    assert {"handoff_us_p99", "poll_us_p99", "step_inflation_p99", "ready_ms_p50"} <= set(row)


@pytest.mark.parametrize(
    "words", [["--case", "11"], ["--way", "x"], ["--page-bytes", "17", "--case", "10"]]
)
def test_wrong_options_are_named(words: list[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "handoff", *words]).exit_code == 2


def test_cases_have_distinct_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
