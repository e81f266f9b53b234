"""`kvxfer bench`: options, the JSON document, the table."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvxfer.cli import main

WIDE = {"COLUMNS": "200"}


def test_layout_as_json() -> None:
    words = ["bench", "layout", "--json", "--rounds", "2", "--only", "BLHNC, 1k tokens"]
    done = CliRunner().invoke(main, words, env=WIDE)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (case,) = report["cases"]
    assert (case["name"], case["ranges"], case["rounds"]) == ("BLHNC, 1k tokens", 64, 2)
    assert case["ms_p50"] > 0
    assert report["environment"]["revision"]


def test_layout_as_a_table() -> None:
    words = ["bench", "layout", "--rounds", "1", "--only", "lbhnc to lbhnc, runs of 1"]
    done = CliRunner().invoke(main, words, env=WIDE)
    assert done.exit_code == 0, done.output
    assert "65,536" in done.output
    assert "under 1:" in done.output
    assert "numpy" in done.output


def test_what_was_not_measured_is_said_below_the_table() -> None:
    words = ["bench", "layout", "--rounds", "1", "--only", "LBHNC to LBNHC"]
    done = CliRunner().invoke(main, words, env=WIDE)
    assert done.exit_code == 0, done.output
    assert "LBHNC to LBNHC: refused: rank 0 to rank 0" in done.output


def test_options_out_of_bounds() -> None:
    none = CliRunner().invoke(main, ["bench", "layout", "--only", "nothing like it"])
    assert none.exit_code == 2
    assert "no case" in none.output
    rounds = CliRunner().invoke(
        main, ["bench", "layout", "--rounds", "0", "--only", "BLHNC, 1k tokens"]
    )
    assert rounds.exit_code == 2
    assert "rounds = 0: from 1 to 100000" in rounds.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["layout", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["transport", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["gpu", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["gpu", "--mib", "0"], "0 is not in the range 1<=x<=8192"),
        (["gpu", "--rounds", "0"], "0 is not in the range 1<=x<=100000"),
        (["gpu", "--transport", "tachyon"], "known are cuda, ucx, nixl"),
    ],
)
def test_options_are_judged_before_the_machine(words: list[str], told: str) -> None:
    done = CliRunner().invoke(main, ["bench", *words])
    assert done.exit_code == 2
    assert told in done.stderr
