"""One plane of one shard as a box of axes: what the group and the plane say together.

Owns the reading of a descriptor's numbers, so that nothing else asks whether a plane
has a stride of its own. Knows no tables and no peer. Invariant: a grid's addresses
are those of the specification (7.2).
"""

from __future__ import annotations

import math

import attrs

from kvxfer.layout.geometry import Group, Plane, Shard


@attrs.frozen(kw_only=True)
class Grid:
    """The axes of one plane. Strides in bytes, `starts` are absolute addresses."""

    plane: str
    starts: tuple[int, ...]
    """Address of (block 0, first head, slot 0, element 0), by local layer position."""
    blocks: int
    stride_block: int
    head_start: int
    head_stop: int
    heads_total: int
    stride_head: int
    slots: int
    """Slots of one physical block."""
    tokens_per_state: int
    stride_slot: int
    content_bytes: int
    element_bytes: int
    stride_element: int

    @property
    def elements(self) -> int:
        return self.content_bytes // self.element_bytes

    @property
    def inner_axes(self) -> list[tuple[int, int, str]]:
        """(stride, count, name) of what lies inside a layer, where there is more than one."""
        axes = [
            (self.stride_block, self.blocks, "block"),
            (self.stride_head, self.head_stop - self.head_start, "head"),
            (self.stride_slot, self.slots, "slot"),
            (self.stride_element, self.elements, "element"),
        ]
        return sorted(axis for axis in axes if axis[1] > 1)


def grid_of(shard: Shard, group: Group, plane: Plane) -> Grid:
    """The axes of `plane`. The shard need not be checked yet, but its counts are positive."""
    tokens = _or(plane.tokens_per_state, group.tokens_per_state)
    split = plane.split
    element = _or(plane.element_bytes, plane.content_bytes)
    return Grid(
        plane=plane.name,
        starts=layer_starts(shard, group, plane),
        blocks=group.physical_blocks,
        stride_block=_or(plane.stride_block, group.stride_block),
        head_start=group.head_start if split is None else split.start,
        head_stop=group.head_stop if split is None else split.stop,
        heads_total=group.heads_total if split is None else split.total,
        stride_head=_or(plane.stride_head, group.stride_head),
        slots=group.tokens_per_block // group.physical_per_block // tokens,
        tokens_per_state=tokens,
        stride_slot=_or(plane.stride_slot, group.stride_slot),
        content_bytes=plane.content_bytes,
        element_bytes=element,
        stride_element=_or(plane.stride_element, element),
    )


def layer_starts(shard: Shard, group: Group, plane: Plane) -> tuple[int, ...]:
    """Where each layer of the plane starts, by local position."""
    if plane.layer_areas:
        return tuple(shard.areas[area].base + plane.offset for area in plane.layer_areas)
    start = shard.areas[plane.area].base + plane.offset
    step = layer_stride(group, plane)
    return tuple(start + place * step for place in range(len(group.layers)))


def layer_stride(group: Group, plane: Plane) -> int:
    """Bytes from one layer to the next, where the plane has no areas by layer."""
    return _or(plane.stride_layer, group.stride_layer)


def grain_of(group: Group) -> int:
    """Tokens that cannot be parted without moving a slot twice: the grid of cuts."""
    return math.lcm(
        group.tokens_per_state,
        *(p.tokens_per_state for p in group.planes if p.tokens_per_state is not None),
    )


def _or(own: int | None, groups: int) -> int:
    return groups if own is None else own
