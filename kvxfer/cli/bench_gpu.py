"""`kvxfer bench gpu`: options, table and exit status.

Owns the view. Exit status: 0 where all was measured; 1 where bytes were wrong or a
transfer broke off; 2 where there is no GPU or an option is out of its bound.
"""

from __future__ import annotations

import json
import sys

import click

from kvxfer.errors import BadValue


@click.command("gpu", context_settings={"show_default": True})
@click.option("--mib", default=256, type=click.IntRange(1, 8192), help="MiB moved per sample.")
@click.option("--rounds", default=9, type=click.IntRange(1, 100_000), help="Samples per row.")
@click.option(
    "--seed",
    default=0,
    type=click.IntRange(min=0),
    help="Draws the bytes and the order of the blocks.",
)
@click.option("--transport", "transports", multiple=True, help="Only these; repeatable.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
def bench_gpu(mib: int, rounds: int, seed: int, transports: tuple[str, ...], as_json: bool) -> None:
    """Time GPU memory between two processes, by every transport that reaches it.

    Between the first and the last GPU of this host: one piece, and scattered blocks of 64,
    32 and 16 KiB, written and read. All rows take turns; bytes are checked before timing.
    """
    from rich.console import Console

    from kvxfer.bench.gpu import PLUGINS, run_gpu
    from kvxfer.bench.view import show_rows
    from kvxfer.cli.progress import working

    try:
        with working("measuring"):
            report = run_gpu(
                mib=mib, rounds=rounds, seed=seed, transports=transports or tuple(PLUGINS)
            )
    except BadValue as error:
        click.echo(f"kvxfer bench: {error}", err=True)
        raise SystemExit(
            2 if error.field in ("GPU", "mib", "transports", "rounds") else 1
        ) from None
    console = Console(file=sys.stderr if as_json else sys.stdout)
    columns = {"ranges": "ranges"}
    show_rows(console, f"{mib} MiB between two GPUs", report.rows, columns, report.environment)
    if as_json:
        click.echo(json.dumps(report.to_plain()))
