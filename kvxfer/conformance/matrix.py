"""The page of transports and cases: `python -m kvxfer.conformance.matrix OUT.md A.json ...`

Owns the page that is made of `kvxfer conform --json` reports. Refuses to run or to
judge a transport. Invariant: the same reports give the same page, and each case of
this build has its row, also where no report knows it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvxfer.conformance.kit import transport_cases

_CELLS: Final = {
    "pass": "pass",
    "fail": "**FAIL**",
    "unsupported": "–",
    "non-strict": "pass (1)",
}
_HEAD: Final = """\
# Transports and the rules of the table

Made by `python -m kvxfer.conformance.matrix` from the reports of `kvxfer conform --json`;
not edited by hand. The rules are those of `kvxfer/transport/ops.py` and
[kvxfer_transport.h](../spec/kvxfer_transport.h); a case T8.1 is on rule 8. Classes are those
of failures in public systems: A late write after free at the target, B source reused under a
transfer, C lost completion or untold failure, K blocking and head of line, M untrusted input
and bounds, P shutdown and cancel, Q visibility.

pass: judged and kept. –: not declared, or not given here, so not judged; the reasons are
below. pass (1): kept in its letter, in a way that peers should not rely on; see below.
"""

Report = Mapping[str, Any]


def page(reports: Sequence[Report]) -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD, _counts(reports), _flags(reports), _cases(reports)]
    parts += [_notes(report) for report in reports]
    parts += [_measures(reports)]
    return "\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(_cell(one) for one in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _labels(reports: Sequence[Report]) -> list[str]:
    return [str(report["label"]) for report in reports]


def _counts(reports: Sequence[Report]) -> str:
    names = list(_CELLS)
    rows = [
        [str(report["label"]), str(len(report["cases"]))]
        + [str(report["counts"][name]) for name in names]
        for report in reports
    ]
    return "## Counts\n\n" + _table(["transport", "cases", *names], rows)


def _flags(reports: Sequence[Report]) -> str:
    names = sorted({name for report in reports for name in report["caps"]})
    rows = [
        [name, *("yes" if name in report["caps"] else "" for report in reports)] for name in names
    ]
    return "## Declared\n\n" + _table(["flag", *_labels(reports)], rows)


def _cases(reports: Sequence[Report]) -> str:
    verdicts = [{row["address"]: row["verdict"] for row in report["cases"]} for report in reports]
    rows = []
    for case in transport_cases():
        cells = [_CELLS.get(found.get(case.address, ""), "not run") for found in verdicts]
        where = " (two processes)" if case.far else ""
        rows.append([case.address, case.requirement + where, case.failures, *cells])
    return "## Cases\n\n" + _table(["case", "requirement", "class", *_labels(reports)], rows)


def _notes(report: Report) -> str:
    rows = [row for row in report["cases"] if row["verdict"] != "pass" and row["detail"]]
    lines = [f"- {row['address']}, {row['verdict']}: {row['detail']}\n" for row in rows]
    return f"## Not judged, or not strict: {report['label']}\n\n" + "".join(lines) if lines else ""


def _measures(reports: Sequence[Report]) -> str:
    """What was measured in passing. One machine, one run: an order of magnitude."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for report in reports:
        for row in report["cases"]:
            for name, value in row["measures"].items():
                found.setdefault((row["address"], name), {})[str(report["label"])] = value
    labels = _labels(reports)
    rows = [
        [address, name, *(_number(values.get(label)) for label in labels)]
        for (address, name), values in sorted(found.items(), key=lambda one: _order(one[0][0]))
    ]
    text = "One run on one machine: an order of magnitude, not a benchmark. Seconds end in _s.\n\n"
    return "## Measured in passing\n\n" + text + _table(["case", "measure", *labels], rows)


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(number) for number in address[1:].split("."))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def main(arguments: Sequence[str]) -> int:
    """Write the page; exit status 2 where a file is no report."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python -m kvxfer.conformance.matrix OUT.md REPORT.json...\n")
        return 2
    out, *paths = arguments
    reports = []
    for path in paths:
        try:
            report = json.loads(Path(path).read_text(encoding="utf-8"))
            missing = {"label", "counts", "caps", "cases"} - report.keys()
        except (OSError, ValueError, AttributeError) as error:
            sys.stderr.write(f"{path}: {error}\n")
            return 2
        if missing:
            sys.stderr.write(f"{path}: no report of kvxfer conform: lacks {sorted(missing)}\n")
            return 2
        reports.append(report)
    Path(out).write_text(page(reports), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
