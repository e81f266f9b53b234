"""The command group: light to load, and honest about what is here."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvxfer import __version__
from kvxfer.cli import main
from kvxfer.transport import registry

HEAVY = ("numpy", "trio", "rich", "cbor2", "asyncio")


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["conform", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from kvxfer.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvxfer", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"kvxfer, version {__version__}"


def test_transports_lists_the_loopback_as_working() -> None:
    done = CliRunner().invoke(main, ["transports", "--json"])
    assert done.exit_code == 0
    rows = {row["name"]: row for row in json.loads(done.stdout)["transports"]}
    assert rows["loopback"]["status"] == "OK"
    shown = CliRunner().invoke(main, ["transports"])
    assert shown.exit_code == 0
    assert "loopback" in shown.stdout


def test_transports_shows_square_brackets_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra's name in square brackets is no markup."""
    found = registry.Found(
        name="far",
        summary="a far one",
        status=registry.Status.LIBRARY_MISSING,
        detail="needs [far]",
        origin="x",
    )
    monkeypatch.setattr(registry, "available", lambda: [found])
    assert "needs [far]" in CliRunner().invoke(main, ["transports"]).stdout


def test_conform_judges_one_case_and_writes_junit(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    arguments = ["conform", "--transport", "loopback", "--only", "T1.1", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--label", "here", "--junit", str(path)])
    assert done.exit_code == 0, done.output
    line = json.loads(done.stdout)
    assert (line["label"], line["transport"], line["ok"]) == ("here", "loopback", True)
    assert line["counts"] == {"pass": 1, "fail": 0, "unsupported": 0, "non-strict": 0}
    assert "WRITE" in line["caps"]
    (row,) = line["cases"]
    assert (row["address"], row["verdict"]) == ("T1.1", "pass")
    assert ET.parse(path).getroot().get("tests") == "1"


def test_conform_shows_each_case_to_people() -> None:
    arguments = ["conform", "--transport", "loopback", "--only", "T1.1", "--only", "T6.8"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    first, second, detail, total = done.stdout.splitlines()
    assert first.split()[:2] == ["pass", "T1.1"]
    assert second.split()[:2] == ["unsupported", "T6.8"]
    assert "CROSS_PROCESS" in detail
    assert total == "loopback: 1 pass, 0 fail, 1 unsupported, 0 non-strict"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--transport", "nothing-like-this"], "nothing-like-this"),
        (["--transport", "loopback", "--only", "T99.9"], "T99.9"),
        (["--transport", "loopback", "--options", "{"], "not JSON"),
        (["--transport", "loopback", "--options", "[]"], "JSON object"),
        (["--transport", "loopback", "--options", '{"speed": 9}'], "speed"),
    ],
)
def test_conform_of_what_is_not_there_exits_2(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["conform", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["conform", "--transport", "loopback"],
        ["sim"],
        ["bench", "core"],
        ["bench", "layout"],
        ["explore"],
        ["doctor"],
    ],
)
def test_ctrl_c_ends_every_command_with_130(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_args: object, **_more: object) -> object:
        raise KeyboardInterrupt

    for place in (
        "kvxfer.conformance.subject.check_installed",
        "kvxfer.testing.sim.simulate",
        "kvxfer.bench.core_cost.measure",
        "kvxfer.bench.layout.run_layout",
        "kvxfer.testing.explore.report.explore",
        "kvxfer.doctor.report.examine",
    ):
        monkeypatch.setattr(place, interrupted)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_report_without_a_folder_is_refused_before_the_first_case() -> None:
    words = ["conform", "--transport", "loopback", "--junit", "/nowhere/at/all.xml"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "/nowhere/at/all.xml: no such folder" in done.stderr


def test_a_run_in_which_nothing_could_be_judged_has_the_transports_name() -> None:
    words = ["conform", "--transport", "loopback", "--across", "--only", "T1.1", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["transport"] == "loopback"


@pytest.mark.parametrize(
    "given", [["--full"], ["--config", "one"], ["--states-max", "9"], ["--jobs", "2"]]
)
def test_planted_refuses_what_it_would_not_heed(given: list[str]) -> None:
    done = CliRunner().invoke(main, ["explore", "--planted", *given])
    assert done.exit_code == 2
    assert f"--planted takes no {given[0]}" in done.stderr
