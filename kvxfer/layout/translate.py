"""Two shards, an edge and two block tables to a plan: the one place that walks strides.

Owns the joint byte ranges of vLLM-contract 4.3 and 4.4: both boxes are cut to
the same tokens, layers and heads; an axis joins the run only if it joins on both
sides; the token axis is cut at every border of a physical block on either side.
No case by model family or TP ratio. Invariant: the plan copies every byte of the
edge's box exactly once.

What depends on the pair of shards alone is worked out once, in `EdgeGeometry`;
a request costs only its tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Group, Shard
from kvxfer.layout.plan import Plan, coalesce

I64 = npt.NDArray[np.int64]
DESCRIPTORS_MAX = 1 << 24


@attrs.frozen
class Axis:
    """One axis of a box: how many positions, and the step on either side, in bytes."""

    count: int
    src: int
    dst: int


@attrs.frozen
class Sheet:
    """Planes and layers that one set of axes can walk: where it starts, and its axes."""

    src: int
    dst: int
    content_bytes: int
    axes: tuple[Axis, ...]


@attrs.frozen
class EdgeGeometry:
    """All that an edge needs of the two shards."""

    src: Group
    dst: Group
    sheets: tuple[Sheet, ...]

    @classmethod
    def build(cls, src: Shard, dst: Shard, edge: Edge) -> EdgeGeometry:
        """`src` and `dst` are the shards of the edge's two ranks."""
        source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
        heads = Axis(edge.head_stop - edge.head_start, source.stride_head, target.stride_head)
        sheets = []
        for first, layers in _layer_runs(source, target, edge.layers):
            for plane, planes in _plane_runs(src, dst, source, target):
                start_src = _plane_base(src, source, plane) + _layer_offset(source, first)
                start_dst = _plane_base(dst, target, plane) + _layer_offset(target, first)
                sheets.append(
                    Sheet(
                        src=start_src + (edge.head_start - source.head_start) * source.stride_head,
                        dst=start_dst + (edge.head_start - target.head_start) * target.stride_head,
                        content_bytes=target.planes[plane].content_bytes,
                        axes=(layers, planes, heads),
                    )
                )
        return cls(source, target, tuple(sheets))

    def plan(
        self,
        source: BlockTable,
        target: BlockTable,
        token_start: int,
        token_stop: int,
        descriptors_max: int = DESCRIPTORS_MAX,
    ) -> Plan:
        """Ranges for tokens [token_start, token_stop); the tables were checked before.

        Raises LayoutMismatch where the two orders need more than `descriptors_max` ranges.
        """
        if token_start >= token_stop:
            return Plan.empty()
        starts, counts = self._pieces(source, target, token_start, token_stop)
        at_src = _slots(self.src, source, starts)
        at_dst = _slots(self.dst, target, starts)
        plans = []
        for count in np.unique(counts):
            chosen = counts == count
            here, there = at_src[chosen], at_dst[chosen]
            plans += [
                self._walk(sheet, int(count), here, there, descriptors_max) for sheet in self.sheets
            ]
        return Plan.concat(plans)

    def _pieces(
        self, source: BlockTable, target: BlockTable, start: int, stop: int
    ) -> tuple[I64, I64]:
        """Cut the tokens where either side changes its physical block: (first token, count)."""
        cuts = [np.array([start], np.int64)]
        for group, table in ((self.src, source), (self.dst, target)):
            size = group.slots_per_physical
            first = start + (-(start - table.first_token)) % size
            cuts.append(np.arange(first, stop, size, dtype=np.int64))
        borders = np.unique(np.concatenate(cuts))
        return borders, np.diff(np.concatenate((borders, [stop])))

    def _walk(
        self, sheet: Sheet, slots: int, at_src: I64, at_dst: I64, descriptors_max: int
    ) -> Plan:
        """Join axes from the inside while both sides join, then loop over the rest."""
        slot_axis = Axis(slots, self.src.stride_slot, self.dst.stride_slot)
        left = [axis for axis in (*sheet.axes, slot_axis) if axis.count > 1]
        run = sheet.content_bytes
        while (inner := _joining(left, run)) is not None:
            left.remove(inner)
            run *= inner.count
        total = at_src.size
        for axis in left:
            total *= axis.count
        if total > descriptors_max:
            raise LayoutMismatch(
                f"the two orders have runs of {run} bytes: {total} ranges, "
                f"at most {descriptors_max}"
            )
        src, dst = at_src + sheet.src, at_dst + sheet.dst
        # Blocks stay innermost, so that runs of consecutive ones end side by side.
        for axis in left:
            steps = np.arange(axis.count, dtype=np.int64)
            src = ((steps * axis.src)[:, None] + src[None, :]).ravel()
            dst = ((steps * axis.dst)[:, None] + dst[None, :]).ravel()
        length = np.full(src.size, run, np.uint64)
        return coalesce(Plan(src.astype(np.uint64), dst.astype(np.uint64), length))


