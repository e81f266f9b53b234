"""Dashboard, alert rules and the page's table name only what is exported."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvxfer.observe.names import BASE_LABELS, METRICS, Kind, Metric, table

ROOT = Path(__file__).resolve().parents[3]
OPERATE = ROOT / "docs" / "operate"
SERIES = {series: metric for metric in METRICS for series in metric.series}

TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<text>"(?:[^"\\]|\\.)*"|'[^']*')|(?P<range>\[[^\]]+\])"""
    r"""|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)"""
    r"""|(?P<op>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])"""
)
WORDS = frozenset({"sum", "by", "rate", "increase", "histogram_quantile", "unless"})
"""What our expressions use of PromQL besides names."""


def tokens(expression: str) -> list[tuple[str, str]]:
    """The expression in pieces. ValueError where a piece is none of PromQL's."""
    found, at = [], 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"not PromQL at {expression[at:]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def labels_of(metric: Metric) -> set[str]:
    return {*BASE_LABELS, *metric.labels} | ({"le"} if metric.kind is Kind.HISTOGRAM else set())


def check(expression: str) -> set[str]:
    """Series of an expression. AssertionError where a name or label is not exported."""
    pieces = tokens(expression)
    stack: list[str] = []
    for _, piece in pieces:
        if piece in "({":
            stack.append(piece)
        elif piece in ")}":
            assert stack, expression
            assert stack.pop() + piece in ("()", "{}"), expression
    assert not stack, f"not closed: {expression}"
    used: set[str] = set()
    grouped: set[str] = set()
    current: Metric | None = None
    braces = after_by = False
    for (kind, piece), follower in zip(pieces, [*pieces[1:], ("end", "")], strict=True):
        if piece in "{}":
            braces = piece == "{"
        elif piece == "by":
            after_by = True
        elif piece == ")":
            after_by = False
        elif kind == "name" and braces:
            assert current is not None
            assert piece in labels_of(current), f"{piece} is no label of {current.name}"
        elif kind == "name" and after_by:
            grouped.add(piece)
        elif kind == "name" and piece not in WORDS:
            assert piece in SERIES, f"{piece} is not exported: {expression}"
            current = SERIES[piece]
            used.add(piece)
            is_counter = current.kind is not Kind.GAUGE
            assert (follower[0] == "range" or follower[1] == "{") if is_counter else True
    for name in used:
        assert grouped <= labels_of(SERIES[name]), f"by ({grouped}) of {name}"
    return used


def dashboard() -> Any:
    return json.loads((OPERATE / "grafana-dashboard.json").read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    text = (OPERATE / "prometheus-alerts.yml").read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_the_dashboard_is_what_its_source_writes() -> None:
    spec = importlib.util.spec_from_file_location("dashboard", OPERATE / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.dashboard() == dashboard()


def test_every_expression_of_the_dashboard_is_exported() -> None:
    targets = [target for panel in dashboard()["panels"] for target in panel["targets"]]
    assert len(targets) >= 12
    used: set[str] = set()
    for target in targets:
        found = check(target["expr"])
        used |= found
        # A legend names labels that the expression keeps.
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target
    (query,) = re.findall(
        r"label_values\((\w+), (\w+)\)", dashboard()["templating"]["list"][1]["query"]["query"]
    )
    assert query[0] in SERIES
    assert query[1] in BASE_LABELS
    assert len(used) >= 15


def test_panels_do_not_overlap() -> None:
    places = [tuple(p["gridPos"].values()) for p in dashboard()["panels"]]
    assert len(set(places)) == len(places)


def test_alert_rules_are_whole_and_name_what_is_exported() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 5
    for rule in rules():
        assert check(rule["expr"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert (ROOT / rule["annotations"]["runbook"].split(":")[0]).is_file()
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), rule["alert"]


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(kvxfer_transfer_ended_total[5m]))",
        'kvxfer_links{engin="P"}',
        "sum by (side) (kvxfer_links)",
        "sum(kvxfer_links",
        "kvxfer_written_bytes_total > 3",
        "kvxfer_links ? 1",
    ],
)
def test_the_check_finds_what_is_wrong(wrong: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(wrong)


def test_the_page_lists_the_exported_metrics() -> None:
    page = (ROOT / "docs" / "observe.md").read_text(encoding="utf-8")
    assert table() in page
