"""Through a staging buffer: few long ranges on the wire, a permute on one side.

Owns the layout of the staging buffer and its cutting into rounds. Knows no cost.
Invariant: wire ranges and permutes of all rounds together move exactly the bytes of
the direct plan, and no round needs more staging than it was given.

The buffer is laid out as the far side's blocks are, in the far side's order and
without gaps: so ranges are as long as that side allows. It is a shard of its own, and
both steps are plans between two shards, by the same arithmetic as any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from enum import Enum

import attrs
import numpy as np

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import Area, BlockTable, Plane, Shard, Split
from kvxfer.layout.grid import Grid, grid_of
from kvxfer.layout.permute import Permute, permutes_of
from kvxfer.layout.plan import Plan
from kvxfer.layout.sheets import planes_of
from kvxfer.layout.table import entries_of
from kvxfer.layout.tokens import share_of
from kvxfer.layout.translate import DESCRIPTORS_MAX, EdgeGeometry


class Side(Enum):
    """Where the staging buffer and the permute are."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


@attrs.frozen(eq=False, kw_only=True)
class Round:
    """What moves through the buffer at once: tokens [token_start, token_stop).

    At the producer the permutes come first, then the ranges; at the consumer the other
    way round, and the part has landed only after them.
    """

    token_start: int
    token_stop: int
    permutes: tuple[Permute, ...]
    plan: Plan


@attrs.frozen
class Staging:
    """An edge through a staging buffer at `side`, worked out once for a pair of peers."""

    side: Side
    direct: EdgeGeometry
    entries: int
    """Table entries of the far side that fit into the buffer at a time."""
    permute: EdgeGeometry
    wire: EdgeGeometry
    staging_bytes: int

    @classmethod
    def build(cls, direct: EdgeGeometry, side: Side, base: int, room_bytes: int) -> Staging:
        """`base` is the address of a registered buffer of `room_bytes` at that side.

        Raises LayoutMismatch where not even one block of the far side fits.
        """
        near_is_source = side is Side.PRODUCER
        edge = direct.edge
        ends = [(direct.src, edge.producer_group), (direct.dst, edge.consumer_group)]
        (near, near_index), (far, index) = ends if near_is_source else reversed(ends)
        one = staging_shard(far, index, edge, 1, base)
        entries = room_bytes // one.areas[0].length
        if entries < 1:
            raise LayoutMismatch(
                f"staging at the {side.value} has {room_bytes} bytes, one block needs "
                f"{one.areas[0].length}"
            )
        entries = min(entries, far.groups[index].manager_blocks)
        buffer = staging_shard(far, index, edge, entries, base)
        # The buffer has room for all tokens of the far side, but the near side has only its own.
        only = share_of(near.groups[near_index])
        as_target = attrs.evolve(edge, consumer_group=0)
        as_source = attrs.evolve(edge, producer_group=0)
        inward = EdgeGeometry.build(direct.src, buffer, as_target, only)
        outward = EdgeGeometry.build(buffer, direct.dst, as_source, only)
        pair = (inward, outward) if near_is_source else (outward, inward)
        return cls(side, direct, entries, *pair, buffer.areas[0].length)

    def rounds(
        self,
        source: BlockTable,
        target: BlockTable,
        token_start: int,
        token_stop: int,
        descriptors_max: int = DESCRIPTORS_MAX,
    ) -> Iterator[Round]:
        """The rounds, in order; each may start when the buffer is free again.

        Raises as `EdgeGeometry.plan`.
        """
        near_is_source = self.side is Side.PRODUCER
        for start, stop, staged in self._spans(source, target, token_start, token_stop):
            inward, outward = (source, staged), (staged, target)
            permute, wire = (inward, outward) if near_is_source else (outward, inward)
            plan = self.wire.plan(*wire, start, stop, descriptors_max)
            walks = self.permute.walks(*permute, start, stop, descriptors_max)
            permutes = tuple(
                permute
                for sheet, walk in walks
                for permute in permutes_of(sheet.src, sheet.dst, walk)
            )
            if plan.descriptor_count:
                yield Round(token_start=start, token_stop=stop, permutes=permutes, plan=plan)

    def range_count(
        self, source: BlockTable, target: BlockTable, token_start: int, token_stop: int
    ) -> int:
        """Ranges on the wire, over all rounds, without building them."""
        total = 0
        for start, stop, staged in self._spans(source, target, token_start, token_stop):
            tables = (staged, target) if self.side is Side.PRODUCER else (source, staged)
            walks = self.wire.walks(*tables, start, stop, DESCRIPTORS_MAX)
            total += sum(walk.descriptor_count for _, walk in walks)
        return total

    def _spans(
        self, source: BlockTable, target: BlockTable, token_start: int, token_stop: int
    ) -> Iterator[tuple[int, int, BlockTable]]:
        """Tokens of each round, and the buffer's table for them: blocks in order."""
        near_is_source = self.side is Side.PRODUCER
        far = target if near_is_source else source
        shard = self.direct.dst if near_is_source else self.direct.src
        group = shard.groups[far.group]
        first, last = entries_of(group, far, token_start, token_stop)
        for entry in range(first, last, self.entries):
            at = far.first_token + entry * group.tokens_per_entry
            until = min(entry + self.entries, last)
            stop = far.first_token + until * group.tokens_per_entry
            blocks = np.arange(until - entry, dtype=np.int64)
            staged = BlockTable(group=0, first_token=at, blocks=blocks)
            yield max(token_start, at), min(token_stop, stop), staged


