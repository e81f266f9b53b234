"""`kvxfer bench handoff`: options, table and exit status.

Owns the view. Exit status: 0 where all was measured, whatever the figures say (a way
that cannot run here says why); 1 where bytes were wrong or a request did not end; 2 for
an option out of its bound.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
    ("handoff_us_p99", "hand-off us p99"),
    ("handoff_cpu_us_p99", "its CPU"),
    ("poll_us_p99", "poll us p99"),
    ("poll_cpu_us_p99", "its CPU"),
    ("step_inflation_p99_prefill", "step P p99 +"),
    ("step_inflation_p99_decode", "step D p99 +"),
    ("ready_ms_p50", "ready ms p50"),
    ("ready_ms_p99", "p99"),
    ("writer_cpu_ms", "other CPU ms"),
    ("idle_cpu_percent", "idle CPU %"),
    ("requests_per_s", "requests/s"),
)


@click.command("handoff", context_settings={"show_default": True})
@click.option("--rounds", default=3, type=click.IntRange(1, 100), help="Runs of each row.")
@click.option("--slots", default=8, type=click.IntRange(1, 64), help="Requests in flight.")
@click.option("--per-slot", default=5, type=click.IntRange(2, 1000), help="Requests a slot.")
@click.option(
    "--page-bytes", default=512, type=click.IntRange(16, 1 << 20), help="Bytes of a descriptor."
)
@click.option("--hold-ms", default=3.0, type=click.FloatRange(0, 1000), help="Python in a step.")
@click.option("--wait-ms", default=7.0, type=click.FloatRange(0, 1000), help="Its device's part.")
@click.option("--case", "wanted", multiple=True, help="Descriptors a request; repeatable.")
@click.option(
    "--way", "ways", multiple=True, help="As kvxfer:ucx, nixl-writer:nixl, inline:nixl; repeatable."
)
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Draws the blocks.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
@click.pass_context
def bench_handoff(
    ctx: click.Context,
    /,
    rounds: int,
    slots: int,
    per_slot: int,
    page_bytes: int,
    hold_ms: float,
    wait_ms: float,
    wanted: tuple[str, ...],
    ways: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Time what a transfer costs the engines' own threads, beside NIXL used as vLLM uses it.

    Two processes run steps of known length. kvxfer; NIXL with a writer thread whose
    handles the engine polls once a step (push); NIXL READs posted by D's engine thread
    (pull). From the end of a prefill until D's engine knows that it may decode.
    """
    from rich.console import Console

    from kvxfer.bench.handoff.run import CASES, WAYS, Steps, run_handoff
    from kvxfer.cli.faults import ended_by_fault

    cases = [c for c in CASES if not wanted or c.name.replace(",", "") in _plain(wanted)]
    chosen = [way for way in WAYS if not ways or ":".join(way) in ways]
    if not cases:
        known = ", ".join(c.name.replace(",", "") for c in CASES)
        raise click.BadParameter(f"one of {known}", param_hint="--case")
    if not chosen:
        known = ", ".join(":".join(way) for way in WAYS)
        raise click.BadParameter(f"one of {known}", param_hint="--way")
    err = Console(stderr=True)
    with ended_by_fault(ctx), err.status("measuring") as status:
        report = run_handoff(
            rounds=rounds,
            slots=slots,
            per_slot=per_slot,
            page_bytes=page_bytes,
            seed=seed,
            cases=cases,
            ways=chosen,
            steps=Steps(hold_ms=hold_ms, wait_ms=wait_ms),
            on_run=status.update,
        )
    _show(err if as_json else Console(file=sys.stdout), report.to_plain())
    if as_json:
        click.echo(json.dumps(report.to_plain()))


def _plain(wanted: tuple[str, ...]) -> set[str]:
    return {name.replace(",", "") for name in wanted}


def _show(console: Console, report: dict[str, Any]) -> None:
    from rich.table import Table

    from kvxfer.bench.view import environment_line

    table = Table(title="hand-off between two engines", title_justify="left")
    for heading in ("descriptors", "way", *(heading for _, heading in COLUMNS)):
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        if "skipped" not in row:
            way = f"{row['impl']} {row['transport']}"
            table.add_row(row["case"], way, *(f"{row[name]:,}" for name, _ in COLUMNS))
    console.print(table)
    for row in report["rows"]:
        if "skipped" in row:
            text = f"{row['case']} {row['impl']} {row['transport']}: {row['skipped']}"
            console.print(text, style="yellow", markup=False)
    console.print(environment_line(report["environment"]), markup=False, soft_wrap=True)
