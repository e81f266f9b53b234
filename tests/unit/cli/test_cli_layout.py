"""`kvxfer layout`: files in, words, JSON and a picture out, exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvxfer.cli import main

WIDE = {"COLUMNS": "200"}


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["layout", *words], env=WIDE)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    made = {
        "p": ["--tp", "2"],
        "d": ["--order", "LBNHC", "--base", str(1 << 45)],
        "other": ["--heads", "4"],
    }
    for name, words in made.items():
        (tmp_path / f"{name}.json").write_text(run("make", *words).stdout)
    return {name: str(tmp_path / f"{name}.json") for name in made}


def test_words(files: dict[str, str]) -> None:
    done = run("explain", files["p"], files["d"])
    assert done.exit_code == 0, done.output
    assert "rank 1 to rank 0, group kv:" in done.output
    assert "16 slots stay apart: at the consumer" in done.output
    assert "consumer rank 0 waits for 2 parts: rank 0/kv, rank 1/kv" in done.output


def test_json_and_picture(files: dict[str, str], tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    words = ("--json", "--svg", str(picture), "--block", "1")
    done = run("explain", files["p"], files["d"], *words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["served"] is True
    first = report["edges"][0]
    assert (first["group"], first["producer_rank"], first["ranges"]) == ("kv", 0, 1024)
    assert first["joins"][0]["left"][0]["axis"] == "slot"
    assert "tokens 16 to 31" in picture.read_text()


def test_a_refusal_has_its_own_status(files: dict[str, str]) -> None:
    done = run("explain", files["p"], files["other"])
    assert done.exit_code == 1
    assert "refused: group 'kv': heads_total is 8 at the producer and 4" in done.output


def test_what_cannot_be_used(files: dict[str, str], tmp_path: Path) -> None:
    for words, says in (
        ((files["p"], str(tmp_path / "none.json")), "cannot be read"),
        ((files["p"], files["d"], "--svg", str(tmp_path / "x.svg"), "--rank", "7"), "--rank = 7"),
        ((files["p"], files["d"], "--svg", str(tmp_path / "no" / "x.svg")), "No such file"),
    ):
        done = run("explain", *words)
        assert done.exit_code == 2, done.output
        assert says in done.output


def test_make_refuses_what_no_engine_has() -> None:
    done = run("make", "--order", "XYZ")
    assert done.exit_code == 2
    assert "order = 'PXYZ'" in done.output
    assert run("make", "--heads", "0").exit_code == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tp", "0"),
        ("--tp", "4097"),
        ("--layers", "0"),
        ("--layers", "4097"),
        ("--heads", "0"),
        ("--block-size", "0"),
        ("--blocks", "0"),
        ("--content", "0"),
        ("--base", "-1"),
    ],
)
def test_make_names_the_option_that_is_out_of_its_bound(option: str, value: str) -> None:
    done = run("make", option, value)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"'{option}': {value} is not in the range" in done.stderr


@pytest.mark.parametrize("option", ["--staging", "--block"])
def test_explain_refuses_negative_numbers(files: dict[str, str], option: str) -> None:
    done = run("explain", files["p"], files["d"], option, "-1")
    assert done.exit_code == 2
    assert f"'{option}': -1 is not in the range x>=0" in done.stderr
