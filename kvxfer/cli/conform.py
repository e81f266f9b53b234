"""`kvxfer conform`: run the conformance cases on an installed transport.

Owns the view and the exit status; the kit does the judging. Exit status: 0 where
no case failed, 1 where one did, 2 where the transport cannot be used here.
"""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("conform")
@click.argument("transport")
@click.option("--only", multiple=True, help="Address of a case, as T8.1; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write JUnit XML to this file too.",
)
@click.pass_context
def conform_command(
    ctx: click.Context, /, transport: str, only: tuple[str, ...], as_json: bool, junit: Path | None
) -> None:
    """Judge TRANSPORT against the rules of the transport table, in this process."""
    from kvxfer.conformance import check_transport, pair_maker
    from kvxfer.errors import KvxferError
    from kvxfer.transport.registry import open_transport

    try:
        ops = open_transport(transport)
        report = check_transport(pair_maker(ops), only=only or None)
    except KvxferError as error:
        click.echo(f"kvxfer conform: {error}", err=True)
        ctx.exit(2)
    if junit is not None:
        junit.write_text(report.junit(), encoding="utf-8")
    if as_json:
        counts = {verdict.value: count for verdict, count in report.counts.items()}
        line = {"transport": report.subject, "ok": report.ok, **counts, "failed": report.failed}
        click.echo(json.dumps(line))
    else:
        click.echo(report.text(), nl=False)
    ctx.exit(0 if report.ok else 1)
