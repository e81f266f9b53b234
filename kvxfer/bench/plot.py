"""Pictures from the JSON of a benchmark.

Owns the drawing. Knows no measurement: what is drawn is in the file. Invariant: a row
that was not measured is not drawn, and every picture says which file and machine it is of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvxfer.errors import BadValue, LocalFault

SUFFIXES: Final = (".svg", ".png")
Rows = Sequence[Mapping[str, Any]]


def plot(source: Path, target: Path) -> None:
    """Draw the report in `source`. Raises BadValue for a file that is none, LocalFault without
    matplotlib."""
    if target.suffix not in SUFFIXES:
        raise BadValue("out", str(target), f"a name that ends in {' or '.join(SUFFIXES)}")
    report = _report(source)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise LocalFault("pictures need matplotlib: pip install 'kvxfer[plot]'") from None
    draw = _DRAWN.get(str(report.get("bench")), _bars)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    draw(figure, report)
    figure.supxlabel(_origin(source, report), fontsize=7, color="0.4")
    # The same picture from the same file, byte for byte.
    metadata = {"Date": None} if target.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "kvxfer"}):
        figure.savefig(target, metadata=metadata)


def _report(source: Path) -> dict[str, Any]:
    try:
        report = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadValue("file", str(source), f"the JSON of a benchmark ({error})") from None
    rows = report.get("rows", report.get("cases")) if isinstance(report, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadValue("file", str(source), "an object with a list of rows")
    shown = [row for row in rows if not row.get("skipped")]
    if not shown:
        raise BadValue("file", str(source), "a report with at least one measured row")
    return {**report, "rows": shown}


def _origin(source: Path, report: Mapping[str, Any]) -> str:
    where = report.get("environment") or {}
    told = [f"{name} {where[name]}" for name in ("cpu", "revision", "date") if name in where]
    costs = report.get("costs") or {}
    return " · ".join([source.name, *told, *([f"simulated: {costs['name']}"] if costs else [])])


def _curves(figure: Any, report: Mapping[str, Any]) -> None:
    """Time to first token and time per output token against load, a line a way."""
    axes = figure.subplots(1, 2)
    panels = (("ttft_ms_p50", "TTFT, ms (median)"), ("tpot_ms_p50", "TPOT, ms (median)"))
    for axis, (name, title) in zip(axes, panels, strict=True):
        _lines(axis, report["rows"], "rate", name)
        axis.set(title=title, xlabel="load", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend()


def _pairs(figure: Any, report: Mapping[str, Any]) -> None:
    """Both times, against the length of the prompt alone and against requests a second."""
    loads = (("closed", "tokens", "prompt, tokens"), ("open", "rate", "requests/s"))
    given = [one for one in loads if any(row["load"] == one[0] for row in report["rows"])]
    figure.set_figheight(4 * len(given))
    panels = (("ttft_ms_p50", "TTFT, ms (median)"), ("tpot_ms_p50", "TPOT, ms (median)"))
    grid = figure.subplots(len(given), 2, squeeze=False)
    for axes, (load, key, label) in zip(grid, given, strict=True):
        rows = [row for row in report["rows"] if row["load"] == load]
        for axis, (name, title) in zip(axes, panels, strict=True):
            _lines(axis, rows, key, name)
            axis.set(title=title, xlabel=label, ylim=(0, None))
            axis.grid(alpha=0.3)
    grid[0][0].legend()


def _lines(axis: Any, rows: Rows, key: str, name: str) -> None:
    for way in dict.fromkeys(row["way"] for row in rows):
        points = [(row[key], row[name]) for row in rows if row["way"] == way]
        points = sorted(point for point in points if point[1] is not None)
        axis.plot(*zip(*points, strict=True), marker="o", label=way) if points else None


def _handoff(figure: Any, report: Mapping[str, Any]) -> None:
    """Engine-thread time and time until ready, per number of descriptors."""
    axes = figure.subplots(1, 2)
    panels = (
        ("handoff_us_p99", "hand-off on the engine's thread, us (p99)"),
        ("ready_ms_p50", "prefill done to decode may run, ms (median)"),
    )
    ways = list(dict.fromkeys(f"{r['impl']} {r['transport']}" for r in report["rows"]))
    cases = list(dict.fromkeys(row["case"] for row in report["rows"]))
    for axis, (name, title) in zip(axes, panels, strict=True):
        for number, way in enumerate(ways):
            found = {
                row["case"]: row[name]
                for row in report["rows"]
                if f"{row['impl']} {row['transport']}" == way
            }
            places = [n + number * 0.8 / len(ways) for n in range(len(cases))]
            heights = [found.get(case, 0.0) for case in cases]
            axis.bar(places, heights, 0.8 / len(ways), label=way)
        axis.set(title=title, yscale="log", xlabel="descriptors of a request")
        axis.set_xticks([n + 0.4 - 0.4 / len(ways) for n in range(len(cases))], cases)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend()


def _peers(figure: Any, report: Mapping[str, Any]) -> None:
    """Requests a second and latency of every arm, a group for each transport and role."""
    axes = figure.subplots(1, 2)
    panels = (
        ("requests_per_s_p50", "requests a second (median)"),
        ("latency_ms_p99", "latency, ms (p99)"),
    )
    rows: Rows = report["rows"]
    groups = list(dict.fromkeys(f"{row['transport']}, {row['role']}" for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for axis, (name, title) in zip(axes, panels, strict=True):
        for number, arm in enumerate(arms):
            found = {f"{r['transport']}, {r['role']}": r[name] for r in rows if r["arm"] == arm}
            places = [n + number * 0.8 / len(arms) for n in range(len(groups))]
            heights = [found.get(group, 0.0) for group in groups]
            axis.bar(places, heights, 0.8 / len(arms), label=arm)
        axis.set(title=title, ylim=(0, None))
        axis.set_xticks([n + 0.4 - 0.4 / len(arms) for n in range(len(groups))], groups)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend()


def _bars(figure: Any, report: Mapping[str, Any]) -> None:
    """The median of every row, and where the middle eight tenths of its samples lie."""
    rows: Rows = [row for row in report["rows"] if row.get("ms_p50") is not None]
    if not rows:
        raise BadValue("file", "rows", "rows with ms_p50")
    figure.set_figheight(1.5 + 0.28 * len(rows))
    axis = figure.subplots()
    middle = [row["ms_p50"] for row in rows]
    spread = [
        [max(0.0, row["ms_p50"] - row.get("ms_p10", row["ms_p50"])) for row in rows],
        [max(0.0, row.get("ms_p90", row["ms_p50"]) - row["ms_p50"]) for row in rows],
    ]
    axis.barh([row["name"] for row in rows], middle, xerr=spread, capsize=2)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="ms, median with 10th to 90th percentile")
    axis.grid(axis="x", alpha=0.3)


_DRAWN: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], None]]] = {
    "cluster": _curves,
    "pd": _pairs,
    "handoff": _handoff,
    "peers": _peers,
}
