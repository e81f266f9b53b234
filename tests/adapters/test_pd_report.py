"""Verdicts: good only if every number is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.check import bytes_received
from kvxfer_vllm.pd.cli import main
from kvxfer_vllm.pd.engines import Policy
from kvxfer_vllm.pd.metrics import Received
from kvxfer_vllm.pd.probes import LOAD_FAILURES, PROBES
from kvxfer_vllm.pd.report import CheckReport, Control, Finding, ProbeReport, total_line
from kvxfer_vllm.pd.runner import chosen

GOOD = CheckReport(
    connector="kvxfer_vllm.NixlPushConnector",
    mode="push",
    dtype="float32",
    requests=50,
    identical=50,
    prompt_tokens=1000,
    external_tokens=1000,
    recomputed_tokens=0,
    recomputed_requests=0,
    kv_bytes_received=4_096_000,
    kv_bytes_expected=4_096_000,
    kv_bytes_read=0,
    streamed=0,
    sliced=0,
    quarantined=0,
    leaked=0,
    negative_control=Control(crossed=3, refused=3, differs=3),
    seconds=100.0,
)


def test_a_good_check_is_good_and_prints_the_promised_fields() -> None:
    line = json.loads(GOOD.line())
    assert line["good"] is True
    assert line["negative_control"] == {"crossed": 3, "refused": 3, "differs": 3}
    promised = {"requests", "identical", "kv_bytes_received", "recomputed_requests"}
    assert promised | {"quarantined", "leaked", "seconds", "mode"} <= set(line)


@pytest.mark.parametrize(
    "change",
    [
        {"identical": 49},
        {"requests": 0, "identical": 0},
        {"external_tokens": 999},
        {"recomputed_tokens": 1},
        {"recomputed_requests": 1},
        {"kv_bytes_received": 4_095_999},
        {"kv_bytes_received": 0, "kv_bytes_expected": 0},
        {"kv_bytes_read": 1},
        {"streamed": 1},
        {"sliced": 1},
        {"mode": "pull"},
        {"mode": "push-stream"},
        {"mode": "push-stream", "streamed": 20, "sliced": 1},
        {"mode": "push-layers", "streamed": 20},
        {"mode": "push-layers", "sliced": 20},
        {"quarantined": 1},
        {"leaked": 1},
        {"negative_control": Control(crossed=3, refused=2, differs=3)},
        {"negative_control": Control(crossed=3, refused=3, differs=2)},
        {"negative_control": Control(crossed=0, refused=0, differs=0)},
    ],
    ids=str,
)
def test_one_bad_number_spoils_the_check(change: dict[str, Any]) -> None:
    bad = attrs.evolve(GOOD, **change)
    assert not bad.good
    assert json.loads(bad.line())["good"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "pull", "kv_bytes_read": 4_096_000},
        {"mode": "push-stream", "streamed": 20},
        {"mode": "push-layers", "streamed": 20, "sliced": 20},
        {"mode": "pull", "kv_bytes_read": None, "streamed": None, "sliced": None},
        {"recomputed_requests": None},
    ],
    ids=str,
)
def test_kv_that_went_as_the_mode_says_is_good(change: dict[str, Any]) -> None:
    assert attrs.evolve(GOOD, **change).good


def test_a_connector_without_digest_is_judged_by_the_other_half() -> None:
    assert Control(crossed=3, refused=None, differs=3).good


def test_a_probe_without_findings_shows_nothing() -> None:
    assert not ProbeReport(probe="a1", policy="fail", findings=(), seconds=0).good


def test_failed_findings_are_named_in_the_lines() -> None:
    fine = Finding(what="next request is right", ok=True)
    broken = Finding(what="D holds no block", ok=False, seen="24 held")
    good = ProbeReport(probe="a1", policy="fail", findings=(fine,), seconds=1)
    bad = ProbeReport(probe="a2", policy="fail", findings=(fine, broken), seconds=2)
    assert json.loads(bad.line())["failed"] == ["FAIL D holds no block: 24 held"]
    total = json.loads(total_line("X", [good, bad]))
    assert (total["probes"], total["passed"], total["failed"]) == (2, 1, ["a2/fail"])
    assert total["good"] is False
    assert json.loads(total_line("X", [good]))["good"] is True
    assert json.loads(total_line("X", []))["good"] is False


def test_bytes_come_from_the_counter_or_else_from_the_tokens() -> None:
    received = Received(
        external_tokens=10,
        external_hits=10,
        local_tokens=0,
        finished_requests=1,
        recomputed_requests=0,
        bytes_received=7,
    )
    assert bytes_received(received, 4096) == 7
    assert bytes_received(attrs.evolve(received, bytes_received=None), 4096) == 40960


def test_all_probes_run_unless_some_are_named() -> None:
    assert chosen((), Policy.FAIL) == tuple(PROBES)
    assert set(chosen((), Policy.RECOMPUTE)) == set(LOAD_FAILURES)
    assert chosen(("b", "a1"), Policy.FAIL) == ("a1", "b")


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(BadValue, match="'a9'"):
        chosen(("a9",), Policy.FAIL)


def test_the_command_refuses_it_before_anything_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = CliRunner().invoke(main, ["--run-dir", str(run), "probes", "a9"])
    assert ended.exit_code == 2
    assert "'a9'" in ended.output
    assert not run.exists()


def test_every_probe_says_what_it_breaks() -> None:
    assert all(probe.__doc__ for probe in PROBES.values())
