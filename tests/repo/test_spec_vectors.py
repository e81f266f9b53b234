"""The vector files: their form, their number, and that no old case was edited."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvxfer.conformance.vectors import MACHINE_PARTS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spec"))
import generate
from vectorgen import files, rules

SPEC_DIR = Path(__file__).resolve().parents[2] / "spec"
VECTORS = SPEC_DIR / "vectors"
PATHS = sorted(VECTORS.glob("*.json"))
SCHEMAS = {"codec": "codec", "layout": "layout", "parts": "parts", "seals": "seals"}
"""All other parts are machines."""


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def in_force(path: Path) -> list[Any]:
    whole = read(path)
    return [v for v in whole["vectors"] if v["id"] not in whole.get("superseded", {})]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_a_file_is_of_its_schema(path: Path) -> None:
    schema = read(VECTORS / "schema" / f"{SCHEMAS.get(path.stem, 'machine')}.schema.json")
    Draft202012Validator.check_schema(schema)
    errors = [
        f"{e.json_path}: {e.message}" for e in Draft202012Validator(schema).iter_errors(read(path))
    ]
    assert errors == []


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_ids_are_unique_and_superseded_ones_have_a_successor(path: Path) -> None:
    whole = read(path)
    ids = [v["id"] for v in whole["vectors"]]
    assert len(set(ids)) == len(ids)
    for old, new in whole.get("superseded", {}).items():
        assert old in ids
        assert new in ids


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_rules_that_are_named_exist(path: Path) -> None:
    known = {rule["id"] for rule in rules.rules(rules.SPEC.read_text(encoding="utf-8"))}
    named = {rule for v in read(path)["vectors"] for rule in v.get("rules", ())}
    assert named <= known


def test_there_are_enough_and_half_of_them_are_refused() -> None:
    cases = [v for path in PATHS for v in in_force(path)]
    refused = [v for v in cases if v["verdict"] == "reject"]
    assert len(cases) >= 300
    assert 2 * len(refused) >= len(cases)
    assert {p.stem for p in PATHS} >= {"codec", *MACHINE_PARTS}


def test_an_old_case_is_never_edited() -> None:
    """Every digest in the list is that of a case as it stands; a case without one is new."""
    now = files.digests({path.stem: read(path) for path in PATHS})
    assert files.recorded() == now


def test_an_edited_case_and_one_that_is_gone_are_found() -> None:
    whole = {path.stem: read(path) for path in PATHS}
    first = whole["codec"]["vectors"][0]
    first["note"] += " "
    with pytest.raises(ValueError, match="edited or gone: codec/hello"):
        files.digests_text(whole)
    del whole["codec"]["vectors"][0]
    with pytest.raises(ValueError, match="edited or gone: codec/hello"):
        files.digests_text(whole)


def test_what_is_generated_is_fresh() -> None:
    assert [path.name for path in generate.stale()] == []
