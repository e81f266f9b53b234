"""The demo's tables for people.

Owns columns and words; takes every number from the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kvxfer.demo.result import DemoResult
from kvxfer.demo.served import Served
from kvxfer.demo.workload import Mode


def request_table(result: DemoResult) -> Table:
    """One line per request, all modes side by side."""
    table = Table(title="requests", title_justify="left")
    for name in ("request", "prompt", "KV KiB", "ranges"):
        table.add_column(name, justify="right")
    for mode in result.served:
        table.add_column(f"{mode}: first token ms", justify="right")
    table.add_column("tokens identical")
    for ones in zip(*result.served.values(), strict=True):
        table.add_row(*_cells(result, ones))
    return table


def _cells(result: DemoResult, ones: Sequence[Served]) -> list[str]:
    first = ones[0]
    identical = all(result.same(one) for one in ones)
    return [
        str(first.index),
        str(len(first.prompt.tokens)),
        f"{first.bytes_moved / 1024:.0f}",
        str(first.descriptors),
        *(_ms(one.ttft_ms) for one in ones),
        "[green]yes[/]" if identical else "[red]no[/]",
    ]


def summary_table(result: DemoResult) -> Table:
    """The figures of the whole run."""
    table = Table(title="all requests", title_justify="left", show_header=True)
    table.add_column("")
    for mode in result.served:
        table.add_column(_heading(mode), justify="right")
    for words, name in (
        ("time to first token", "ttft_ms"),
        ("prefill done to KV at D", "handoff_ms"),
    ):
        for percent, short in ((50, "median"), (90, "90 %")):
            values = [result.percentile(mode, name, percent) for mode in result.served]
            table.add_row(f"{words}, {short}, ms", *(_ms(value) for value in values))
    options = result.options
    table.caption = (
        f"{result.identical} of {options.requests} identical · "
        f"{result.bytes_moved / 2**20:.1f} MiB in {result.descriptors_posted} ranges over "
        f"{options.transport}, {'two processes' if result.two_processes else 'one process'} · "
        f"leaked {result.leaked} · in quarantine {result.quarantined} · {result.seconds:.1f} s"
    )
    table.caption_justify = "left"
    return table


def _heading(mode: Mode) -> str:
    return {
        Mode.PUSH: "push",
        Mode.PULL: "pull (legs in series, D reads)",
        Mode.STREAM: "stream (push by chunks)",
    }[mode]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
