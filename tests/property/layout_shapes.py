"""Draws engines of every cache shape: a model that both share, and each one's own layout.

What the two engines have in common is a `Model`; all else is drawn for each of them:
orders and padding of every plane, block sizes, stages, head splits, context shares.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from kvxfer.layout.geometry import (
    Area,
    BlockTable,
    Group,
    GroupKind,
    Plane,
    RankHolding,
    Shard,
    Split,
    holding_of,
)
from kvxfer.layout.grid import grain_of
from kvxfer.layout.orders import head_intervals

TOKENS_MAX = 24
PAD = st.sampled_from([0, 0, 0, 1, 3])
STATES = (GroupKind.STATE, GroupKind.PAGE)


@attrs.frozen
class PlaneModel:
    name: str
    content_bytes: int
    states: int | None
    """Tokens of one slot, where it is not the group's."""
    split_total: int | None


@attrs.frozen
class Model:
    kind: GroupKind
    layers: tuple[str, ...]
    heads_total: int
    planes: tuple[PlaneModel, ...]
    reach: int | None
    tokens_per_state: int
    page_tokens: int
    """Tokens of a physical block, where both engines must have the same; else 0."""

    @property
    def grain(self) -> int:
        return math.lcm(self.tokens_per_state, *(p.states or 1 for p in self.planes))


@st.composite
def models(draw: st.DrawFn, kinds: tuple[GroupKind, ...] = tuple(GroupKind)) -> Model:
    kind = draw(st.sampled_from(kinds))
    whole = kind in STATES
    page = draw(st.sampled_from([2, 4])) if kind is GroupKind.PAGE else 0
    planes = [PlaneModel("kv", draw(st.sampled_from([2, 4])), None, None)]
    for name in ("v", "scale")[: draw(st.integers(0, 2))]:
        states = None if whole else draw(st.sampled_from([None, None, 2, 4]))
        total = None if kind is GroupKind.LATENT else draw(st.sampled_from([None, None, 1, 4]))
        planes.append(PlaneModel(name, draw(st.sampled_from([1, 2, 4])), states, total))
    reach = None
    if kind is GroupKind.WINDOW:
        reach = draw(st.integers(1, 9))
    elif kind is GroupKind.STATE:
        reach = 1
    return Model(
        kind,
        ("a", "b", "c")[: draw(st.integers(1, 3))],
        1 if kind is GroupKind.LATENT else draw(st.sampled_from([1, 2, 3, 4])),
        tuple(planes),
        reach,
        1 if whole else draw(st.sampled_from([1, 1, 1, 2])),
        page,
    )


def _blocks(draw: st.DrawFn, model: Model) -> tuple[int, int]:
    """(tokens of a manager block, physical blocks of it)."""
    if model.kind is GroupKind.STATE:
        return draw(st.sampled_from([1, 4, 6, 1 << 30])), 1
    physical = draw(st.sampled_from([1, 1, 2, 3]))
    if model.page_tokens:
        return model.page_tokens * physical, physical
    return model.grain * draw(st.sampled_from([1, 2, 3, 4, 6])) * physical, physical


