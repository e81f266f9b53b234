"""What every command promises: output for programs, and a plain word about a bad option."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from kvxfer.cli import main

PRINTS_JSON_ANYWAY = {"layout make"}


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path}{name}", command


def test_every_command_speaks_to_programs_and_explains_itself() -> None:
    found = dict(commands(main))
    assert {"demo", "doctor", "sim", "bench core", "layout explain"} <= found.keys()
    without = {
        name
        for name, command in found.items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert without == PRINTS_JSON_ANYWAY
    for name, command in found.items():
        assert command.get_short_help_str(), name
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts}"


@pytest.mark.parametrize(
    "words",
    [
        "demo --requests 0",
        "demo --prompt-min 10 --prompt-max 5",
        "demo --cache-order XYZ",
        "demo --transport nothing-like-this",
        "demo --prefill-tp 0",
        "demo --concurrency -1",
        "demo --tokens 0",
        "demo --timeline /nowhere/x.html",
        "bench layout --rounds 0",
        "bench transport --rounds 0",
        "bench transport --only nobody",
        "bench gpu --transport nothing-like-this",
        "bench core --rounds 0",
        "sim --seeds 0",
        "explore --config nothing-like-this",
        "explore --planted --jobs 2",
        "layout make --order FOO",
        "layout explain /nowhere/a.json /nowhere/a.json",
        "conform --transport loopback --only T0",
        "doctor /nowhere/report.json",
        "nothing-like-this",
    ],
)
def test_a_bad_option_ends_with_2_and_names_the_value(words: str) -> None:
    done = CliRunner().invoke(main, words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert isinstance(done.exception, SystemExit)
    assert len(done.stderr) < 1500
    value = words.split()[-1] if "--planted" not in words else "--jobs"
    assert value in done.stderr
