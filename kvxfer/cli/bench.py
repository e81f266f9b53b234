"""`kvxfer bench`: options and exit status of the benchmarks.

Owns no measurement. Exit status: 0 where all was measured, whatever the figures say
(a row that cannot run here says why); 1 where a promise on counts is broken; 2 for an
option out of its bound.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from kvxfer.cli.bench_core import core_command
from kvxfer.cli.bench_gpu import bench_gpu
from kvxfer.cli.bench_handoff import bench_handoff
from kvxfer.cli.bench_peers import bench_peers
from kvxfer.cli.bench_transport import bench_transport
from kvxfer.cli.bench_watch import watch_command
from kvxfer.cli.plugins import BenchPlugins


@click.group("bench", cls=BenchPlugins)
def bench_group() -> None:
    """Measure this library on this machine."""


bench_group.add_command(core_command)
bench_group.add_command(bench_gpu)
bench_group.add_command(bench_handoff)
bench_group.add_command(bench_peers)
bench_group.add_command(watch_command)


@bench_group.command("layout", context_settings={"show_default": True})
@click.option("--rounds", default=50, help="Samples per case.")
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Draws the block ids.")
@click.option("--only", default="", help="Measure only cases whose name holds this text.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
@click.pass_context
def bench_layout(ctx: click.Context, /, rounds: int, seed: int, only: str, as_json: bool) -> None:
    """Time the translation of one request into byte ranges.

    16,384 tokens, 64 layers, 8 heads, blocks of 16 tokens, block ids as an allocator
    leaves them after a while. The geometry of the two engines is cached, as in use; a
    sample is what one more request costs. Cases take turns.
    """
    from rich.console import Console

    from kvxfer.bench.layout import run_layout
    from kvxfer.bench.layout_cases import CASES
    from kvxfer.bench.view import show_rows
    from kvxfer.cli.faults import ended_by_fault
    from kvxfer.cli.progress import working

    cases = [case for case in CASES if only.lower() in case.name.lower()]
    if not cases:
        raise click.BadParameter(f"no case has {only!r} in its name", param_hint="--only")
    with ended_by_fault(ctx), working(f"measuring {len(cases)} cases"):
        report = run_layout(rounds=rounds, seed=seed, cases=cases)
    console = Console(file=sys.stderr if as_json else sys.stdout)
    show_rows(
        console,
        "layout translation, one request",
        report.rows,
        {"ranges": "ranges", "edges": "edges", "mean_run": "mean run"},
        report.environment,
        per="ranges",
    )
    if as_json:
        click.echo(json.dumps(report.to_plain()))


bench_group.add_command(bench_transport)


@bench_group.command("plot")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the picture goes: a name ending in .svg or .png.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON on stdout.")
@click.pass_context
def bench_plot(ctx: click.Context, /, source: Path, out: Path, as_json: bool) -> None:
    """Draw the JSON of a benchmark, or of `kvxfer sim cluster`."""
    from kvxfer.bench.plot import plot
    from kvxfer.cli.faults import ended_by_fault

    with ended_by_fault(ctx):
        plot(source, out)
    click.echo(json.dumps({"picture": str(out)}) if as_json else str(out))