def plan_edge(
    src: Shard,
    dst: Shard,
    edge: Edge,
    source: BlockTable,
    target: BlockTable,
    token_start: int,
    token_stop: int,
) -> Plan:
    """One edge, one request, without keeping the geometry."""
    geometry = EdgeGeometry.build(src, dst, edge)
    return geometry.plan(source, target, token_start, token_stop)


def _joining(axes: list[Axis], run: int) -> Axis | None:
    return next((axis for axis in axes if axis.src == run and axis.dst == run), None)


def _slots(group: Group, table: BlockTable, tokens: I64) -> I64:
    """Byte offset of each token's slot at layer 0, first head, plane 0 (spec 7.2)."""
    within = tokens - table.first_token
    entry = within // group.tokens_per_block
    inside = within % group.tokens_per_block
    part = inside // group.slots_per_physical
    slot = inside % group.slots_per_physical
    block = table.blocks.astype(np.int64)[entry] * group.physical_per_block + part
    return block * group.stride_block + slot * group.stride_slot


def _layer_runs(
    source: Group, target: Group, layers: tuple[str, ...]
) -> Iterator[tuple[str, Axis]]:
    """Layers that are neighbours in both local orders, as one axis each."""
    here = {layer: n for n, layer in enumerate(source.layers)}
    there = {layer: n for n, layer in enumerate(target.layers)}
    ordered = sorted(layers, key=there.__getitem__)
    start = 0
    for end in range(1, len(ordered) + 1):
        follows = (
            end < len(ordered)
            and here[ordered[end]] == here[ordered[end - 1]] + 1
            and there[ordered[end]] == there[ordered[end - 1]] + 1
        )
        if not follows:
            axis = Axis(end - start, source.stride_layer, target.stride_layer)
            yield ordered[start], axis
            start = end


def _layer_offset(group: Group, layer: str) -> int:
    return group.layers.index(layer) * group.stride_layer


def _plane_base(shard: Shard, group: Group, plane: int) -> int:
    chosen = group.planes[plane]
    return shard.areas[chosen.area].base + chosen.offset


def _plane_runs(src: Shard, dst: Shard, source: Group, target: Group) -> Iterator[tuple[int, Axis]]:
    """Planes as one axis where they are evenly spaced on both sides, else one by one."""
    count = len(target.planes)
    sizes = {plane.content_bytes for plane in target.planes}
    steps_src = _steps([_plane_base(src, source, i) for i in range(count)])
    steps_dst = _steps([_plane_base(dst, target, i) for i in range(count)])
    even = len(sizes) == 1 and len(steps_src) == 1 and len(steps_dst) == 1
    if even and min(*steps_src, *steps_dst) > 0:
        yield 0, Axis(count, steps_src.pop(), steps_dst.pop())
        return
    for index in range(count):
        yield index, Axis(1, 0, 0)


def _steps(bases: list[int]) -> set[int]:
    return {b - a for a, b in itertools.pairwise(bases)}
