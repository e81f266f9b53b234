"""`kvxfer bench core`: what the protocol core costs, by itself.

Owns the view; `kvxfer.bench.core_cost` measures.
"""

from __future__ import annotations

import json

import click


@click.command("core", context_settings={"show_default": True})
@click.option("--live-max", default=100_000, type=click.IntRange(min=10), help="Most live ones.")
@click.option("--transfers", default=4_000, type=click.IntRange(min=1), help="Timed per round.")
@click.option("--rounds", default=3, type=click.IntRange(min=1), help="The best one counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
def core_command(live_max: int, transfers: int, rounds: int, as_json: bool) -> None:
    """Events per second of the core on one CPU, and how that grows with live transfers.

    Two sessions face to face: no codec, no layout, no transport, no network.
    """
    from kvxfer.bench.core_cost import LIVE, measure
    from kvxfer.cli.progress import working

    live = tuple(count for count in LIVE if count <= live_max)
    with working(f"measuring with {', '.join(map(str, live))} live transfers"):
        cost = measure(live, transfers, rounds)
    if as_json:
        click.echo(json.dumps(cost.summary()))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="core, CPU time of one process", title_justify="left")
    names = (
        "live",
        "events/s",
        "event us",
        "transfer us",
        "renewal us",
        "expiry us",
        "far link us",
        "far fence us",
    )
    for name in names:
        table.add_column(name, justify="right")
    for row in cost.rows:
        table.add_row(
            f"{row.live}",
            f"{row.events_per_second:.0f}",
            *(
                f"{value:.2f}"
                for value in (
                    row.event_us,
                    row.transfer_us,
                    row.renewal_us,
                    row.expiry_us,
                    row.far_link_us,
                    row.far_fence_us,
                )
            ),
        )
    console = Console()
    console.print(table)
    memory = cost.memory
    console.print(
        f"an event at {cost.rows[-1].live} live costs {cost.growth:.2f} times that at "
        f"{cost.rows[0].live}; bytes per live transfer: {memory.consumer_bytes:.0f} at D, "
        f"{memory.producer_bytes:.0f} at P, {memory.table_bytes:.0f} of each its block table of "
        f"256 blocks; remembered of an ended one: {memory.ended_bytes:.0f}",
        highlight=False,
    )
