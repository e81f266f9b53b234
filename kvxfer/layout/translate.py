"""Two shards, an edge and two block tables to a plan: the one place that walks strides.

Owns the joint byte ranges (spec section 7.2): both boxes are cut to the same tokens,
layers and heads; an axis joins the run only if it joins on both sides. No case by
model family or TP ratio. Invariant: the plan copies every byte of the edge's box
exactly once, and its size is known before it is built.

What depends on the pair of shards alone is worked out once, in `EdgeGeometry`; a
request costs only its tables. All addresses are uint64 from the first step: a
checked shard may lie anywhere in the 64-bit space.
"""

from __future__ import annotations

import functools
import math

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.pieces import Pieces, SlotAxes, cut
from kvxfer.layout.plan import Plan, coalesce
from kvxfer.layout.sheets import Axis, Form, Sheet, sheets_of
from kvxfer.layout.strided import StridedPlan
from kvxfer.layout.table import check_table
from kvxfer.layout.tokens import WHOLE, Share

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
DESCRIPTORS_MAX = 1 << 22
"""Ranges of one plan unless the caller says otherwise: 100 MB of columns."""


@attrs.frozen(eq=False)
class Walk:
    """Ranges relative to a sheet's start, repeated along the axes that did not join."""

    ranges: Plan
    left: tuple[Axis, ...]

    @property
    def descriptor_count(self) -> int:
        return self.ranges.descriptor_count * math.prod(axis.count for axis in self.left)

    @property
    def bytes_total(self) -> int:
        return self.ranges.bytes_total * math.prod(axis.count for axis in self.left)

    def fill(self, sheet: Sheet, into: Plan) -> None:
        """Write this walk's ranges of one sheet into columns of just their number."""
        if not self.left:
            np.add(self.ranges.src, np.uint64(sheet.src), out=into.src)
            np.add(self.ranges.dst, np.uint64(sheet.dst), out=into.dst)
            into.length[:] = self.ranges.length
            return
        shape = (-1, self.ranges.descriptor_count)
        # Blocks stay innermost, so that neighbouring ranges stand side by side.
        src, dst = steps_of(self.left, sheet)
        np.add(src[:, None], self.ranges.src, out=into.src.reshape(shape))
        np.add(dst[:, None], self.ranges.dst, out=into.dst.reshape(shape))
        into.length.reshape(shape)[:] = self.ranges.length

    def strided(self, sheet: Sheet) -> StridedPlan:
        """The longest axis that did not join stays an axis: one row for each run."""
        longest = max(self.left, key=lambda axis: axis.count, default=Axis(1, 0, 0))
        others = list(self.left)
        if self.left:
            others.remove(longest)
        src, dst = steps_of(tuple(others), sheet)
        rows = src.size * self.ranges.descriptor_count
        return StridedPlan(
            src=(src[:, None] + self.ranges.src).ravel(),
            dst=(dst[:, None] + self.ranges.dst).ravel(),
            length=np.tile(self.ranges.length, src.size),
            count=np.full(rows, longest.count, np.uint64),
            stride_src=np.full(rows, longest.src, np.uint64),
            stride_dst=np.full(rows, longest.dst, np.uint64),
        )


def steps_of(axes: tuple[Axis, ...], sheet: Sheet) -> tuple[U64, U64]:
    """Absolute address of each position of the axes, on both sides."""
    src, dst = np.array([sheet.src], np.uint64), np.array([sheet.dst], np.uint64)
    for axis in axes:
        steps = np.arange(axis.count, dtype=np.uint64)
        src = ((steps * np.uint64(axis.src))[:, None] + src).ravel()
        dst = ((steps * np.uint64(axis.dst))[:, None] + dst).ravel()
    return src, dst


