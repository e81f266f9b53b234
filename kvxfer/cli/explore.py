"""`kvxfer explore`: options, tables and the exit status of an exploration.

Owns no logic of the search. Exit status: 0 no violation, or every planted fault
found; 1 otherwise; 2 unknown configuration or option; 130 Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from kvxfer.testing.explore.report import Report
    from kvxfer.testing.explore.search import Result
    from kvxfer.testing.planted.hunt import Hunt

EXIT_VIOLATION = 1


@click.command("explore", context_settings={"show_default": True})
@click.option("--full", is_flag=True, help="Every configuration, up to 50,000 states each.")
@click.option("--config", "names", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--states-max",
    type=click.IntRange(min=1),
    help="End each search after so many states.",
    show_default="of the configuration",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to use.")
@click.option(
    "--planted", is_flag=True, help="Plant each known fault in the core, and look for it."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One line of JSON on stdout; the rest on stderr."
)
@click.pass_context
def explore_command(ctx: click.Context, /, as_json: bool, planted: bool, **values: Any) -> None:
    """Meet every interleaving of the protocol's machines, and check it.

    Two or more real sessions run under a network that delays, loses, repeats and
    reorders, with cancels, failures, expiry and restarts at any point. Each
    distinct state is met once; a violation is shown with the shortest way to it.
    """
    from rich.console import Console

    console = Console(file=sys.stderr if as_json else sys.stdout)
    if planted:
        _refuse_beside_planted(values)
    ctx.exit(_planted(console, as_json) if planted else _explore(console, as_json, **values))


def _refuse_beside_planted(values: dict[str, Any]) -> None:
    """Each planted fault brings its own configurations and bounds."""
    given = [
        option
        for name, option, unset in (
            ("full", "--full", False),
            ("names", "--config", ()),
            ("states_max", "--states-max", None),
            ("jobs", "--jobs", 1),
        )
        if values[name] != unset
    ]
    if given:
        raise click.UsageError(f"--planted takes no {', '.join(given)}")


def _explore(
    console: Console,
    as_json: bool,
    full: bool,
    names: tuple[str, ...],
    states_max: int | None,
    jobs: int,
) -> int:
    from kvxfer.cli.progress import counting
    from kvxfer.testing.explore.configs import CONFIGS
    from kvxfer.testing.explore.report import chosen, explore

    unknown = set(names) - {config.name for config in CONFIGS}
    if unknown:
        known = ", ".join(config.name for config in CONFIGS)
        raise click.BadParameter(f"{sorted(unknown)}; known: {known}", param_hint="--config")
    configs = chosen(names, full=full)
    with counting("configurations", len(configs)) as step:

        def progress(result: Result) -> None:
            step()
            _line(console, result)

        report = explore(configs, full=full, states_max=states_max, jobs=jobs, progress=progress)
    _show(console, report)
    if as_json:
        click.echo(json.dumps(report.summary()))
    return EXIT_VIOLATION if report.violations else 0


def _line(console: Console, result: Result) -> None:
    end = "exhausted" if result.exhausted else f"depth {result.depth}"
    console.print(
        f"{result.config.name:12} {result.states:9,} states  {end:10} {result.seconds:7.1f} s",
        highlight=False,
    )


def _show(console: Console, report: Report) -> None:
    from kvxfer.testing.explore.transcript import transcript

    for result in report.results:
        if result.found is not None:
            console.print(transcript(result.config, result.found), style="red", markup=False)
    console.print(
        f"{report.states:,} states, {report.violations} violations, {report.seconds:.1f} s",
        style="red" if report.violations else "green",
        highlight=False,
    )


def _planted(console: Console, as_json: bool) -> int:
    from kvxfer.cli.progress import counting
    from kvxfer.testing.planted.catalogue import FAULTS
    from kvxfer.testing.planted.hunt import hunt, summary

    hunts = []
    with counting("planted faults", len(FAULTS)) as step:
        for fault in FAULTS:
            hunts.append(hunt(fault))
            step()
            _hunt_line(console, hunts[-1])
    found = sum(h.found for h in hunts)
    console.print(
        f"{found} of {len(hunts)} planted faults found",
        style="green" if found == len(hunts) else "red",
        highlight=False,
    )
    if as_json:
        click.echo(json.dumps(summary(hunts)))
    return 0 if found == len(hunts) else EXIT_VIOLATION


def _hunt_line(console: Console, hunt: Hunt) -> None:
    words = f"{hunt.states:6,} of {hunt.fault.states_max:6,} states"
    end = f"{hunt.invariant} in {hunt.config}, {words}" if hunt.found else f"NOT FOUND, {words}"
    console.print(f"{hunt.fault.name:34} {end}", highlight=False, markup=False)
