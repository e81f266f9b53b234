"""Two shards, an edge and two block tables to a plan: the one place that walks strides.

Owns the joint byte ranges (spec section 7.3): both boxes are cut to the same
tokens, layers and heads; an axis joins the run only if it joins on both sides; the
token axis is cut at every border of a physical block on either side. No case by
model family or TP ratio. Invariant: the plan copies every byte of the edge's box
exactly once, and its size is known before it is built.

What depends on the pair of shards alone is worked out once, in `EdgeGeometry`; a
request costs only its tables. All addresses are uint64 from the first step: a
checked shard may lie anywhere in the 64-bit space.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Group, Shard
from kvxfer.layout.plan import Plan, coalesce
from kvxfer.layout.table import check_table

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
DESCRIPTORS_MAX = 1 << 22
"""Ranges of one plan unless the caller says otherwise: 100 MB of columns."""


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


@attrs.frozen(eq=False)
class Pieces:
    """The wanted tokens, cut so that each piece lies in one physical block on both sides.

    Columns of shape (n,): byte offset of the piece's first slot on either side,
    before plane, layer and head are added, and the number of slots.
    """

    src: U64
    dst: U64
    slots: I64


@attrs.frozen(eq=False)
class Walk:
    """Ranges relative to a sheet's start, repeated along the axes that did not join."""

    ranges: Plan
    left: tuple[Axis, ...]

    @property
    def descriptor_count(self) -> int:
        return self.ranges.descriptor_count * math.prod(axis.count for axis in self.left)

    def expand(self, sheet: Sheet) -> Plan:
        src = self.ranges.src + np.uint64(sheet.src)
        dst = self.ranges.dst + np.uint64(sheet.dst)
        # Blocks stay innermost, so that neighbouring ranges stand side by side.
        for axis in self.left:
            steps = np.arange(axis.count, dtype=np.uint64)
            src = ((steps * np.uint64(axis.src))[:, None] + src[None, :]).ravel()
            dst = ((steps * np.uint64(axis.dst))[:, None] + dst[None, :]).ravel()
        repeats = src.size // self.ranges.descriptor_count
        return Plan(src, dst, np.tile(self.ranges.length, repeats))