@st.composite
def engines(draw: st.DrawFn, model: Model, base: int) -> tuple[Shard, ...]:
    stages = draw(st.sampled_from([1, 1, 1, min(2, len(model.layers))]))
    tp_size = draw(st.sampled_from([1, 1, 2, 3, 4]))
    tokens, physical = _blocks(draw, model)
    context, interleave = 1, 1
    if model.kind is not GroupKind.STATE and draw(st.booleans()):
        context = draw(st.sampled_from([1, 2, 3]))
        unit = model.page_tokens or model.grain
        steps = [n * unit for n in range(1, tokens // unit + 1) if tokens % (n * unit) == 0]
        interleave = draw(st.sampled_from(steps))
    places = list(itertools.product(range(stages), range(tp_size), range(context)))
    blocks = (TOKENS_MAX // tokens + 3) * physical
    form = _Form(draw, model, tokens, physical, blocks)
    shards = []
    for rank, (stage, position, context_rank) in enumerate(places):
        borders = [n * len(model.layers) // stages for n in range(stages + 1)]
        layers = draw(st.permutations(model.layers[borders[stage] : borders[stage + 1]]))
        start, stop = head_intervals(model.heads_total, tp_size)[position]
        group, areas = form.group(
            tuple(layers), start, stop, position, tp_size, base + (rank << 28)
        )
        group = attrs.evolve(
            group,
            context_rank=context_rank,
            context_size=context,
            context_interleave=interleave,
        )
        shards.append(Shard(rank=rank, areas=areas, groups=(group,), ranks=()))
    ranks = tuple(RankHolding(rank=s.rank, holdings=(holding_of(s.groups[0]),)) for s in shards)
    return tuple(attrs.evolve(shard, ranks=ranks) for shard in shards)


class _Form:
    """How one engine lays out its cache: the same choices at each of its ranks."""

    def __init__(self, draw: st.DrawFn, model: Model, tokens: int, physical: int, blocks: int):
        self.model, self.tokens, self.physical, self.blocks = model, tokens, physical, blocks
        self.mode = draw(st.sampled_from(["apart", "apart", "page", "areas"]))
        self.outer = draw(st.permutations("LB"))
        self.orders = [draw(st.permutations("LBHNE")) for _ in model.planes]
        self.pads = [[draw(PAD) for _ in range(6)] for _ in model.planes]
        self.elements = [
            draw(st.sampled_from([n for n in (1, 2, 4) if p.content_bytes % n == 0]))
            for p in model.planes
        ]
        whole = tokens // physical if model.kind in STATES else model.tokens_per_state
        self.tokens_per_state = whole
        self.explicit = draw(st.booleans())

    def group(
        self, layers: tuple[str, ...], start: int, stop: int, position: int, ranks: int, base: int
    ) -> tuple[Group, tuple[Area, ...]]:
        planes: list[Plane] = []
        areas: list[Area] = []
        at = 0
        strides: list[dict[str, int]] = []
        boxes = []
        for index, plane in enumerate(self.model.planes):
            span = (start, stop)
            split = None
            if plane.split_total is not None:
                span = head_intervals(plane.split_total, ranks)[position]
                split = Split(total=plane.split_total, start=span[0], stop=span[1])
            slots = self.tokens // self.physical // (plane.states or self.tokens_per_state)
            counts = {
                "L": len(layers),
                "B": self.blocks,
                "H": span[1] - span[0],
                "N": slots,
                "E": plane.content_bytes // self.elements[index],
            }
            boxes.append((plane, split, counts))
        if self.mode == "page":
            strides, offsets, at = self._pages([counts for *_, counts in boxes])
        else:
            offsets = []
            for index, (*_, counts) in enumerate(boxes):
                order = [a for a in self.orders[index] if self.mode != "areas" or a != "L"]
                found, extent = self._nest(index, order, counts)
                strides.append({"L": 0} | found)
                offsets.append(at if self.mode == "apart" else 0)
                if self.mode == "areas":
                    for _ in layers:
                        areas.append(Area(base=base + at, length=extent))
                        at += extent + self.pads[index][5]
                else:
                    at += extent + self.pads[index][5]
        if not areas:
            areas = [Area(base=base, length=at)]
        first = strides[0]
        for index, (plane, split, _) in enumerate(boxes):
            mine = strides[index]
            own = {
                key: mine[letter] if self.explicit or mine[letter] != first[letter] else None
                for key, letter in KEYS.items()
            }
            places = range(index * len(layers), (index + 1) * len(layers))
            planes.append(
                Plane(
                    name=plane.name,
                    area=0,
                    offset=offsets[index],
                    content_bytes=plane.content_bytes,
                    tokens_per_state=plane.states,
                    split=split,
                    element_bytes=self.elements[index],
                    stride_element=mine["E"],
                    layer_areas=tuple(places) if self.mode == "areas" else (),
                    **own,
                )
            )
        return self._group(layers, start, stop, planes, first), tuple(areas)

    def _nest(self, index: int, order: list[str], counts: dict[str, int]) -> tuple[Any, int]:
        """Strides with the last letter innermost, each a little more than what is inside it."""
        strides = {}
        extent = self.elements[index]
        for axis, pad in zip(reversed(order), self.pads[index], strict=False):
            strides[axis] = extent + pad
            extent += (counts[axis] - 1) * strides[axis]
        return strides, extent

    def _pages(self, boxes: list[dict[str, int]]) -> tuple[list[dict[str, int]], list[int], int]:
        """All planes side by side inside one (layer, block) page."""
        strides, offsets, page = [], [], 0
        for index, counts in enumerate(boxes):
            inner, extent = self._nest(index, [a for a in self.orders[index] if a in "HNE"], counts)
            strides.append(inner)
            offsets.append(page)
            page += extent + self.pads[index][4]
        near, far = self.outer
        count = boxes[0][near]
        outer = {near: page, far: page * count}
        length = page * count * boxes[0][far]
        return [inner | outer for inner in strides], offsets, length

    def _group(
        self,
        layers: tuple[str, ...],
        start: int,
        stop: int,
        planes: list[Plane],
        strides: dict[str, int],
    ) -> Group:
        return Group(
            name="cache",
            kind=self.model.kind,
            tokens_per_block=self.tokens,
            physical_per_block=self.physical,
            physical_blocks=self.blocks,
            heads_total=self.model.heads_total,
            head_start=start,
            head_stop=stop,
            layers=layers,
            planes=tuple(planes),
            null_block=0,
            tokens_per_state=self.tokens_per_state,
            reach=self.model.reach,
            fingerprint="packed" if self.model.kind is GroupKind.PAGE else "",
            **{key: strides[letter] for key, letter in KEYS.items()},
        )


KEYS = {"stride_layer": "L", "stride_block": "B", "stride_head": "H", "stride_slot": "N"}


def table(draw: st.DrawFn, shard: Shard, start: int, stop: int) -> BlockTable:
    """Any blocks for tokens [start, stop); entries before them are null or anything."""
    group = shard.groups[0]
    step = grain_of(group)
    if group.context_size > 1:
        step = math.lcm(step, group.context_size * group.context_interleave)
    first = draw(st.integers(0, start // step)) * step
    count = -(-(stop - first) // group.tokens_per_entry)
    ids = draw(st.permutations(range(1, group.manager_blocks)))
    ids = (list(ids) * (count // len(ids) + 1))[:count]
    used = (start - first) // group.tokens_per_entry
    live = draw(st.permutations(range(1, group.manager_blocks)))[: count - used]
    ids[used:] = live
    for entry in range(used):
        if draw(st.booleans()):
            ids[entry] = 0
    return BlockTable(group=0, first_token=first, blocks=np.array(ids, np.int64))


@attrs.frozen
class Case:
    producers: tuple[Shard, ...]
    consumers: tuple[Shard, ...]
    source: BlockTable
    target: BlockTable
    start: int
    stop: int
    """Wanted tokens of the group: the request's, cut to the group's reach."""


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[GroupKind, ...] = tuple(GroupKind)) -> Case:
    model = draw(models(kinds))
    producers = draw(engines(model, 1 << 40))
    consumers = draw(engines(model, (1 << 64) - (1 << 34)))
    stop = draw(st.integers(1, TOKENS_MAX))
    start = draw(st.integers(0, stop - 1))
    if model.reach is not None:
        start = max(start, stop - model.reach)
    return Case(
        producers,
        consumers,
        table(draw, producers[0], start, stop),
        table(draw, consumers[0], start, stop),
        start,
        stop,
    )
