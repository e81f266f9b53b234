"""The canonical key of a session: equal keys have equal futures.

Owns what is left out of a key (the clock, counters, limits) and how times are
written (relative to now, cut off where more makes no difference). Knows the
classes of the core whose representation has more than one form of the same
state. Invariant: nothing is left out that any later step could look at.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from enum import Enum
from typing import Any

import attrs

from kvxfer.core.session import Session
from kvxfer.core.timers import Timers
from kvxfer.core.tombstones import Tombstones
from kvxfer.testing.explore.copying import ATOMS, FUNCTIONS, is_value, names_of
from kvxfer.testing.explore.values import LinkNo

FOREVER_MS = 1 << 40
"""A tombstone with this life never ends in a run, so its age is not part of a key."""

LEFT_OUT = frozenset({"counters", "now_ms", "limits", "timings", "out"})
"""Constants, the clock that all else is written relative to, and what is only counted."""

PAST = frozenset({"heard_ms", "asked_ms"})
"""Moments in the past: only compared with `now - silence`, so older than that is all one."""

COMING = frozenset({"lease_until_ms"})
"""Moments to come, only ever lengthened: one that has passed is all one."""


CONTAINERS: frozenset[type] = frozenset({dict, Counter, OrderedDict, set, frozenset, list, deque})

UNREAD = {"WriteEdge": frozenset({"serial", "serial_sent_ms", "unanswered", "lease_until_ms"})}
"""Fields that a class has and never looks at: push counts on no lease at the consumer."""


_fields: dict[type, tuple[tuple[str, bool], ...]] = {}


def _fields_of(cls: type) -> tuple[tuple[str, bool], ...]:
    """Fields that are in a key, and whether they are moments."""
    fields = _fields.get(cls)
    if fields is None:
        left_out = LEFT_OUT | UNREAD.get(cls.__name__, frozenset())
        names = [name for name in names_of(cls) if name not in left_out]
        fields = _fields[cls] = tuple((name, name.endswith("_ms")) for name in names)
    return fields


@attrs.frozen
class Canon:
    """A session's key and the link ids that it holds."""

    key: Hashable
    links: frozenset[int]


def canon(session: Session, now_ms: int) -> Canon:
    timings = session.timings
    horizon_ms = max(timings.renew_ms * timings.renew_misses_max, timings.drain_ms)
    writer = _Writer(now_ms, horizon_ms)
    key = writer.write(session)
    return Canon(key, frozenset(writer.links))


class _Writer:
    """One key in the making."""

    def __init__(self, now_ms: int, horizon_ms: int) -> None:
        self.now_ms = now_ms
        self.horizon_ms = horizon_ms
        self.links: set[int] = set()
        self.met: dict[int, int] = {}

    def write(self, item: Any) -> Hashable:
        cls = type(item)
        if cls is LinkNo:
            self.links.add(int(item))
            return int(item)
        if cls in ATOMS or isinstance(item, Enum):
            return item  # type: ignore[no-any-return]
        if cls in FUNCTIONS:
            return None
        if cls is tuple:
            return tuple([self.write(part) for part in item])
        if cls is Timers:
            return self._timers(item)
        if cls is Tombstones:
            return self._tombstones(item)
        if cls in CONTAINERS:
            return self._container(item)
        if attrs.has(cls):
            return self._value(item) if is_value(item) else self._machine(item)
        raise TypeError(f"no rule to write a {cls.__name__}")

    def _value(self, item: Any) -> Hashable:
        for name in names_of(type(item)):
            part = getattr(item, name)
            if type(part) is LinkNo:
                self.links.add(int(part))
        return item  # type: ignore[no-any-return]

    def _machine(self, item: Any) -> Hashable:
        met = self.met.get(id(item))
        if met is not None:
            return ("again", met)
        self.met[id(item)] = len(self.met)
        parts: list[Hashable] = [type(item).__name__]
        for name, is_moment in _fields_of(type(item)):
            part = getattr(item, name)
            if is_moment and type(part) is int:
                parts.append(self._moment(name, part))
            else:
                parts.append(self.write(part))
        return tuple(parts)

    def _moment(self, name: str, at_ms: int) -> int:
        relative_ms = at_ms - self.now_ms
        if name in PAST:
            return max(relative_ms, -self.horizon_ms)
        return max(relative_ms, 0) if name in COMING else relative_ms

    def _container(self, item: Any) -> Hashable:
        if isinstance(item, dict | OrderedDict):
            return tuple([(self.write(key), self.write(value)) for key, value in item.items()])
        if isinstance(item, set | frozenset):
            return frozenset([self.write(part) for part in item])
        return tuple([self.write(part) for part in item])

    def _timers(self, item: Timers) -> Hashable:
        """Which fires next, and after how long: the heap's own order does not matter."""
        live = sorted(item._live.values(), key=lambda entry: entry[:2])
        return tuple([(at_ms - self.now_ms, self.write(key)) for at_ms, _, key in live])

    def _tombstones(self, item: Tombstones[Any, Any]) -> Hashable:
        live = [(k, v, at_ms - self.now_ms) for k, (at_ms, v) in item._entries.items()]
        if item.life_ms == FOREVER_MS:
            kept: Hashable = frozenset([(self.write(k), self.write(v)) for k, v, _ in live])
        else:
            kept = tuple([(self.write(k), self.write(v), n) for k, v, n in live if n > 0])
        return item.forgotten, kept
