"""`kvxfer transports`: what is known here, what works, and why not.

Owns the view only; the registry does the finding.
"""

from __future__ import annotations

import json

import click


@click.command("transports")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
def transports_command(as_json: bool) -> None:
    """List the transports that are known here and whether each works."""
    from kvxfer.status import Status
    from kvxfer.transport.registry import available

    found = available()
    if as_json:
        rows = [
            {
                "name": one.name,
                "status": one.status.name,
                "detail": one.detail,
                "summary": one.summary,
                "origin": one.origin,
            }
            for one in found
        ]
        click.echo(json.dumps({"transports": rows}))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("transport", "here", "what it is", "detail", "from")
    for one in found:
        works = "[green]works[/]" if one.status == Status.OK else f"[red]{one.status.name}[/]"
        texts = (escape(text) for text in (one.summary, one.detail, one.origin))
        table.add_row(escape(one.name), works, *texts)
    Console().print(table)
