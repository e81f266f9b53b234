"""Regions by kind of memory: which one holds a column of ranges.

Owns the lookup. Refuses to know nixl and peers. Invariant: all ranges of one post
lie in memory of one kind on one device, since nixl takes one kind a list.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kvxfer.transport.ops import U64, Memory
from kvxfer.transport.ranges import RegionIndex


@attrs.frozen
class Place:
    """A kind of memory on one device, as `Memory` names them."""

    kind: str
    device: int


@attrs.frozen(eq=False)
class Regions:
    """An immutable set of regions, apart by place."""

    _places: tuple[tuple[Place, RegionIndex], ...]

    @classmethod
    def of(cls, memories: Iterable[Memory]) -> Regions:
        apart: dict[Place, list[Memory]] = {}
        for memory in memories:
            apart.setdefault(Place(memory.kind, memory.device), []).append(memory)
        return cls(tuple((place, RegionIndex.of(held)) for place, held in apart.items()))

    def find(self, start: U64, length: U64) -> tuple[Place | None, int]:
        """The place that holds all ranges and -1, or None and a range that is outside.

        Where several places hold some of the ranges, the range named is the first
        that the best of them does not hold.
        """
        furthest = 0
        for place, index in self._places:
            at = index.first_outside(start, length)
            if at < 0:
                return place, -1
            furthest = max(furthest, at)
        return None, furthest
