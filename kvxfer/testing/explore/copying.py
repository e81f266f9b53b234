"""A structural copy of a session: its machines are new, the values in them are shared.

Owns the walk over attrs objects and containers. Knows no machine by name.
Invariant: the copy and the original share nothing that can change, and two
references to one machine in the original are two references to one in the copy.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, LambdaType, MethodType
from typing import Any, TypeVar

import attrs
from attrs.exceptions import FrozenInstanceError

from kvxfer.core.timers import Timers
from kvxfer.testing.explore.values import LinkNo

T = TypeVar("T")

ATOMS: tuple[type, ...] = (int, str, bytes, bool, float, type(None))
FUNCTIONS: tuple[type, ...] = (BuiltinFunctionType, FunctionType, LambdaType, MethodType)

_frozen: dict[type, bool] = {}
_names: dict[type, tuple[str, ...]] = {}


def names_of(cls: type) -> tuple[str, ...]:
    """Fields of an attrs class, in order."""
    names = _names.get(cls)
    if names is None:
        names = _names[cls] = tuple(field.name for field in attrs.fields(cls))
    return names


def is_value(item: Any) -> bool:
    """True for an instance of a frozen class: it is shared, not copied."""
    cls = type(item)
    frozen = _frozen.get(cls)
    if frozen is None:
        try:
            for name in names_of(cls)[:1]:
                setattr(item, name, getattr(item, name))
            # Without a field there is nothing that could change.
            frozen = not names_of(cls)
        except FrozenInstanceError:
            frozen = True
        _frozen[cls] = frozen
    return frozen


def duplicate(item: T, links: Mapping[int, int] | None = None) -> T:
    """Copy `item`; link ids are renamed by `links` where it is given."""
    copied: T = _Copier(links).copy(item)
    return copied


class _Copier:
    """One copy in the making."""

    def __init__(self, links: Mapping[int, int] | None) -> None:
        self.links = links
        self.made: dict[int, Any] = {}

    def copy(self, item: Any) -> Any:
        cls = type(item)
        if cls is LinkNo:
            return item if self.links is None else LinkNo(self.links[item])
        if cls in ATOMS or isinstance(item, Enum) or cls in FUNCTIONS:
            return item
        made = self.made.get(id(item))
        if made is not None:
            return made
        maker = _CONTAINERS.get(cls)
        if maker is not None:
            return maker(self, item)
        if not attrs.has(cls):
            raise TypeError(f"no rule to copy a {cls.__name__}")
        if is_value(item):
            return item if self.links is None else self._renamed(item)
        return self._machine(item)

    def _machine(self, item: Any) -> Any:
        if type(item) is Timers:
            return self._timers(item)
        new = object.__new__(type(item))
        self.made[id(item)] = new
        for name in names_of(type(item)):
            object.__setattr__(new, name, self.copy(getattr(item, name)))
        return new

    def _timers(self, item: Timers) -> Timers:
        """Without the dead entries of its heap: they may name links that are no more."""
        heap = [(at_ms, serial, self.copy(key)) for at_ms, serial, key in item._live.values()]
        live = {entry[2]: entry for entry in heap}
        heapq.heapify(heap)
        new = self.made[id(item)] = Timers(heap=heap, live=live, serial=item._serial)
        return new

    def _renamed(self, item: Any) -> Any:
        changed = {}
        for field in attrs.fields(type(item)):
            old = getattr(item, field.name)
            new = self.copy(old)
            if new is not old and new != old:
                changed[field.alias] = new
        return attrs.evolve(item, **changed) if changed else item

    def _tuple(self, item: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = tuple(self.copy(part) for part in item)
        same = all(new is old for new, old in zip(parts, item, strict=True))
        return item if same else parts

    def _list(self, item: list[Any]) -> list[Any]:
        new = self.made[id(item)] = [self.copy(part) for part in item]
        return new

    def _deque(self, item: deque[Any]) -> deque[Any]:
        new = self.made[id(item)] = deque(self.copy(part) for part in item)
        return new

    def _set(self, item: set[Any]) -> set[Any]:
        new = self.made[id(item)] = {self.copy(part) for part in item}
        return new

    def _frozenset(self, item: frozenset[Any]) -> frozenset[Any]:
        return item if self.links is None else frozenset(self.copy(part) for part in item)

    def _dict(self, item: dict[Any, Any]) -> dict[Any, Any]:
        new: dict[Any, Any] = type(item)()
        self.made[id(item)] = new
        for key, value in item.items():
            new[self.copy(key)] = self.copy(value)
        return new


_CONTAINERS: dict[type, Callable[[_Copier, Any], Any]] = {
    tuple: _Copier._tuple,
    list: _Copier._list,
    deque: _Copier._deque,
    set: _Copier._set,
    frozenset: _Copier._frozenset,
    dict: _Copier._dict,
    OrderedDict: _Copier._dict,
    Counter: _Copier._dict,
}
