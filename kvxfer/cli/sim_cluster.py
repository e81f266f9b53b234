"""`kvxfer sim cluster`: options, tables and exit status.

Owns the view. Exit status: 0 where all was simulated, 2 for a wrong option or file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

FIGURES = (
    ("ttft_ms_p50", "TTFT ms p50"),
    ("ttft_ms_p99", "p99"),
    ("tpot_ms_p50", "TPOT ms p50"),
    ("tpot_ms_p99", "p99"),
    ("after_prefill_ms_p50", "after prefill"),
    ("prefill_busy", "P busy"),
    ("decode_stalled", "D stalled"),
)


@click.command("cluster", context_settings={"show_default": True})
@click.option("--costs", default="h200-default", help="Name of a set of figures, or a file.")
@click.option("--way", "ways", multiple=True, help="Repeatable; all where none is given.")
@click.option("--prefills", default=1, type=click.IntRange(1, 100_000), help="Engines P.")
@click.option("--decodes", default=1, type=click.IntRange(1, 100_000), help="Engines D.")
@click.option("--policy", default="least-loaded", help="round-robin, least-loaded or prefix.")
@click.option(
    "--prefix-blocks",
    default=0,
    type=click.IntRange(min=0),
    help="Prompt blocks of 512 tokens that a P remembers.",
)
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Requests."
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    default=(1.0,),
    type=click.FloatRange(min=0, min_open=True),
    help="Requests a second, or how many times as fast as the trace; repeatable.",
)
@click.option("--count", default=1000, type=click.IntRange(1, 1_000_000), help="Requests.")
@click.option("--tokens", default=4096, type=click.IntRange(min=1), help="Of a prompt.")
@click.option("--output-tokens", default=128, type=click.IntRange(min=1), help="Of an answer.")
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Draws the arrivals.")
@click.option("--validate", is_flag=True, help="Compare with what was measured, and nothing else.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
@click.pass_context
def cluster_command(
    ctx: click.Context,
    /,
    costs: str,
    ways: tuple[str, ...],
    prefills: int,
    decodes: int,
    policy: str,
    prefix_blocks: int,
    trace: Path | None,
    rates: tuple[float, ...],
    count: int,
    tokens: int,
    output_tokens: int,
    seed: int,
    validate: bool,
    as_json: bool,
) -> None:
    """Simulate hundreds of engines by discrete events, from measured costs.

    Virtual time: the same options give the same figures. --validate first shows how well
    it reproduces what was measured.
    """
    from rich.console import Console

    from kvxfer.bench.cluster.costs import load_costs
    from kvxfer.bench.cluster.run import Fleet
    from kvxfer.bench.cluster.sweep import Load, sweep
    from kvxfer.bench.cluster.ways import WAYS
    from kvxfer.errors import BadValue

    err = Console(stderr=True)
    console = err if as_json else Console(file=sys.stdout)
    if validate:
        _show_cells(console, as_json)
        return
    unknown = [name for name in ways if name not in WAYS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]}: one of {', '.join(WAYS)}", param_hint="--way")
    try:
        with err.status("simulating"):
            report = sweep(
                load_costs(costs),
                [WAYS[name] for name in ways or WAYS],
                Fleet(
                    prefills=prefills,
                    decodes=decodes,
                    policy=policy,
                    prefix_blocks=prefix_blocks,
                ),
                Load(
                    trace=trace,
                    rates=rates,
                    count=count,
                    tokens=tokens,
                    output_tokens=output_tokens,
                    seed=seed,
                ),
            )
    except BadValue as error:
        click.echo(f"kvxfer sim cluster: {error}", err=True)
        ctx.exit(2)
    _show(console, report)
    if as_json:
        click.echo(json.dumps(report))


def _show(console: Console, report: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"{report['costs']['name']}, simulated", title_justify="left")
    for heading in ("load", "way", *(heading for _, heading in FIGURES)):
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        figures = (row[name] for name, _ in FIGURES)
        shown = ("-" if one is None else f"{one:,.2f}" for one in figures)
        table.add_row(f"{row['rate']:g}", row["way"], *shown)
    console.print(table)
    console.print(report["costs"]["source"], markup=False, highlight=False)


def _show_cells(console: Console, as_json: bool) -> None:
    from rich.table import Table

    from kvxfer.bench.cluster.validate import validate

    cells = validate()
    table = Table(title="measured and simulated, ms", title_justify="left")
    for heading in ("costs", "way", "tokens", "rate", "what", "measured", "simulated", "ratio"):
        table.add_column(heading, justify="right")
    for cell in cells:
        rate = f"{cell.rate:g}/s" if cell.rate else "idle"
        figures = (f"{cell.measured:g}", f"{cell.simulated:.1f}", f"{cell.ratio:.2f}")
        table.add_row(cell.costs, cell.way, f"{cell.tokens:,}", rate, cell.what, *figures)
    console.print(table)
    if as_json:
        click.echo(json.dumps([cell.to_plain() for cell in cells]))
