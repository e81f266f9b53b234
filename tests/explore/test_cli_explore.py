"""`kvxfer explore`: its fields, its exit status, its words."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from kvxfer.cli import main
from kvxfer.testing.planted import catalogue
from kvxfer.testing.planted.catalogue import FAULTS


def run(*args: str, status: int = 0) -> Any:
    result = CliRunner().invoke(main, ["explore", *args])
    assert result.exit_code == status, result.output
    return result


def test_json_has_the_figures() -> None:
    report = json.loads(run("--json", "--config", "tokens", "--config", "one").stdout)
    assert report["violations"] == 0
    assert report["seconds"] >= 0
    assert report["states"] == sum(c["states"] for c in report["configurations"])
    tokens, one = report["configurations"]
    assert (tokens["name"], one["name"]) == ("tokens", "one")
    assert tokens["exhausted"]
    assert tokens["violation"] is None
    assert {"A1", "B1", "C1", "D1"} <= set(report["invariants"])


def test_states_max_cuts_off() -> None:
    report = json.loads(run("--json", "--config", "cut", "--states-max", "100").stdout)
    (cut,) = report["configurations"]
    assert not cut["exhausted"]
    assert 100 <= cut["states"] < 150


def test_several_processes_count_the_same() -> None:
    args = ("--json", "--config", "tokens", "--config", "one", "--states-max", "500")
    alone, together = (json.loads(run(*args, "--jobs", jobs).stdout) for jobs in ("1", "2"))
    assert alone["states"] == together["states"]


def test_words_for_people() -> None:
    text = run("--config", "tokens").stdout
    assert "exhausted" in text
    assert "0 violations" in text


def test_a_violation_is_shown_and_told_by_the_status() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "free on cancel")
    with fault.plant():
        report = json.loads(run("--json", "--config", "cancel", status=1).stdout)
        assert report["violations"] == 1
        violation = report["configurations"][0]["violation"]
        assert violation["invariant"] == "A2"
        assert violation["transcript"].endswith("which was let go\n")
        assert "D's engine cancels t.1" in run("--config", "cancel", status=1).stdout


def test_an_unknown_configuration_is_named() -> None:
    assert "nonsense" in run("--config", "nonsense", status=2).output


def test_planted_lists_each_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FAULTS", FAULTS[:2])
    report = json.loads(run("--planted", "--json").stdout)
    assert (report["planted"], report["found"]) == (2, 2)
    assert {"name", "invariant", "tool", "states", "states_max", "config"} <= set(
        report["faults"][0]
    )
    assert "2 of 2 planted faults found" in run("--planted").stdout


def test_a_fault_that_is_not_found_is_told_by_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [fault for fault in FAULTS if fault.name == "unknown end is quiet"]
    monkeypatch.setattr(catalogue, "FAULTS", (attrs.evolve(late[0], states_max=10),))
    report = json.loads(run("--planted", "--json", status=1).stdout)
    assert report["found"] == 0
