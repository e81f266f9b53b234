"""`kvxfer demo --record` and `kvxfer trace`: text, JSON, HTML, Perfetto, bad files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvxfer.cli import main


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of the demo, in a process of its own: it sets matrix threads for good."""
    path = tmp_path_factory.mktemp("recorded") / "demo.jsonl"
    command = [sys.executable, "-m", "kvxfer", "demo", "--requests", "2", "--prompt-max", "80"]
    options = ["--tokens", "2", "--mode", "both", "--record", str(path), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return path


def trace(*args: object) -> Result:
    return CliRunner().invoke(main, ["trace", *map(str, args)])


def test_text_shows_both_sides_in_order(recorded: Path) -> None:
    result = trace(recorded, "--transfer", "push-0001")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "transfer push-0001: landed, sent"
    found = [re.match(r" *\d+ +([\d.]+) ms  (\S+)  (.+?)(  |$)", line) for line in lines[1:-1]]
    names = [(match[2], match[3]) for match in found]
    assert names[0] == ("D/0", "asked to receive")
    for agent, step in (("P/0", "posted"), ("P/0", "written"), ("D/0", "landed")):
        assert (agent, step) in names
    times = [float(match[1]) for match in found]
    assert times == sorted(times)


def test_json_has_a_line_for_each_transfer(recorded: Path) -> None:
    rows = [json.loads(line) for line in trace(recorded, "--json").stdout.splitlines()]
    # Two requests in each order, and one that connects the ranks before they are timed.
    assert len(rows) == 5
    assert {row["outcome"] for row in rows} == {"landed, sent"}
    assert {tuple(row["agents"]) for row in rows} == {("P/0", "D/0")}
    assert trace(recorded, "--json", "--failed").stdout == ""


def test_files_are_written(recorded: Path, tmp_path: Path) -> None:
    html, perfetto = tmp_path / "t.html", tmp_path / "t.json"
    result = trace(recorded, "--html", html, "--perfetto", perfetto, "--limit", 3)
    assert result.exit_code == 0, result.output
    assert "2 more transfers are left out" in result.output
    assert "2 more are in the recording and not drawn" in html.read_text(encoding="utf-8")
    events = json.loads(perfetto.read_text(encoding="utf-8"))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"push-0000"}


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("hello\n", encoding="utf-8")
    result = trace(path)
    assert result.exit_code == 2
    assert "line 1" in result.output
    assert trace(tmp_path / "none").exit_code == 2


def test_a_folder_that_is_not_there_is_named_before_the_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--record", str(tmp_path / "no" / "x.jsonl")])
    assert result.exit_code == 2
    assert "no such folder" in result.output
