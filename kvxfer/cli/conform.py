"""`kvxfer conform`: run the conformance cases on an installed transport.

Owns the view and the exit status; the kit does the judging. Exit status: 0 where
something was judged and no case failed, 1 where one did or every case is unsupported,
2 where the transport cannot be used as asked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

    from kvxfer.conformance import Report

_COLOURS: Final = {
    "pass": "green",
    "fail": "bold red",
    "unsupported": "dim",
    "non-strict": "yellow",
}


@click.command("conform")
@click.option("--transport", required=True, help="Its name (see `kvxfer transports`).")
@click.option("--options", default="{}", help="JSON object: options of every session.")
@click.option("--only", multiple=True, help="Address of a case, as T8.1; may be repeated.")
@click.option("--long", is_flag=True, help="More rounds, sizes up to 1 GiB: minutes, 4 GiB.")
@click.option("--across", is_flag=True, help="Put the far end of every case into a second process.")
@click.option("--label", help="Name of this run in the report; the transport's by default.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON on stdout.")
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write JUnit XML to this file too.",
)
@click.pass_context
def conform_command(
    ctx: click.Context,
    /,
    transport: str,
    options: str,
    label: str | None,
    as_json: bool,
    junit: Path | None,
    **run: Any,
) -> None:
    """Judge a transport against the rules of the transport table.

    Each case runs on sessions of its own. Cases in which an end is killed, stopped or
    restarted run between two processes.
    """
    from kvxfer.errors import KvxferError

    given = _options(options)
    if junit is not None and not junit.absolute().parent.is_dir():
        raise click.BadParameter(f"{junit}: no such folder", param_hint="--junit")
    try:
        report = _run(transport, given, as_json, run)
    except KvxferError as error:
        click.echo(f"kvxfer conform: {error}", err=True)
        ctx.exit(2)
    if junit is not None:
        junit.write_text(report.junit(), encoding="utf-8")
    if as_json:
        head = {"label": label or transport, "options": given, "long": run["long"]}
        click.echo(json.dumps(head | report.rows()))
    ctx.exit(0 if report.ok else 1)


def _options(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--options") from error
    if not isinstance(given, dict):
        raise click.BadParameter(f"{text}: must be a JSON object", param_hint="--options")
    return given


def _run(transport: str, options: dict[str, Any], as_json: bool, run: dict[str, Any]) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kvxfer.conformance import transport_cases
    from kvxfer.conformance.subject import check_installed

    console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False)
    only = run.pop("only") or None
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=len(only or transport_cases()))
        report = check_installed(
            transport,
            options=options,
            only=only,
            on_result=lambda result: bar.update(task, advance=1, description=result.address),
            **run,
        )
    _show(console, report)
    return report


def _show(console: Console, report: Report) -> None:
    """One line a case, and a line below it where there is something to say."""
    from rich.text import Text

    from kvxfer.conformance.report import measured

    for result in report.results:
        verdict = result.verdict.value
        line = Text.assemble(
            (f"{verdict:<12}", _COLOURS[verdict]), f"{result.address:<8}", result.requirement
        )
        console.print(line, soft_wrap=True)
        for text in filter(None, (result.detail, measured(result))):
            console.print(Text(f"{'':<20}{text}", style="dim"), soft_wrap=True)
    shown = ", ".join(f"{count} {verdict.value}" for verdict, count in report.counts.items())
    console.print(f"{report.subject}: {shown}", soft_wrap=True)
