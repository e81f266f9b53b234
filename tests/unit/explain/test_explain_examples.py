"""The examples of docs/layout.md are what the documented commands print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvxfer.cli import main
from kvxfer.explain.files import load_shards
from kvxfer.explain.report import explain

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "layout"
DECODE = ["--base", "35184372088832"]
MADE: dict[str, list[str]] = {
    "lbhnc": [],
    "lbnhc": ["--order", "LBNHC", *DECODE],
    "lbhnc-tp2": ["--tp", "2"],
    "bhlnc-tp3": ["--order", "BHLNC", "--tp", "3"],
    "bhlnc-tp2": ["--order", "BHLNC", "--tp", "2", *DECODE],
    "blnhc": ["--order", "BLNHC", "--heads", "4"],
    "blnhc-block24": ["--order", "BLNHC", "--block-size", "24", "--heads", "4", *DECODE],
    "lbhnc-tp4-replicas": ["--tp", "4", "--heads", "2"],
    "lbhnc-tp2-two-heads": ["--tp", "2", "--heads", "2", *DECODE],
    "split-kv": ["--order", "LPBHNC", "--planes", "k,v", "--heads", "4"],
}


@pytest.mark.parametrize("name", MADE)
def test_an_example_is_what_its_command_prints(name: str) -> None:
    done = CliRunner().invoke(main, ["layout", "make", *MADE[name]])
    assert done.exit_code == 0, done.output
    assert (EXAMPLES / f"{name}.json").read_text() == done.stdout


def test_every_example_can_be_read() -> None:
    for path in EXAMPLES.glob("*.json"):
        assert load_shards(path)


@pytest.mark.parametrize(
    ("producer", "consumer", "ranges"),
    [
        ("lbhnc", "lbnhc", [2048]),
        ("lbhnc-tp2", "lbnhc", [1024, 1024]),
        ("bhlnc-tp3", "bhlnc-tp2", [4, 4, 4, 4]),
        ("blnhc", "blnhc-block24", [32]),
        ("lbhnc-tp4-replicas", "lbhnc-tp2-two-heads", [16, 16]),
        ("split-kv", "blnhc", None),
    ],
)
def test_figures_of_the_guide(producer: str, consumer: str, ranges: list[int] | None) -> None:
    report = explain(*(load_shards(EXAMPLES / f"{name}.json") for name in (producer, consumer)))
    found: Any = None if report.refused else [edge.ranges for edge in report.edges]
    assert found == ranges


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bhlnc-tp3-to-tp2", ["bhlnc-tp3", "bhlnc-tp2", "--rank", "1"]),
        ("blnhc-to-block24", ["blnhc", "blnhc-block24"]),
    ],
)
def test_a_picture_of_the_guide_is_fresh(name: str, words: list[str], tmp_path: Path) -> None:
    files = [str(EXAMPLES / f"{word}.json") for word in words[:2]]
    done = CliRunner().invoke(
        main, ["layout", "explain", *files, *words[2:], "--svg", str(tmp_path / "new.svg")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new.svg").read_text() == (EXAMPLES / f"{name}.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bhlnc-tp3", "bhlnc-tp2"], "one range of plane kv: 65,536 bytes (512 side by side, all"),
        (["bhlnc-tp3", "bhlnc-tp2"], "98,304 bytes on: one head not of this edge in between"),
        (["lbhnc", "lbnhc"], "16 slots stay apart: at the consumer the next is 4,096 bytes on"),
        (["lbhnc", "lbnhc", "--staging", "1000000"], "16 ranges and a permute in place of 2048"),
        (["split-kv", "blnhc"], "planes is {'k': 512, 'v': 512} at the producer"),
    ],
)
def test_what_the_guide_quotes_is_said(words: list[str], said: str) -> None:
    files = [str(EXAMPLES / f"{word}.json") for word in words[:2]]
    done = CliRunner().invoke(main, ["layout", "explain", *files, *words[2:]])
    assert said in done.output
