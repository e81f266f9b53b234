"""`kvxfer bench watch` measures what it says: counts are checked, times are not."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from kvxfer.bench.watch_cost import measure
from kvxfer.cli import main


def test_all_figures_are_there() -> None:
    result = CliRunner().invoke(
        main, ["bench", "watch", "--transfers", "20", "--rounds", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures.pop("steps") == 15
    assert len(figures) == 5
    assert all(value > 0 for value in figures.values())
    shown = CliRunner().invoke(main, ["bench", "watch", "--transfers", "5", "--rounds", "1"])
    assert "flight recorder" in shown.output


def test_without_the_sdk_spans_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert measure(2, 1).spans_us is None
