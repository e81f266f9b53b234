"""Writes grafana-dashboard.json beside it: `python docs/operate/dashboard.py`.

Owns the panels. Invariant: the file in the repository is what this writes; a test
compares them, and checks every name in it against the exported ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

SOURCE = {"type": "prometheus", "uid": "${source}"}
HERE = 'engine=~"$engine"'
WIDTH, HEIGHT = 12, 8


@attrs.frozen(kw_only=True)
class Panel:
    """One time series chart; `targets` are (expression, legend)."""

    title: str
    unit: str
    about: str
    targets: Sequence[tuple[str, str]]


def rate(series: str, by: str, more: str = "") -> str:
    """Per second, added up by labels."""
    return f"sum by ({by}) (rate({series}{{{HERE}{more}}}[$__rate_interval]))"


def level(series: str, by: str) -> str:
    """A gauge, added up by labels."""
    return f"sum by ({by}) ({series}{{{HERE}}})"


def quantile(share: float, family: str, by: str) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{family}_bucket', f'{by}, le')})"


ENGINE, BOTH = "{{engine}}", "{{engine}}/{{rank}}"
CPU = rate("kvxfer_writer_cpu_seconds_total", "engine, rank")
POST_CPU = rate("kvxfer_posting_cpu_seconds_total", "engine, rank")
ENDED = "kvxfer_transfers_ended_total"
BAD = ',outcome=~"failed|refused"'
HELD = "quarantined_edges registrations_held grants_held sources_held"
FAULTS = "protocol_faults late_messages stale_messages pairs_refused forged_notices stalls"


def all_rates(template: str, names: str) -> list[tuple[str, str]]:
    """One rate for each name, by engine."""
    return [(rate(template.format(n), "engine"), f"{ENGINE} {n}") for n in names.split()]


PANELS = (
    Panel(
        title="Transfers that ended, by outcome",
        unit="ops",
        about="Each transfer ends in exactly one outcome.",
        targets=[(rate(ENDED, "side, outcome"), "{{side}} {{outcome}}")],
    ),
    Panel(
        title="Why transfers failed or were refused",
        unit="ops",
        about="The label reason of those that did not go well.",
        targets=[(rate(ENDED, "side, reason", BAD), "{{side}} {{reason}}")],
    ),
    Panel(
        title="Live transfers",
        unit="short",
        about="Started and not ended, at D and at P.",
        targets=[(level("kvxfer_transfers_live", "engine, side"), "{{engine}} {{side}}")],
    ),
    Panel(
        title="Phases, 99th percentile",
        unit="s",
        about="Each is named after the milestone that ends it: docs/observe.md.",
        targets=[(quantile(0.99, "kvxfer_phase_seconds", "phase"), "{{phase}}")],
    ),
    Panel(
        title="Phases, median",
        unit="s",
        about="As on the left.",
        targets=[(quantile(0.5, "kvxfer_phase_seconds", "phase"), "{{phase}}")],
    ),
    Panel(
        title="Bytes",
        unit="Bps",
        about="Posted by P (written) or by D (read), and landed at D (received).",
        targets=all_rates("kvxfer_{}_bytes_total", "written read received"),
    ),
    Panel(
        title="Byte ranges posted",
        unit="ops",
        about="What a request costs is mostly these.",
        targets=[(rate("kvxfer_descriptors_posted_total", "engine"), ENGINE)],
    ),
    Panel(
        title="Quarantine, and what is held",
        unit="short",
        about="Blocks in quarantine wait for proof that a peer can not write.",
        targets=[(level(f"kvxfer_{n}", "engine"), f"{ENGINE} {n}") for n in HELD.split()],
    ),
    Panel(
        title="Peers",
        unit="short",
        about="Control connections that are up.",
        targets=[(level("kvxfer_links", "engine, rank"), BOTH)],
    ),
    Panel(
        title="Writer thread: lag and turns, 99th percentile",
        unit="s",
        about="How long the engine's commands wait; how long one turn keeps the others waiting.",
        targets=[
            (quantile(0.99, f"kvxfer_writer_{n}_seconds", "engine"), f"{ENGINE} {n}")
            for n in ("lag", "turn")
        ],
    ),
    Panel(
        title="Writer thread: share of a core",
        unit="percentunit",
        about="It holds the interpreter lock at most so much of the time; how much less, where "
        "the transport gives the lock away, lies between the two lines.",
        targets=[(CPU, f"{BOTH} all"), (f"{CPU} - {POST_CPU}", f"{BOTH} without posting")],
    ),
    Panel(
        title="Faults and leftovers",
        unit="ops",
        about="A few late messages are normal; protocol faults are not.",
        targets=all_rates("kvxfer_{}_total", FAULTS),
    ),
)


def panel(number: int, one: Panel) -> dict[str, Any]:
    """Two stand side by side."""
    row, column = divmod(number, 2)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.title,
        "description": one.about,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + k), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
            for k, (expr, legend) in enumerate(one.targets)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The whole dashboard in Grafana's JSON model."""
    engines = "label_values(kvxfer_transfers_started_total, engine)"
    source = {"name": "source", "type": "datasource", "query": "prometheus"}
    engine = {
        "name": "engine",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": engines, "refId": "engines"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
    }
    return {
        "title": "kvxfer",
        "uid": "kvxfer",
        "tags": ["kvxfer"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, engine]},
        "panels": [panel(number, one) for number, one in enumerate(PANELS)],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("grafana-dashboard.json").write_text(text(), encoding="utf-8")
