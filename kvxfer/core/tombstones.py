"""Memory of what has finished, bounded in number and time.

Owns the record that keeps a late message from reviving a finished attempt (E2,
F2). Knows nothing of machines. Invariant: never more than `count_max` entries;
an entry lives at most `life_ms` after its last change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@attrs.define
class Tombstones(Generic[K, V]):
    """An insertion-ordered map whose oldest entries leave first."""

    count_max: int
    life_ms: int
    combine: Callable[[V, V], V] | None = None
    """How what is forgotten is remembered in one value, where that is wanted."""
    forgotten: V | None = None
    """All that left because its time or its place was over, combined."""
    _entries: OrderedDict[K, tuple[int, V]] = attrs.field(factory=OrderedDict)

    def put(self, key: K, value: V, now_ms: int) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (now_ms + self.life_ms, value)
        while len(self._entries) > self.count_max:
            self._forget_oldest()

    def get(self, key: K, now_ms: int) -> V | None:
        self.sweep(now_ms)
        entry = self._entries.get(key)
        return entry[1] if entry is not None else None

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)

    def sweep(self, now_ms: int) -> None:
        while self._entries:
            deadline_ms, _ = next(iter(self._entries.values()))
            if deadline_ms > now_ms:
                return
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, value) = self._entries.popitem(last=False)
        if self.combine is not None:
            old = self.forgotten
            self.forgotten = value if old is None else self.combine(old, value)

    def __len__(self) -> int:
        return len(self._entries)
