"""`kvxfer bench peers`: options, tables and exit status.

Owns the view. Exit status: 0 where all was measured, whatever the figures say (a
transport that cannot run here says why); 1 where bytes were wrong or a request did not
end; 2 for an option out of its bound.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
    ("requests_per_s_p50", "req/s"),
    ("requests_per_s_p10", "p10"),
    ("requests_per_s_p90", "p90"),
    ("writer_cpu_us", "CPU us"),
    ("process_cpu_us", "of all"),
    ("latency_ms_p50", "latency ms p50"),
    ("latency_ms_p99", "p99"),
    ("slowest_peer", "slowest peer"),
)
AIMS = (
    ("throughput_ratio", "req/s all/one"),
    ("throughput_ratio_by_cpu", "by CPU"),
    ("writer_cpu_ratio", "CPU all/one"),
    ("stopped_latency_ratio_p50", "latency, stopped/all"),
    ("stopped_latency_ratio_p99", "p99"),
    ("bytes_per_request", "bytes"),
    ("bytes_remembered", "once ended"),
)


@click.command("peers", context_settings={"show_default": True})
@click.option("--rounds", default=5, type=click.IntRange(1, 100), help="Runs of each row.")
@click.option("--peers", default=64, type=click.IntRange(2, 1024), help="Peers of the agent.")
@click.option("--in-flight", default=1000, type=click.IntRange(2, 65536), help="At a time.")
@click.option("--requests", default=3000, type=click.IntRange(min=2), help="Requests of a run.")
@click.option(
    "--transport", "transports", multiple=True, help="loopback, ucx or another; repeatable."
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(["producer", "consumer"]),
    help="Of the agent with many peers; repeatable. Both where none is named.",
)
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Draws blocks and bytes.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
@click.pass_context
def bench_peers(
    ctx: click.Context,
    /,
    rounds: int,
    peers: int,
    in_flight: int,
    requests: int,
    transports: tuple[str, ...],
    roles: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Carry many requests at a time over one peer, over many, and beside one that is stopped.

    One process: an agent with its thread, and its peers, which share another one. The
    latencies are those of all peers but the one that stands still in the last arm.
    """
    from rich.console import Console

    from kvxfer.bench.peers.run import ROLES, TRANSPORTS, run_peers
    from kvxfer.cli.faults import ended_by_fault

    err = Console(stderr=True)
    with ended_by_fault(ctx), err.status("measuring") as status:
        report = run_peers(
            rounds=rounds,
            peers=peers,
            in_flight=in_flight,
            requests=requests,
            transports=transports or TRANSPORTS,
            roles=[r for r in ROLES if not roles or r.name.lower() in roles],
            seed=seed,
            on_run=status.update,
        )
    _show(err if as_json else Console(file=sys.stdout), report.to_plain())
    if as_json:
        click.echo(json.dumps(report.to_plain()))


def _show(console: Console, report: dict[str, Any]) -> None:
    from rich.table import Table

    from kvxfer.bench.view import environment_line

    rows = Table(title="one agent with many peers", title_justify="left")
    for heading in ("transport", "role", "peers", *(heading for _, heading in COLUMNS)):
        rows.add_column(heading, justify="right")
    for row in report["rows"]:
        if "skipped" in row:
            console.print(f"{row['name']}: {row['skipped']}", style="yellow", markup=False)
        else:
            cells = (f"{row[name]:,}" for name, _ in COLUMNS)
            rows.add_row(row["transport"], row["role"], row["arm"], *cells)
    aims = Table(title="ratios of the same round, and memory", title_justify="left")
    for heading in ("transport", "role", *(heading for _, heading in AIMS)):
        aims.add_column(heading, justify="right")
    for aim in report["aims"]:
        cells = (f"{aim[name]:,}" for name, _ in AIMS)
        aims.add_row(aim["transport"], aim["role"], *cells)
    console.print(rows)
    console.print(aims)
    console.print(environment_line(report["environment"]), markup=False, soft_wrap=True)
