"""Do the bytes of a group's planes lie inside their areas, and apart from each other.

Owns the nesting of strides. Knows no ranks. Invariant: after `check_planes` every
address of every block, layer, head, slot and element lies inside its area, and no
two of them share a byte (H1). The cost grows with axes, layers and pairs of planes,
never with the bytes of the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from kvxfer.errors import BadValue
from kvxfer.layout.bounds import ADDRESS_MAX, COUNT_MAX, check_divisor, check_range
from kvxfer.layout.geometry import Area, Group, Plane, Shard
from kvxfer.layout.grid import grid_of, layer_stride

Axes = list[tuple[int, int, str]]
"""(stride, count, name), smallest stride first, every count above 1."""


@attrs.frozen
class _Box:
    """One plane: the axes that repeat it, and where its first position is."""

    name: str
    axes: Axes
    """Of one layer where layers have areas of their own, of all layers else."""
    starts: tuple[int, ...]
    """First address: one for all layers, or one of each."""
    content_bytes: int

    @property
    def extent(self) -> int:
        return _extent(self.content_bytes, self.axes)


def check_planes(field: str, shard: Shard, group: Group) -> None:
    """Raise BadValue naming the plane and the axis that does not fit."""
    boxes = []
    for index, plane in enumerate(group.planes):
        name = f"{field}.planes[{index}]"
        _check_numbers(name, group, plane, shard.areas)
        boxes.append(_check_box(name, shard, group, plane))
    _check_layer_areas(f"{field}.planes", shard, group)
    for first, second in itertools.combinations(boxes, 2):
        if not _apart(first, second):
            bound = "planes that share no byte"
            raise BadValue(f"{field}.planes", [first.name, second.name], bound)


def _check_numbers(field: str, group: Group, plane: Plane, areas: tuple[Area, ...]) -> None:
    check_range(f"{field}.area", plane.area, 0, len(areas) - 1)
    check_range(f"{field}.content_bytes", plane.content_bytes, 1, COUNT_MAX)
    check_range(f"{field}.offset", plane.offset, 0, ADDRESS_MAX)
    for key in ("stride_layer", "stride_block", "stride_head", "stride_slot", "stride_element"):
        if getattr(plane, key) is not None:
            check_range(f"{field}.{key}", getattr(plane, key), 0, ADDRESS_MAX)
    if plane.tokens_per_state is not None:
        per_physical = group.tokens_per_block // group.physical_per_block
        check_divisor(f"{field}.tokens_per_state", plane.tokens_per_state, per_physical)
    if plane.element_bytes is not None:
        check_divisor(f"{field}.element_bytes", plane.element_bytes, plane.content_bytes)
    if plane.split is not None:
        check_range(f"{field}.split.total", plane.split.total, 1, COUNT_MAX)
        check_range(f"{field}.split.start", plane.split.start, 0, plane.split.total - 1)
        check_range(
            f"{field}.split.stop", plane.split.stop, plane.split.start + 1, plane.split.total
        )
    if plane.layer_areas:
        check_range(f"{field}.layer_areas", len(plane.layer_areas), *[len(group.layers)] * 2)
        for area in plane.layer_areas:
            check_range(f"{field}.layer_areas", area, 0, len(areas) - 1)


def _check_box(field: str, shard: Shard, group: Group, plane: Plane) -> _Box:
    grid = grid_of(shard, group, plane)
    axes, places = grid.inner_axes, list(plane.layer_areas)
    starts = grid.starts
    if not places:
        places, starts = [plane.area], grid.starts[:1]
        if len(group.layers) > 1:
            axes = sorted([*axes, (layer_stride(group, plane), len(group.layers), "layer")])
    extent = grid.element_bytes
    for stride, count, name in axes:
        if stride < extent:
            bound = f"at least {extent}, or the {name} axis overlaps what is inside it"
            raise BadValue(f"{field} stride_{name}", stride, bound)
        extent += (count - 1) * stride
    for area in places:
        if plane.offset + extent > shard.areas[area].length:
            bound = f"at most {shard.areas[area].length}, the length of its area"
            raise BadValue(f"{field} last byte", plane.offset + extent, bound)
    return _Box(plane.name, axes, starts, grid.element_bytes)


def _check_layer_areas(field: str, shard: Shard, group: Group) -> None:
    """Areas of different layers lie apart, so that only one layer at a time has to be compared."""
    used = {(area, place) for plane in group.planes for place, area in enumerate(plane.layer_areas)}
    spans = sorted(
        (shard.areas[area].base, shard.areas[area].length, place) for area, place in used
    )
    end, owner = 0, -1
    for base, length, place in spans:
        if base < end and place != owner:
            bound = "areas of different layers that share no byte"
            raise BadValue(f"{field}.layer_areas", group.layers[place], bound)
        if base + length > end:
            end, owner = base + length, place


def _apart(first: _Box, second: _Box) -> bool:
    """No byte in common. Absolute addresses count, since two areas may lie over each other."""
    if len(first.starts) == len(second.starts):
        pairs = list(zip(first.starts, second.starts, strict=True))
        return all(_nested(first, a, second, b) for a, b in pairs)
    pairs = list(itertools.product(first.starts, second.starts))
    return all(a + first.extent <= b or b + second.extent <= a for a, b in pairs)


def _nested(first: _Box, first_start: int, second: _Box, second_start: int) -> bool:
    """Two boxes are one more axis, of step `gap`, which must nest among those they share.

    Axes that only one of them has count as its content: a hull, which is safe.
    """
    shared = [axis for axis in first.axes if axis in second.axes]
    sized = [
        (start, _extent(box.content_bytes, [a for a in box.axes if a not in shared]))
        for start, box in ((first_start, first), (second_start, second))
    ]
    (low_start, low), (high_start, high) = sorted(sized)
    gap = high_start - low_start
    inner = sum((count - 1) * stride for stride, count, _ in shared if stride <= gap)
    span = gap + inner + high
    apart = gap >= inner + low
    for stride, count, _ in shared:
        if stride > gap:
            apart = apart and stride >= span
            span += (count - 1) * stride
    return apart


def _extent(content_bytes: int, axes: Sequence[tuple[int, int, str]]) -> int:
    return content_bytes + sum((count - 1) * stride for stride, count, _ in axes)
