"""The small interpreter of transition tables.

Owns the form of a table and the rule that every state x event cell is defined.
Knows no particular machine. Invariant: a table with a hole or an unreachable
state cannot be built, so an event that nobody thought of is an import error
here and not a surprise in production.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Generic, TypeVar

import attrs

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)


@attrs.frozen
class Cell(Generic[S, A]):
    """What one event does in one state: the next state and the actions, in order."""

    target: S
    actions: tuple[A, ...]


@attrs.frozen
class Row(Generic[S, E, A]):
    """All events of one state: those that act, and those that are ignored on purpose."""

    state: S
    on: Mapping[E, tuple[S, tuple[A, ...]]]
    ignored: frozenset[E]


@attrs.frozen
class Table(Generic[S, E, A]):
    """A complete transition table. Built by `table`, which checks it."""

    name: str
    initial: S
    terminal: frozenset[S]
    rows: tuple[Row[S, E, A], ...]
    cells: Mapping[tuple[S, E], Cell[S, A]]

    def fire(self, state: S, event: E) -> Cell[S, A]:
        return self.cells[state, event]


def row(
    state: S,
    on: Mapping[E, tuple[S, tuple[A, ...]]],
    ignored: Iterable[E] = (),
) -> Row[S, E, A]:
    return Row(state, dict(on), frozenset(ignored))


def table(
    name: str,
    states: type[S],
    events: type[E],
    initial: S,
    terminal: Iterable[S],
    rows: Iterable[Row[S, E, A]],
) -> Table[S, E, A]:
    """Build a table; ValueError where a cell is missing, doubled, or a state cannot be reached."""
    rows = tuple(rows)
    cells: dict[tuple[S, E], Cell[S, A]] = {}
    for r in rows:
        for event in events:
            if (event in r.on) == (event in r.ignored):
                raise ValueError(f"{name}: cell {r.state.name} x {event.name} defined not once")
            target, actions = r.on.get(event, (r.state, ()))
            cells[r.state, event] = Cell(target, tuple(actions))
    missing = [s.name for s in states if (s, next(iter(events))) not in cells]
    reached = {initial} | {c.target for (s, _), c in cells.items() if s is not c.target}
    unreached = [s.name for s in states if s not in reached]
    ends = frozenset(terminal)
    open_ends = [s.name for s in ends for e in events if cells[s, e].target is not s]
    if missing or unreached or open_ends:
        raise ValueError(
            f"{name}: no row {missing}, never reached {unreached}, left again {open_ends}"
        )
    return Table(name, initial, ends, rows, cells)
