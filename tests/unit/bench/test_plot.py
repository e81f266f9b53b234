"""Pictures of the comparison of real pairs: the right rows on the right axes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvxfer.bench.plot import _pairs, plot


def row(load: str, tokens: int, rate: float, way: str, ttft_ms: float | None) -> dict[str, Any]:
    times = {"ttft_ms_p50": ttft_ms, "tpot_ms_p50": ttft_ms}
    return {"load": load, "tokens": tokens, "rate": rate, "way": way, **times}


ROWS = [
    row("closed", 1024, 0.0, "ours", 20.0),
    row("closed", 256, 0.0, "ours", 10.0),
    row("closed", 256, 0.0, "theirs", None),
    row("open", 1024, 2.0, "ours", 30.0),
]


def test_closed_and_open_loads_have_axes_of_their_own() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    _pairs(figure, {"rows": ROWS})
    drawn = [
        [(line.get_label(), list(map(tuple, line.get_xydata()))) for line in axis.get_lines()]
        for axis in figure.get_axes()
    ]
    closed, opened = [("ours", [(256, 10), (1024, 20)])], [("ours", [(2, 30)])]
    assert drawn == [closed, closed, opened, opened]


def test_without_an_open_load_there_is_no_axis_for_it(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    _pairs(figure, {"rows": ROWS[:2]})
    assert len(figure.get_axes()) == 2
    source, target = tmp_path / "pd.json", tmp_path / "pd.svg"
    source.write_text(json.dumps({"bench": "pd", "rows": ROWS[:2]}))
    plot(source, target)
    assert "<svg" in target.read_text()
