"""One table of a TOML file, read key by key.

Owns types, bounds and the refusal of keys that nobody asked for. Knows no key itself.
Invariant: after `end`, every key of the table has been read, so that a misspelt one is an
error and not a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from kvxfer.errors import BadValue

ANY_TEXT = re.compile(r"(?s).*")
TEXT_MAX = 4096


@attrs.define
class Table:
    """A table and what has been read of it. `path` is what errors call it, with a dot behind."""

    path: str
    _plain: Mapping[str, Any]
    _read: set[str] = attrs.field(factory=set)

    def has(self, key: str) -> bool:
        return key in self._plain

    def end(self) -> None:
        """Raises BadValue for a key that was not asked for."""
        for key in self._plain:
            if key not in self._read:
                raise BadValue(
                    f"{self.path}{key}", self._plain[key], f"one of {sorted(self._read)}"
                )

    def text(self, key: str, default: str | None, bound: re.Pattern[str] = ANY_TEXT) -> str:
        """A text; `default` None: it must be there."""
        value = self._get(key, default)
        if not isinstance(value, str) or len(value) > TEXT_MAX or not bound.fullmatch(value):
            what = "a text" if bound is ANY_TEXT else f"text of the form {bound.pattern}"
            raise self._bad(key, value, what)
        return value

    def choice(self, key: str, default: str, among: Sequence[str]) -> str:
        value = self._get(key, default)
        if value not in among:
            raise self._bad(key, value, f"one of {', '.join(among)}")
        return str(value)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self._get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self._bad(key, value, f"a number from {low} to {high}")
        return float(value)

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._bad(key, value, f"a whole number from {low} to {high}")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where it is not there."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._bad(key, value, "a list of texts")
        return tuple(value)

    def table(self, key: str) -> Table:
        """A table in this one; an empty one where it is not there."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._bad(key, value, "a table")
        return Table(f"{self.path}{key}.", value)

    def tables(self, key: str) -> tuple[Table, ...]:
        """An array of tables; empty where it is not there."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self._bad(key, value, f"tables, each under [[{self.path}{key}]]")
        return tuple(Table(f"{self.path}{key}[{i}].", entry) for i, entry in enumerate(value))

    def texts(self) -> dict[str, str]:
        """All of this table as text by key."""
        for key in self._plain:
            self.text(key, None)
        return dict(self._plain)

    def rest(self) -> dict[str, Any]:
        """All of this table, whatever it is."""
        self._read.update(self._plain)
        return dict(self._plain)

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._plain.get(key, default)
        if value is None:
            raise self._bad(key, None, "a value: it has no default")
        return value

    def _bad(self, key: str, value: object, bound: str) -> BadValue:
        return BadValue(f"{self.path}{key}", value, bound)