@attrs.frozen(eq=False)
class EdgeGeometry:
    """All that an edge needs of the two shards."""

    src: Shard
    dst: Shard
    edge: Edge
    sheets: tuple[Sheet, ...]

    @classmethod
    def build(cls, src: Shard, dst: Shard, edge: Edge) -> EdgeGeometry:
        """`src` and `dst` are the shards of the edge's two ranks."""
        source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
        heads = Axis(edge.head_stop - edge.head_start, source.stride_head, target.stride_head)
        head_src = (edge.head_start - source.head_start) * source.stride_head
        head_dst = (edge.head_start - target.head_start) * target.stride_head
        sheets = []
        for layer_src, layer_dst, layers in _layer_runs(source, target, edge.layers):
            for plane_src, plane_dst, content_bytes, planes in _plane_runs(src, dst, edge):
                sheets.append(
                    Sheet(
                        src=plane_src + layer_src * source.stride_layer + head_src,
                        dst=plane_dst + layer_dst * target.stride_layer + head_dst,
                        content_bytes=content_bytes,
                        axes=(layers, planes, heads),
                    )
                )
        return cls(src, dst, edge, tuple(sheets))

    def plan(
        self,
        source: BlockTable,
        target: BlockTable,
        token_start: int,
        token_stop: int,
        descriptors_max: int = DESCRIPTORS_MAX,
    ) -> Plan:
        """Ranges for tokens [token_start, token_stop).

        Raises BadValue where a table is of another group or does not cover the
        tokens, LayoutMismatch where more than `descriptors_max` ranges are needed.
        """
        if token_start >= token_stop:
            return Plan.empty()
        for shard, table, index in (
            (self.src, source, self.edge.producer_group),
            (self.dst, target, self.edge.consumer_group),
        ):
            if table.group != index:
                raise BadValue("table.group", table.group, f"the edge's group, {index}")
            check_table(shard, table, token_start, token_stop)
        pieces = self._cut(source, target, token_start, token_stop, descriptors_max)
        walks: dict[tuple[int, tuple[Axis, ...]], list[Walk]] = {}
        for sheet in self.sheets:
            if (sheet.content_bytes, sheet.axes) not in walks:
                walks[sheet.content_bytes, sheet.axes] = self._walks(sheet, pieces)
        todo = [(s, walk) for s in self.sheets for walk in walks[s.content_bytes, s.axes]]
        _check_count(sum(walk.descriptor_count for _, walk in todo), descriptors_max, self.edge)
        return Plan.concat([walk.expand(sheet) for sheet, walk in todo])

    def _cut(
        self, source: BlockTable, target: BlockTable, start: int, stop: int, pieces_max: int
    ) -> Pieces:
        """Cut the tokens where either side changes its physical block."""
        here = self.src.groups[self.edge.producer_group]
        there = self.dst.groups[self.edge.consumer_group]
        count = stop - start
        smallest = min(here.slots_per_physical, there.slots_per_physical)
        _check_count(count // smallest, pieces_max, self.edge)
        cuts = [np.zeros(1, np.int64)]
        for group, table in ((here, source), (there, target)):
            size = group.slots_per_physical
            first = (table.first_token - start) % size
            cuts.append(np.arange(first, count, size, dtype=np.int64))
        borders = np.unique(np.concatenate(cuts))
        return Pieces(
            _slot_offsets(here, source, borders + (start - source.first_token)),
            _slot_offsets(there, target, borders + (start - target.first_token)),
            np.diff(np.concatenate((borders, [count]))),
        )

    def _walks(self, sheet: Sheet, pieces: Pieces) -> list[Walk]:
        """Pieces that leave the same axes over share a walk, and may touch each other."""
        counts, kind = np.unique(pieces.slots, return_inverse=True)
        runs = np.zeros(counts.size, np.uint64)
        alike: dict[tuple[Axis, ...], list[int]] = defaultdict(list)
        slot_src = self.src.groups[self.edge.producer_group].stride_slot
        slot_dst = self.dst.groups[self.edge.consumer_group].stride_slot
        for number, count in enumerate(counts.tolist()):
            axes = (*sheet.axes, Axis(count, slot_src, slot_dst))
            run, left = _join(sheet.content_bytes, axes)
            runs[number] = run
            alike[left].append(number)
        length = runs[kind]
        walks = []
        for left, numbers in alike.items():
            chosen = np.isin(kind, numbers)
            ranges = Plan(pieces.src[chosen], pieces.dst[chosen], length[chosen])
            walks.append(Walk(coalesce(ranges), left))
        return walks


def plan_edge(
    src: Shard,
    dst: Shard,
    edge: Edge,
    source: BlockTable,
    target: BlockTable,
    token_start: int,
    token_stop: int,
    descriptors_max: int = DESCRIPTORS_MAX,
) -> Plan:
    """One edge, one request, without keeping the geometry. Raises as `EdgeGeometry.plan`."""
    geometry = EdgeGeometry.build(src, dst, edge)
    return geometry.plan(source, target, token_start, token_stop, descriptors_max)


def _check_count(count: int, count_max: int, edge: Edge) -> None:
    if count > count_max:
        pair = f"rank {edge.producer_rank} to rank {edge.consumer_rank}"
        raise LayoutMismatch(
            f"{pair}: the two orders need {count} ranges, at most {count_max} are allowed"
        )


def _join(content_bytes: int, axes: tuple[Axis, ...]) -> tuple[int, tuple[Axis, ...]]:
    """Grow the run along every axis whose next position touches it on both sides."""
    left = [axis for axis in axes if axis.count > 1]
    run = content_bytes
    while (inner := next((a for a in left if a.src == run == a.dst), None)) is not None:
        left.remove(inner)
        run *= inner.count
    return run, tuple(left)


def _slot_offsets(group: Group, table: BlockTable, tokens: I64) -> U64:
    """Byte offset of each slot from (layer 0, block 0, head 0, slot 0) (spec 7.2).

    `tokens` count from the table's first token, shape (n,).
    """
    entry, inside = np.divmod(tokens, group.tokens_per_block)
    part, slot = np.divmod(inside, group.slots_per_physical)
    block = table.blocks.astype(np.int64)[entry] * group.physical_per_block + part
    offsets: U64 = block.astype(np.uint64) * np.uint64(group.stride_block)
    offsets += slot.astype(np.uint64) * np.uint64(group.stride_slot)
    return offsets


def _layer_runs(
    source: Group, target: Group, layers: tuple[str, ...]
) -> Iterator[tuple[int, int, Axis]]:
    """Layers that are neighbours in both local orders: first positions, and the axis."""
    here = {layer: n for n, layer in enumerate(source.layers)}
    there = {layer: n for n, layer in enumerate(target.layers)}
    places = sorted((there[layer], here[layer]) for layer in layers)
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != (places[end - 1][0] + 1, places[end - 1][1] + 1):
            axis = Axis(end - start, source.stride_layer, target.stride_layer)
            yield places[start][1], places[start][0], axis
            start = end


def _plane_runs(src: Shard, dst: Shard, edge: Edge) -> Iterator[tuple[int, int, int, Axis]]:
    """Planes as one axis where they are evenly spaced on both sides, else one by one.

    Yields absolute start on either side, content bytes and the axis.
    """
    source = _plane_starts(src, edge.producer_group)
    sizes = {p.name: p.content_bytes for p in dst.groups[edge.consumer_group].planes}
    places = sorted(
        (source[name], at, sizes[name])
        for name, at in _plane_starts(dst, edge.consumer_group).items()
    )
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(places)}
    even = len(steps) == 1 and len({size for _, _, size in places}) == 1
    step_src, step_dst = next(iter(steps), (0, 0))
    if even and step_dst > 0:
        yield *places[0], Axis(len(places), step_src, step_dst)
        return
    for place in places:
        yield *place, Axis(1, 0, 0)


def _plane_starts(shard: Shard, group: int) -> dict[str, int]:
    """Absolute address of (layer 0, block 0, head 0, slot 0) of each plane, by name."""
    return {p.name: shard.areas[p.area].base + p.offset for p in shard.groups[group].planes}
