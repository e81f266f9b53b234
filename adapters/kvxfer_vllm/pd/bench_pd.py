"""`kvxfer bench pd`: options of the comparison of real pairs, and its table.

Owns the view. Exit status: 0 where all was measured, whatever the figures say; 1 where
answers differed or a pair did not start; 2 for a wrong option.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import click

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.cli import CHUNK_TOKENS, Common, run_to_end, setting_of
from kvxfer_vllm.pd.engines import Tuning
from kvxfer_vllm.pd.model import BYTES_OF_DTYPE
from kvxfer_vllm.pd.sweep import ARMS, WAYS, Plan, run_sweep

DEFAULT_ARMS = ("kvxfer-push", "vllm-push", "vllm-pull", "one-engine")


@click.command("pd", context_settings={"show_default": True})
@click.option("--arm", "arms", multiple=True, help=f"{', '.join(WAYS)}; repeatable.")
@click.option("--length", "lengths", multiple=True, type=click.IntRange(1, 3900), help="Tokens.")
@click.option("--rounds", default=20, type=click.IntRange(1, 1000), help="Requests of each row.")
@click.option(
    "--rate", "rates", multiple=True, type=click.FloatRange(0, min_open=True), help="Requests/s."
)
@click.option("--open-rounds", default=2, type=click.IntRange(0, 100), help="0: no open loop.")
@click.option("--open-tokens", default=1024, type=click.IntRange(1, 3900), help="Of its prompts.")
@click.option("--open-requests", default=30, type=click.IntRange(1, 10_000), help="A round.")
@click.option("--answer-tokens", default=16, type=click.IntRange(2, 128), help="Of each answer.")
@click.option("--step-tokens", default=4096, help="Most tokens of an engine's step.")
@click.option("--block-size", default=128, help="Tokens of a cache block.")
@click.option(
    "--dtype", type=click.Choice(sorted(BYTES_OF_DTYPE)), default="float32", help="vLLM's."
)
@click.option("--seed", default=1, help="Draws the prompts and arrivals.")
@click.option(
    "--run-dir", type=click.Path(file_okay=False, path_type=Path), default=Path(".pd"), help="Logs."
)
@click.option("--json", "as_json", is_flag=True, help="The report on stdout; the rest on stderr.")
def bench_pd(
    arms: tuple[str, ...],
    lengths: tuple[int, ...],
    rounds: int,
    rates: tuple[float, ...],
    open_rounds: int,
    open_tokens: int,
    open_requests: int,
    answer_tokens: int,
    step_tokens: int,
    block_size: int,
    dtype: str,
    seed: int,
    run_dir: Path,
    as_json: bool,
) -> None:
    """Time real vLLM pairs on this CPU, ours and vLLM's own, the same prompts in turns.

    Every pair takes about 5 GiB. While one is measured the others are stopped.
    """
    shown = {"lengths": lengths, "rates": rates}
    try:
        plan = Plan(
            arms=arms or DEFAULT_ARMS,
            rounds=rounds,
            open_rounds=open_rounds,
            open_tokens=open_tokens,
            open_requests=open_requests,
            answer_tokens=answer_tokens,
            seed=seed,
            **{name: value for name, value in shown.items() if value},  # type: ignore[arg-type]
        )
    except BadValue as bad:
        raise click.UsageError(str(bad)) from bad
    tuning = Tuning(
        dtype=dtype, block_tokens=block_size, step_tokens_max=step_tokens, log_level="WARNING"
    )
    if any(ARMS[arm].mode.streams for arm in plan.arms if arm in ARMS):
        tuning = attrs.evolve(tuning, step_tokens_max=min(step_tokens, CHUNK_TOKENS))
    common = Common(connector=None, module=None, dtype=dtype, run_dir=run_dir)

    async def work() -> bool:
        async with setting_of(common, "sweep") as setting:
            report = await run_sweep(setting, plan, tuning)
        _show(report)
        if as_json:
            click.echo(json.dumps(report))
        return True

    run_to_end(work())


def _show(report: dict[str, Any]) -> None:
    """Medians, then what each way is beside the others in the same round."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True)
    times = Table(title="real pairs on this CPU, milliseconds", title_justify="left")
    for heading in ("load", "way", "TTFT p50", "p90", "TPOT p50", "longest gap", "failed"):
        times.add_column(heading, justify="left" if heading in ("load", "way") else "right")
    beside = Table(title="in the same round", title_justify="left")
    for heading in ("load", "way", "what", "median", "95 % interval"):
        beside.add_column(heading)
    idle = [row for row in report["rows"] if row["load"] == "idle"]
    for row in idle:
        used = f"P {row['p_cpus']:g}, D {row['d_cpus']:g} processors"
        console.print(f"idle, {row['way']}: {used}", highlight=False)
    for row in (row for row in report["rows"] if row["load"] != "idle"):
        load = f"{row['tokens']} tokens" + (f" at {row['rate']:g}/s" if row["rate"] else "")
        shown = ("ttft_ms_p50", "ttft_ms_p90", "tpot_ms_p50", "gap_max_ms_p50")
        times.add_row(load, row["way"], *(_ms(row[one]) for one in shown), str(row["failed"]))
        for name, found in row.items():
            if "_to_" in name or "_over_" in name:
                middle, low, high = found
                beside.add_row(load, row["way"], name, f"{middle:g}", f"{low:g} to {high:g}")
    console.print(times)
    if beside.row_count:
        console.print(beside)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
