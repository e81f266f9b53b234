"""`kvxfer bench watch`: what metrics, recordings and traces cost a transfer.

Owns the view; `kvxfer.bench.watch_cost` measures.
"""

from __future__ import annotations

import json

import click


@click.command("watch", context_settings={"show_default": True})
@click.option("--transfers", default=5_000, type=click.IntRange(min=1), help="Timed per round.")
@click.option("--rounds", default=5, type=click.IntRange(min=1), help="The best one counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
def watch_command(transfers: int, rounds: int, as_json: bool) -> None:
    """CPU time per transfer that goes into watching it, both sides together."""
    from kvxfer.bench.watch_cost import measure

    cost = measure(transfers, rounds)
    if as_json:
        click.echo(json.dumps(cost.summary()))
        return
    from rich.console import Console
    from rich.table import Table

    title = f"watching a transfer, {cost.steps} steps, us of CPU"
    table = Table(title=title, title_justify="left")
    for name in ("what", "thread", "us"):
        table.add_column(name, justify="right" if name == "us" else "left")
    rows = (
        ("outcomes, phases, latest steps", "writer", cost.kept_us),
        ("and the flight recorder: always on", "writer", cost.flight_us),
        ("and a tap: recording or traces on", "writer", cost.tapped_us),
        ("lines of a recording", "tap", cost.recording_us),
        ("spans", "tap", cost.spans_us),
    )
    for what, thread, value in rows:
        table.add_row(what, thread, "no SDK" if value is None else f"{value:.1f}")
    Console().print(table)
