"""The generated page of transports and cases."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvxfer.conformance import transport_cases
from kvxfer.conformance.matrix import main, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transport-matrix.md"


def report(label: str, verdicts: dict[str, str]) -> dict[str, object]:
    names = ("pass", "fail", "unsupported", "non-strict")
    return {
        "label": label,
        "caps": ["WRITE"] if label == "one" else ["WRITE", "READ"],
        "counts": {name: list(verdicts.values()).count(name) for name in names},
        "cases": [
            {
                "address": address,
                "verdict": verdict,
                "detail": "" if verdict == "pass" else f"why | {address}",
                "measures": {"took_s": 0.25} if address == "T1.1" else {},
            }
            for address, verdict in verdicts.items()
        ],
    }


ONE = report("one", {"T1.1": "pass", "T1.2": "fail"})
TWO = report("two", {"T1.1": "unsupported", "T1.2": "non-strict"})


def row(text: str, address: str) -> list[str]:
    """Cells of the row of a case in the table of cases."""
    cases = text.partition("## Cases")[2].partition("## ")[0]
    (line,) = [one for one in cases.splitlines() if one.startswith(f"| {address} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_case_has_a_row_and_each_report_a_column() -> None:
    text = page([ONE, TWO])
    assert row(text, "T1.1")[-2:] == ["pass", "–"]
    assert row(text, "T1.2")[-2:] == ["**FAIL**", "pass (1)"]
    assert row(text, "T1.3")[-2:] == ["not run", "not run"]
    assert "- T1.2, fail: why | T1.2" in text
    assert "| T1.1 | took_s | 0.25 | 0.25 |" in text
    assert "why | T1.1" in text
    assert "| READ |  | yes |" in text


def test_the_command_writes_the_page_and_names_a_file_that_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, out = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "page.md"
    good.write_text(json.dumps(ONE))
    bad.write_text("{}")
    assert main([str(out), str(good)]) == 0
    assert out.read_text() == page([ONE])
    assert main([str(out), str(good), str(bad)]) == 2
    assert "bad.json" in capsys.readouterr().err
    assert main([str(out), str(tmp_path / "none.json")]) == 2
    assert main([str(out)]) == 2


def test_the_page_in_docs_knows_every_case_of_this_build() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| (T\d+\.\d+) \| .* \| [A-Z]* ?\|", text, re.MULTILINE)
    assert set(listed) == {case.address for case in transport_cases()}
    for case in transport_cases():
        assert case.requirement in text, f"{case.address} is described anew: make the page again"
