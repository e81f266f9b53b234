"""Rows as a table for people.

Owns columns and words; takes every number from the rows. Invariant: a row that was not
measured shows its reason below the table, never an empty cell alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvxfer.bench.harness import Row


def show_rows(
    console: Console,
    title: str,
    rows: Iterable[Row],
    columns: Mapping[str, str],
    where: Mapping[str, object],
    per: str = "",
) -> None:
    """A table of what was measured, then what was not and why, then where it ran.

    `columns` gives the facts to show (fact: heading); `per` names a count by which the
    median is divided, in a column of its own.
    """
    shown = list(rows)
    console.print(rows_table(title, [row for row in shown if not row.skipped], columns, per))
    for row in shown:
        if row.skipped:
            console.print(f"{escape(row.name)}: {escape(row.skipped)}", style="yellow")
    console.print(environment_line(where), markup=False, highlight=False, soft_wrap=True)


def rows_table(title: str, rows: Iterable[Row], columns: Mapping[str, str], per: str = "") -> Table:
    """Name, facts, median, spread, aim where there is one; for rows that have samples."""
    shown = list(rows)
    aims = any("aim_ms" in row.facts for row in shown)
    table = Table(title=title, title_justify="left")
    table.add_column("case", no_wrap=True)
    for heading in (*columns.values(), "ms p50", "p10 to p90"):
        table.add_column(heading, justify="right")
    if per:
        table.add_column(f"ns each of {columns.get(per, per)}", justify="right")
    if aims:
        table.add_column("aim, ms", no_wrap=True)
    for row in shown:
        cells = [escape(row.name), *(_fact(row.facts.get(name)) for name in columns)]
        cells += [_ms(row.ms_p50), f"{_ms(row.ms(10))} to {_ms(row.ms(90))}"]
        cells += [_each(row, per)] if per else []
        table.add_row(*cells, *([_aim(row)] if aims else []))
    return table


def environment_line(where: Mapping[str, object]) -> str:
    """One line that says where the figures come from."""
    names = ("cpu", "cpus", "python", "numpy", "kvxfer", "revision", "date")
    return " · ".join(f"{name} {where[name]}" for name in names if name in where)


def _fact(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _each(row: Row, per: str) -> str:
    count = row.facts.get(per)
    if not isinstance(count, int) or count < 1 or row.ms_p50 is None:
        return ""
    return f"{row.ms_p50 * 1e6 / count:.1f}"


def _aim(row: Row) -> str:
    aim = row.facts.get("aim_ms")
    if not isinstance(aim, int | float) or row.ms_p50 is None:
        return ""
    colour, word = ("green", "met") if row.ms_p50 < aim else ("red", "missed")
    return f"[{colour}]under {aim:g}: {word}[/]"
