"""Numbers for values: equal values get the same small number, once per exploration.

Owns the tables from value to number and back. Knows nothing of what is
numbered. Invariant: two numbers are equal exactly if their values are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T", bound=Hashable)


class LinkNo(int):
    """A link id that the explorer gave out: told from other integers, so that it can be renamed."""

    __slots__ = ()


@attrs.define
class Numbers(Generic[T]):
    """Gives each distinct value its number, from 0 on."""

    _numbers: dict[T, int] = attrs.field(factory=dict)
    _values: list[T] = attrs.field(factory=list)

    def of(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def value(self, number: int) -> T:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)
