"""`kvxfer doctor`: what is here, what works, and what to do about the rest.

Owns the view only. Exit status: 0 nothing is wrong; 1 a problem was found; 2 the
command cannot run as asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvxfer.doctor.report import Report
    from kvxfer.transport.finding import Finding

_EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("doctor")
@click.argument("reports", nargs=-1, type=_EXISTING)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
def doctor_command(reports: tuple[Path, ...], as_json: bool) -> None:
    """Say what works here, or what two hosts can do together.

    Without REPORTS: look at this host and try every transport. With one or two files that
    `kvxfer doctor --json` wrote: judge the pair (one file: against this host).
    """
    from kvxfer.cli.progress import working
    from kvxfer.doctor.pair import judge
    from kvxfer.doctor.report import examine, read_report
    from kvxfer.errors import BadValue

    if len(reports) > 2:
        raise click.UsageError(f"REPORTS: {len(reports)} files, at most 2")
    read = []
    for path in reports:
        try:
            read.append(read_report(path.read_text(encoding="utf-8")))
        except (BadValue, OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"{path}: {error}") from error
    if len(read) == 2:
        found, plain = judge(*read), {}
    else:
        with working("looking at this host and trying its transports"):
            report = examine()
        plain = report.to_json()
        found = judge(report, read[0]) if read else report.all_findings
        if not as_json and not read:
            _show_host(report)
    if as_json:
        click.echo(json.dumps(plain if not read else {"findings": [_plain(f) for f in found]}))
    else:
        _show(found)
    raise SystemExit(int(any(f.level.value == "problem" for f in found)))


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level.value,
        "subject": finding.subject,
        "text": finding.text,
        "fix": finding.fix,
    }


def _show_host(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    host = report.host
    console = Console()
    versions = ", ".join(f"{name} {number}" for name, number in host.versions.items())
    console.print(escape(f"{host.name}: {host.system}, Python {host.python}, {host.cpus} CPUs"))
    console.print(
        escape(
            f"GPUs {host.gpus}, Neuron devices {host.neuron_devices}, RDMA: "
            f"{', '.join(host.rdma_devices) or 'none'}"
        )
    )
    console.print(escape(versions))
    table = Table("transport", "here", "detail", "capabilities")
    for trial in report.trials:
        works = "[green]works[/]" if trial.works else "[red]does not[/]"
        table.add_row(escape(trial.name), works, escape(trial.detail), ", ".join(trial.caps))
    console.print(table)


def _show(found: Iterable[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape

    colour = {"fine": "green", "note": "yellow", "problem": "red"}
    console = Console()
    for one in found:
        level = one.level.value
        console.print(
            f"[{colour[level]}]{level:8}[/] [bold]{escape(one.subject)}[/]: {escape(one.text)}"
        )
        if one.fix:
            console.print(f"         [dim]do:[/] {escape(one.fix)}")
