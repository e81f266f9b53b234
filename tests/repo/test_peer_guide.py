"""docs/implement-a-peer.md names cases, files and functions that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvxfer.conformance import vectors, vectors_process

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "implement-a-peer.md").read_text(encoding="utf-8")
VECTORS = {
    path.stem: {v["id"] for v in json.loads(path.read_text(encoding="utf-8"))["vectors"]}
    for path in (ROOT / "spec" / "vectors").glob("*.json")
}


def test_every_case_that_is_named_exists() -> None:
    named = re.findall(r"`([a-z]+)/([a-z0-9-]+)`", PAGE)
    assert len(named) >= 15
    missing = [f"{part}/{name}" for part, name in named if name not in VECTORS.get(part, ())]
    assert missing == []


def test_every_file_of_vectors_is_in_the_order_of_work() -> None:
    table = PAGE.partition("## Order of work")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+)\.json`", table))
    assert named == set(VECTORS)


def test_functions_and_paths_that_are_named_exist() -> None:
    for name in (
        "check_codec",
        "check_machine",
        "check_parts",
        "check_seals",
        "check_layout",
        "load",
    ):
        assert name in PAGE
        assert callable(getattr(vectors, name))
    assert "ProcessFactory" in PAGE
    assert callable(vectors_process.ProcessFactory)
    for path in re.findall(r"`((?:tests|kvxfer|docs|spec)/[\w/.-]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_rules_that_are_cited_exist() -> None:
    text = (ROOT / "spec" / "kvxfer-1.md").read_text(encoding="utf-8")
    for number in re.findall(r"\((\d+\.\d+\.\d+)\)", PAGE):
        assert f"[K-{number}]" in text