@attrs.frozen(eq=False)
class EdgeGeometry:
    """All that an edge needs of the two shards."""

    src: Shard
    dst: Shard
    edge: Edge
    sheets: tuple[Sheet, ...]

    @classmethod
    def build(cls, src: Shard, dst: Shard, edge: Edge, only: Share = WHOLE) -> EdgeGeometry:
        """`src` and `dst` are the shards of the edge's two ranks.

        Of the tokens that both own, those in `only` are moved: all, but for staging.
        """
        return cls(src, dst, edge, sheets_of(src, dst, edge, only))

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
        todo = self.walks(source, target, token_start, token_stop, descriptors_max)
        total = sum(walk.descriptor_count for _, walk in todo)
        check_count(total, descriptors_max, self.edge)
        plan = Plan(*(np.empty(total, np.uint64) for _ in range(3)))
        start = 0
        for sheet, walk in todo:
            walk.fill(sheet, plan.window(start, start + walk.descriptor_count))
            start += walk.descriptor_count
        return plan

    def plan_strided(
        self,
        source: BlockTable,
        target: BlockTable,
        token_start: int,
        token_stop: int,
        descriptors_max: int = DESCRIPTORS_MAX,
    ) -> StridedPlan:
        """The same ranges, those that are evenly spaced on both sides in one row.

        For transports with STRIDED. `descriptors_max` bounds the rows. Raises as `plan`.
        """
        todo = self.walks(source, target, token_start, token_stop, descriptors_max)
        longest = [max((axis.count for axis in walk.left), default=1) for _, walk in todo]
        rows = [w.descriptor_count // n for (_, w), n in zip(todo, longest, strict=True)]
        check_count(sum(rows), descriptors_max, self.edge)
        return StridedPlan.concat([walk.strided(sheet) for sheet, walk in todo])

    def walks(
        self,
        source: BlockTable,
        target: BlockTable,
        token_start: int,
        token_stop: int,
        pieces_max: int,
    ) -> list[tuple[Sheet, Walk]]:
        """The plan before its axes are multiplied out: cheap to make and to count."""
        if token_start >= token_stop:
            return []
        for shard, table, index in (
            (self.src, source, self.edge.producer_group),
            (self.dst, target, self.edge.consumer_group),
        ):
            if table.group != index:
                raise BadValue("table.group", table.group, f"the edge's group, {index}")
            check_table(shard, table, token_start, token_stop)
        pieces: dict[SlotAxes, Pieces] = {}
        walks: dict[Form, list[Walk]] = {}
        for form in dict.fromkeys(sheet.form for sheet in self.sheets):
            if form.slots not in pieces:
                span = (token_start, token_stop)
                pieces[form.slots] = cut(form.slots, source, target, *span, pieces_max)
            walks[form] = _walks(form, pieces[form.slots])
        return [(sheet, walk) for sheet in self.sheets for walk in walks[sheet.form]]


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


def check_count(count: int, count_max: int, edge: Edge) -> None:
    """Raise LayoutMismatch naming the ranks where `count` ranges are too many."""
    if count > count_max:
        pair = f"rank {edge.producer_rank} to rank {edge.consumer_rank}"
        raise LayoutMismatch(
            f"{pair}: the two orders need {count} ranges, at most {count_max} are allowed"
        )


def _walks(form: Form, pieces: Pieces) -> list[Walk]:
    """Pieces that leave the same axes over share a walk, and may touch each other."""
    sizes = pieces.slots
    if sizes.size == 0:
        return []
    alike = sizes == sizes[0]
    if bool(alike.all()):
        run, left = _join(form, int(sizes[0]))
        lengths = np.full(sizes.size, run, np.uint64)
        return [Walk(coalesce(Plan(pieces.src, pieces.dst, lengths)), left)]
    # Nearly all pieces have one size; others are at the ends or at unequal borders.
    lengths = np.empty(sizes.size, np.uint64)
    kinds: dict[tuple[Axis, ...], npt.NDArray[np.bool_]] = {}
    for count in dict.fromkeys([int(sizes[0]), *sizes[~alike].tolist()]):
        run, left = _join(form, count)
        these = alike if count == sizes[0] else sizes == count
        lengths[these] = run
        kinds[left] = kinds[left] | these if left in kinds else these
    if len(kinds) == 1:
        return [Walk(coalesce(Plan(pieces.src, pieces.dst, lengths)), *kinds)]
    walks = []
    for left, chosen in kinds.items():
        ranges = Plan(pieces.src[chosen], pieces.dst[chosen], lengths[chosen])
        walks.append(Walk(coalesce(ranges), left))
    return walks


@functools.lru_cache(maxsize=1024)
def _join(form: Form, slots: int) -> tuple[int, tuple[Axis, ...]]:
    """Grow the run along every axis whose next position touches it on both sides."""
    run = form.run_bytes
    slot_axis = Axis(slots, form.slots.src.stride_slot, form.slots.dst.stride_slot)
    left = [axis for axis in (*form.axes, slot_axis) if axis.count > 1]
    while (inner := next((a for a in left if a.src == run == a.dst), None)) is not None:
        left.remove(inner)
        run *= inner.count
    return run, tuple(left)
