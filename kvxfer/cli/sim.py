"""`kvxfer sim`: many engines, faults drawn per seed, every byte checked.

Owns the view and the exit status; `kvxfer.testing.sim` does the work. Exit status:
0 where nothing broke, 1 where an invariant did, 2 for a wrong option.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from kvxfer.cli.sim_cluster import cluster_command

if TYPE_CHECKING:
    from kvxfer.testing.sim import SeedResult, Total


@click.group("sim", invoke_without_command=True, context_settings={"show_default": True})
@click.option("--seed", default=0, type=click.IntRange(min=0), help="The first seed.")
@click.option("--transfers", default=200, type=click.IntRange(min=1), help="Transfers per seed.")
@click.option("--seeds", default=1, type=click.IntRange(min=1), help="How many seeds, upwards.")
@click.option("--jobs", default=1, type=click.IntRange(min=1), help="Processes that share them.")
@click.option(
    "--world",
    type=click.Choice(["fast", "agents"]),
    default="fast",
    help="fast: sessions over a network and a transport made for it. agents: two real agents "
    "with codec, driver and loopback transport; slower.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
@click.pass_context
def sim_command(
    ctx: click.Context,
    /,
    seed: int,
    transfers: int,
    seeds: int,
    jobs: int,
    world: str,
    as_json: bool,
) -> None:
    """Simulate transfers between many engines under faults.

    Virtual time, no network, no threads: the same seed gives the same run, byte for
    byte. A seed that breaks an invariant prints the command that repeats it and the
    last events of the transfer concerned. `cluster` simulates times instead of faults.
    """
    if ctx.invoked_subcommand is not None:
        return
    from kvxfer.cli.progress import counting
    from kvxfer.testing.sim import simulate

    with counting("seeds", seeds) as step:

        def progress(result: SeedResult) -> None:
            step()
            if result.broken is not None:
                click.echo(result.broken.text(), err=True)

        total = simulate(range(seed, seed + seeds), transfers, jobs, progress, world)
    if as_json:
        click.echo(json.dumps(total.summary()))
    else:
        _show(total)
    ctx.exit(0 if total.ok else 1)


def _show(total: Total) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("what hit", "times", title="faults and ends", title_justify="left")
    for name, count in sorted(total.hits.items()):
        table.add_row(name, str(count))
    console = Console()
    console.print(table)
    verdict = "every invariant held" if total.ok else f"{total.violations} seeds broke"
    console.print(
        f"{total.seeds} seeds, {total.transfers} transfers in {total.seconds:.1f} s: {verdict}; "
        f"{total.unended} without an end, tables "
        f"{'empty' if total.tables_empty else 'not empty'}; digest {total.summary()['digest']}",
        style="green" if total.ok else "red",
        highlight=False,
    )


sim_command.add_command(cluster_command)
