"""Commands that adapters bring by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from kvxfer.cli import main, plugins


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Entry points by name; a test fills it in."""
    given: dict[str, str] = {}
    monkeypatch.setattr(
        plugins,
        "entry_points",
        lambda group: [EntryPoint(name, value, group) for name, value in given.items()],
    )
    return given


def test_pd_is_there_and_listed() -> None:
    assert "pd" in main.list_commands(click.Context(main))
    shown = CliRunner().invoke(main, ["pd", "example"])
    assert shown.exit_code == 0
    assert "[[prefill]]" in shown.stdout


@pytest.mark.parametrize("value", ["no_such_module:x", "kvxfer.status:Status"])
def test_one_that_cannot_be_loaded_says_why_and_harms_nobody(
    points: dict[str, str], value: str
) -> None:
    points["odd"] = value
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert "demo" in shown.stdout
    run = CliRunner().invoke(main, ["odd", "--help", "more"])
    assert run.exit_code == 1
    assert value in run.stderr


def test_our_own_commands_win(points: dict[str, str]) -> None:
    points["demo"] = "no_such_module:x"
    assert CliRunner().invoke(main, ["demo", "--help"]).exit_code == 0
