"""Cache tensors where they lie, and the planes that they make.

Owns the step from addresses and strides to areas and planes. Knows no engine's shapes
and touches no device: an address is a number here. Invariant: every memory is listed
once, whole, however many layers lie in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from kvxfer.driver import Memory
from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Area, Plane

_WORDS = {"P": "2", "B": "blocks", "H": "heads", "N": "tokens", "D": "dim"}
"""Axes by their letters: K and V, lines or blocks, heads, tokens, elements of a head."""


@attrs.frozen(kw_only=True)
class Placed:
    """One cache tensor. Strides in bytes; `memory` is all of what it lies in."""

    name: str
    """For errors: the layer, and which plane where a layer has several tensors."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int
    dtype: str
    address: int
    memory: Memory

    def axes(self, letters: str) -> dict[str, tuple[int, int]]:
        """(count, stride) of each axis; the letter N may span several, as a tiled sequence does.

        Raises LayoutMismatch where the number of axes does not fit or a tiled axis has gaps.
        """
        tiles = len(self.shape) - len(letters)
        if tiles < 0 or (tiles and "N" not in letters):
            expected = ", ".join(_WORDS[letter] for letter in letters)
            raise LayoutMismatch(f"cache of {self.name}, shape {self.shape}: expected ({expected})")
        found, at = {}, 0
        for letter in letters:
            stop = at + 1 + (tiles if letter == "N" else 0)
            found[letter] = self._merged(at, stop)
            at = stop
        return found

    def _merged(self, start: int, stop: int) -> tuple[int, int]:
        """Neighbouring axes as one: a view of the same bytes."""
        count, stride = self.shape[stop - 1], self.strides[stop - 1]
        for axis in range(stop - 2, start - 1, -1):
            if self.shape[axis] > 1 and self.strides[axis] != count * stride:
                raise LayoutMismatch(
                    f"cache of {self.name}: tiled axis {axis} has a stride of "
                    f"{self.strides[axis]} bytes, not {count * stride}"
                )
            count *= self.shape[axis]
        return count, stride


@attrs.define
class Pool:
    """The memories of one shard, in the order of its areas."""

    memories: list[Memory] = attrs.field(factory=list)
    _known: dict[int, int] = attrs.field(factory=dict)

    @property
    def areas(self) -> tuple[Area, ...]:
        return tuple(
            Area(base=m.base, length=m.length, kind=m.kind, device=m.device) for m in self.memories
        )

    def area_of(self, placed: Placed) -> int:
        """Index of the area that a tensor lies in; a memory that is new is added."""
        memory = placed.memory
        index = self._known.setdefault(memory.base, len(self.memories))
        if index == len(self.memories):
            self.memories.append(memory)
        elif self.memories[index].length != memory.length:
            raise LayoutMismatch(
                f"cache of {placed.name} lies in {memory.length} bytes at {memory.base}, "
                f"another in {self.memories[index].length} there"
            )
        return index

    def plane(self, plane: Plane, tensors: Sequence[Placed], inside: int = 0) -> Plane:
        """`plane` with its area, offset and layer stride, or an area for each layer.

        `tensors` are in the order of the group's layers, by ascending address where they
        share a memory; the plane starts `inside` bytes into each. Raises LayoutMismatch
        where no single step or offset describes where they are.
        """
        areas = [self.area_of(tensor) for tensor in tensors]
        offsets = [tensor.address - tensor.memory.base + inside for tensor in tensors]
        placed = attrs.evolve(plane, area=areas[0], offset=offsets[0])
        steps = {after - before for before, after in itertools.pairwise(offsets)}
        if len(set(areas)) == 1:
            if len(steps) > 1:
                raise LayoutMismatch(
                    f"plane {plane.name!r}: layers are spaced unevenly, steps {sorted(steps)} bytes"
                )
            return attrs.evolve(placed, stride_layer=steps.pop() if steps else None)
        if steps - {0}:
            raise LayoutMismatch(
                f"plane {plane.name!r}: layers start at different offsets into their memories, "
                f"{sorted(set(offsets))}"
            )
        return attrs.evolve(placed, layer_areas=tuple(areas))


def check_same_form(tensors: Sequence[Placed]) -> None:
    """All layers of a group have one shape, strides and element type, or LayoutMismatch."""
    first = tensors[0]
    for tensor in tensors:
        for field in ("shape", "strides", "dtype", "element_bytes"):
            if getattr(tensor, field) != getattr(first, field):
                raise LayoutMismatch(
                    f"cache of {tensor.name}: {field} is {getattr(tensor, field)}, that of "
                    f"{first.name} is {getattr(first, field)}"
                )
