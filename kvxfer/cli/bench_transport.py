"""`kvxfer bench transport`: options, table and exit status.

Owns the view. Exit status: 0 where all was measured, whatever the figures say (a row
that cannot run here says why); 1 where bytes were wrong or a transfer did not end; 2 for
an option out of its bound.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from kvxfer.bench.transport_aims import Aim


@click.command("transport", context_settings={"show_default": True})
@click.option("--rounds", default=15, help="Samples per row.")
@click.option(
    "--seed",
    default=0,
    type=click.IntRange(min=0),
    help="Draws the bytes and the order of the target's blocks.",
)
@click.option("--only", multiple=True, help="Name of a row's subject, as 'raw ucx'; repeatable.")
@click.option("--tls", default="", help="UCX_TLS for our UCX rows and the raw ones.")
@click.option(
    "--net-devices", default="lo", help="UCX_NET_DEVICES for the same; both ends are on this host."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
@click.pass_context
def bench_transport(
    ctx: click.Context,
    /,
    rounds: int,
    seed: int,
    only: tuple[str, ...],
    tls: str,
    net_devices: str,
    as_json: bool,
) -> None:
    """Time our transports beside the raw libraries and beside what the machine gives.

    Two processes of this host: one range of 256 MiB, 1,024 of 64 KiB, 16,384 of 4 KiB into
    permuted places, and a small notification sent back and forth. All rows take turns;
    every mover's bytes are checked before it is timed.
    """
    from rich.console import Console

    from kvxfer.bench.transport import run_transport
    from kvxfer.bench.view import show_rows
    from kvxfer.cli.faults import ended_by_fault
    from kvxfer.cli.progress import working

    options = {k: v for k, v in {"tls": tls, "net_devices": net_devices}.items() if v}
    err = Console(stderr=True)
    with ended_by_fault(ctx), working("measuring"):
        report = run_transport(rounds=rounds, seed=seed, only=only, options=options)
    console = err if as_json else Console(file=sys.stdout)
    show_rows(
        console,
        "transports, two processes of one host",
        report.rows,
        {"ranges": "ranges", "rate": "GB/s"},
        report.environment,
    )
    for aim in report.aims:
        _show_aim(console, aim)
    if as_json:
        click.echo(json.dumps(report.to_plain()))


def _show_aim(console: Console, aim: Aim) -> None:
    colour, word = ("green", "met") if aim.met else ("red", "missed")
    console.print(
        f"{aim.what}: {aim.measured:g} {aim.unit} ({aim.p10:g} to {aim.p90:g}), "
        f"aim {aim.aim:g}: [{colour}]{word}[/]",
        highlight=False,
    )
