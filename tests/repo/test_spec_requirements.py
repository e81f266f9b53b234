"""Every rule has a row in requirements.toml, and what a row names is really there.

A MUST that no test pins fails here; so does a row whose sentence has changed since its tests
were read for it (`python spec/generate.py --read K-1.2.3` once they are).
"""

from __future__ import annotations

import ast
import functools
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvxfer.conformance import transport_cases

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spec"))
from vectorgen import rules

ROOT = Path(__file__).resolve().parents[2]
RULES = rules.rules(rules.SPEC.read_text(encoding="utf-8"))
ROWS = tomllib.loads(rules.REQUIREMENTS.read_text(encoding="utf-8"))["rule"]
BY_ID: dict[str, Any] = {row["id"]: row for row in ROWS}
CASES = {case.address for case in transport_cases()}


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the test functions of a file, without importing it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


@functools.cache
def vectors_in_force() -> frozenset[str]:
    found = set()
    for path in sorted((rules.SPEC_DIR / "vectors").glob("*.json")):
        whole = json.loads(path.read_text(encoding="utf-8"))
        gone = whole.get("superseded", {})
        found |= {f"{path.stem}/{v['id']}" for v in whole["vectors"] if v["id"] not in gone}
    return frozenset(found)


def missing(name: str) -> str:
    """Why what a row names is not there; empty where it is."""
    kind, _, rest = name.partition(":")
    if kind == "case":
        return "" if rest in CASES else "no such case of the kit"
    if kind == "vector":
        return "" if rest in vectors_in_force() else "no such vector in force"
    file, _, test = name.partition("::")
    path = ROOT / file
    if not path.is_file() or not file.startswith("tests/"):
        return "no such file"
    if not test:
        return "" if names_in(path) else "a file without tests"
    return "" if test.split("::")[-1] in names_in(path) else "no such test in it"


def test_every_rule_has_its_row_and_no_row_is_without_a_rule() -> None:
    assert [row["id"] for row in ROWS] == [rule["id"] for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["id"])
def test_a_must_is_pinned(rule: Any) -> None:
    row = BY_ID[rule["id"]]
    assert rule["level"], f"{rule['id']} binds nobody"
    assert row["level"] == rule["level"]
    if rule["level"] == "MUST":
        assert row["tests"] or row["vectors"], f"nothing pins {rule['id']}: {rule['sentence']}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_what_a_row_names_is_there(row: Any) -> None:
    wrong = {name: why for name in row["tests"] if (why := missing(name))}
    wrong |= {name: "not in force" for name in row["vectors"] if name not in vectors_in_force()}
    assert wrong == {}
    assert len(set(row["tests"])) == len(row["tests"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["id"])
def test_its_tests_were_read_for_the_sentence_as_it_stands(rule: Any) -> None:
    assert BY_ID[rule["id"]]["read"] == rule["digest"], f"{rule['id']} says: {rule['sentence']}"


@pytest.mark.parametrize(
    "name",
    [
        "case:T99.9",
        "vector:codec/nothing",
        "vector:codec/unknown-items",
        "tests/repo/test_spec_requirements.py::test_nothing",
        "tests/repo/no_such_file.py::test_nothing",
        "kvxfer/errors.py",
    ],
)
def test_what_is_not_there_is_found(name: str) -> None:
    assert missing(name)


def test_what_is_there_is_found() -> None:
    here = "tests/repo/test_spec_requirements.py"
    for name in ("case:T8.1", "vector:codec/hello", here, f"{here}::test_a_must_is_pinned"):
        assert missing(name) == ""


def test_a_rule_is_read_with_its_level_and_section() -> None:
    text = "## 7. A\n### 7.1 B\n- [K-7.1.1] It SHOULD, and MUST NOT.\n- [K-7.1.2] It MAY.\n"
    found = [(r["id"], r["section"], r["heading"], r["level"]) for r in rules.rules(text)]
    assert found == [("K-7.1.1", "7.1", "B", "MUST"), ("K-7.1.2", "7.1", "B", "MAY")]