def staging_shard(far: Shard, index: int, edge: Edge, entries: int, base: int) -> Shard:
    """A shard of `entries` blocks that holds an edge's planes, layers and heads, densely."""
    group = far.groups[index]
    found = [(grid_of(far, group, plane), plane) for plane in planes_of(group, edge)]
    found.sort(key=lambda pair: pair[0].starts[0])
    step = _plane_step([grid for grid, _ in found])
    layers = tuple(layer for layer in group.layers if layer in frozenset(edge.layers))
    counts = {
        "layer": len(layers),
        "block": entries * group.physical_per_block,
        "head": edge.head_stop - edge.head_start,
        "plane": len(found) if step else 1,
    }
    placed: list[Plane] = []
    length = 0
    for grid, plane in found:
        mine = counts | {"slot": grid.slots, "element": grid.elements}
        strides = _dense(_far_strides(grid, step), mine, grid.element_bytes)
        # Planes that are one more axis lie inside each other's gaps, others in a row.
        offset = len(placed) * strides["plane"] if step else length
        placed.append(_placed(plane, edge, offset, strides, grid))
        length += grid.element_bytes * math.prod(mine.values()) // mine["plane"]
    staged = attrs.evolve(
        group,
        layers=layers,
        head_start=group.head_start if edge.plane else edge.head_start,
        head_stop=group.head_stop if edge.plane else edge.head_stop,
        physical_blocks=counts["block"],
        planes=tuple(placed),
        null_block=None,
    )
    area = Area(base=base, length=length)
    return Shard(rank=far.rank, areas=(area,), groups=(staged,), ranks=())


def _placed(plane: Plane, edge: Edge, offset: int, strides: dict[str, int], grid: Grid) -> Plane:
    split = None
    if plane.split is not None:
        split = Split(total=plane.split.total, start=edge.head_start, stop=edge.head_stop)
    return attrs.evolve(
        plane,
        area=0,
        offset=offset,
        split=split,
        element_bytes=grid.element_bytes,
        stride_element=strides["element"],
        stride_layer=strides["layer"],
        stride_block=strides["block"],
        stride_head=strides["head"],
        stride_slot=strides["slot"],
        layer_areas=(),
    )


def _far_strides(grid: Grid, plane_step: int) -> dict[str, int]:
    layers = [abs(b - a) for a, b in itertools.pairwise(grid.starts)]
    return {
        "layer": min(layers, default=0),
        "block": grid.stride_block,
        "head": grid.stride_head,
        "slot": grid.stride_slot,
        "element": grid.stride_element,
        "plane": plane_step,
    }


def _dense(order: dict[str, int], counts: dict[str, int], element_bytes: int) -> dict[str, int]:
    """Strides without gaps, the axes one inside the other as at the far side."""
    strides = dict.fromkeys(order, 0)
    step = element_bytes
    for axis in sorted(order, key=lambda name: (counts[name] > 1, order[name])):
        strides[axis] = step
        step *= counts[axis]
    return strides


def _plane_step(grids: list[Grid]) -> int:
    """Bytes between planes that are alike and evenly spaced: one more axis. Else 0."""
    alike = {attrs.evolve(grid, plane="", starts=()) for grid in grids}
    starts = [grid.starts[0] for grid in grids]
    steps = {b - a for a, b in itertools.pairwise(starts)}
    return max(0, *steps) if len(alike) == len(steps) == 1 else 0
