"""The form of a planted fault, and the tools to plant one and take it out again.

Owns the swap of a table cell or a method. Knows no particular fault. Invariant:
after the `with` block the core is what it was, whatever was raised in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, TypeVar, cast

import attrs

from kvxfer.core.machine import Cell, Table

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)

Plant = Callable[[], AbstractContextManager[None]]


@attrs.frozen(kw_only=True)
class Fault:
    """One fault, and where it is to be found."""

    name: str
    about: str
    """What the core does wrong with it."""
    invariants: tuple[str, ...]
    """One of these breaks first."""
    configs: tuple[str, ...]
    """Where to look for it, in this order."""
    plant: Plant
    states_max: int = 5_000
    """It must be found within so many states of a configuration."""


def cell(
    table: Table[S, E, A], state: S, event: E, target: S, actions: tuple[A, ...] = ()
) -> Plant:
    """Plants another target and other actions in one cell of a transition table."""

    @contextmanager
    def planted() -> Iterator[None]:
        cells = cast(MutableMapping[tuple[S, E], Cell[S, A]], table.cells)
        before = cells[state, event]
        cells[state, event] = Cell(target, actions)
        try:
            yield
        finally:
            cells[state, event] = before

    return planted


def method(owner: type, name: str, replacement: Callable[[Callable[..., Any]], Any]) -> Plant:
    """Plants `replacement(original)` in the place of a method."""

    @contextmanager
    def planted() -> Iterator[None]:
        before: Any = owner.__dict__[name]
        original: Any = before.fget if isinstance(before, property) else before
        wrong = replacement(original)
        setattr(owner, name, property(wrong) if isinstance(before, property) else wrong)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return planted


def both(first: Plant, second: Plant) -> Plant:
    """Plants two changes that make one fault."""

    @contextmanager
    def planted() -> Iterator[None]:
        with first(), second():
            yield

    return planted
