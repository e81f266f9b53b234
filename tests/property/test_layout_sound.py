"""Every accepted descriptor is free of overlap, and every edge is what the oracle says.

Here the drawn strides are not only those of the six orders: any that `check_shard`
lets through must be safe to write through.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kvxfer.errors import BadValue
from kvxfer.layout.check import check_shard
from kvxfer.layout.coverage import check_exactly_once, wanted_ranges
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import (
    Area,
    BlockTable,
    Group,
    GroupKind,
    Holding,
    Plane,
    RankHolding,
    Shard,
)
from kvxfer.layout.naive import naive_plan
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

MODEST = settings(max_examples=80, deadline=None, derandomize=True)
LAYERS = ("a", "b", "c")


def lone(counts: tuple[int, ...], strides: tuple[int, ...], planes: list[tuple[int, int]]) -> Shard:
    layers, blocks, heads, slots = counts
    names = LAYERS[:layers]
    group = Group(
        name="kv",
        kind=GroupKind.FULL,
        tokens_per_block=slots,
        physical_per_block=1,
        physical_blocks=blocks,
        heads_total=heads,
        head_start=0,
        head_stop=heads,
        layers=names,
        planes=tuple(
            Plane(name=f"p{n}", area=n % 2, offset=offset, content_bytes=size)
            for n, (offset, size) in enumerate(planes)
        ),
        stride_layer=strides[0],
        stride_block=strides[1],
        stride_head=strides[2],
        stride_slot=strides[3],
    )
    holding = Holding(group="kv", head_start=0, head_stop=heads, layers=names)
    return Shard(
        rank=0,
        areas=(Area(base=1000, length=120), Area(base=1010, length=110)),
        groups=(group,),
        ranks=(RankHolding(rank=0, holdings=(holding,)),),
    )


def bytes_of(shard: Shard, plane: Plane) -> list[int]:
    group = shard.groups[0]
    axes = (
        range(len(group.layers)),
        range(group.physical_blocks),
        range(group.head_stop),
        range(group.slots_per_physical),
    )
    found: list[int] = []
    for layer, block, head, slot in itertools.product(*axes):
        at = shard.areas[plane.area].base + plane.offset
        at += layer * group.stride_layer + block * group.stride_block
        at += head * group.stride_head + slot * group.stride_slot
        found += range(at, at + plane.content_bytes)
    return found


COUNT = st.integers(1, 3)
STRIDE = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 36])
PLANE = st.tuples(st.integers(0, 48), st.integers(1, 4))


@settings(max_examples=600, deadline=None, derandomize=True)
@given(
    st.tuples(COUNT, COUNT, COUNT, COUNT),
    st.tuples(STRIDE, STRIDE, STRIDE, STRIDE),
    st.lists(PLANE, min_size=1, max_size=3),
)
# K and V side by side; a slot steps over one plane's heads but not over both planes'.
@example((1, 1, 2, 2), (1, 1, 8, 12), [(10, 4), (4, 4)])
# Two areas over each other.
@example((1, 2, 1, 1), (0, 4, 0, 0), [(10, 4), (0, 4)])
def test_an_accepted_shard_writes_no_byte_twice_and_none_outside(
    counts: Any, strides: Any, planes: Any
) -> None:
    shard = lone(counts, strides, planes)
    try:
        check_shard(shard, Limits())
    except BadValue:
        return
    written: list[int] = []
    for plane in shard.groups[0].planes:
        area, mine = shard.areas[plane.area], bytes_of(shard, plane)
        assert area.base <= min(mine)
        assert max(mine) < area.base + area.length
        written += mine
    assert len(set(written)) == len(written)


@st.composite
def engine(draw: st.DrawFn, heads_total: int, size: int, base: int) -> tuple[Shard, ...]:
    """Any order with K and V anywhere in it, stages, replicas, blocks cut in parts."""
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    tp_size = draw(st.sampled_from([1, 2, 3, 4]))
    tokens = draw(st.sampled_from([1, 2, 3, 4, 6]))
    order = draw(st.sampled_from(ORDERS))
    place = draw(st.integers(0, 4))
    return engine_shards(
        bases=[base + (rank << 20) for rank in range(stages * tp_size)],
        stages=stages,
        order=order[:place] + "P" + order[place:],
        layers=draw(st.permutations(LAYERS)),
        blocks=24 // tokens + 2,
        tokens_per_block=tokens,
        physical_per_block=draw(st.sampled_from([r for r in (1, 2, 3) if tokens % r == 0])),
        heads_total=heads_total,
        content_bytes=size,
        planes=draw(st.sampled_from([("k", "v"), ("v", "k")])),
        null_block=0,
    )


def table(draw: st.DrawFn, shard: Shard, start: int, stop: int) -> BlockTable:
    group = shard.groups[0]
    first = max(0, start - draw(st.integers(0, group.tokens_per_block)))
    count = -(-(stop - first) // group.tokens_per_block)
    ids = list(range(1, group.manager_blocks))
    if draw(st.booleans()):
        ids = draw(st.permutations(ids))
    return BlockTable(group=0, first_token=first, blocks=np.array(ids[:count], np.int64))


def as_pairs(plan: Plan) -> list[tuple[int, int]]:
    rows = zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
    return [(d + i, s + i) for s, d, n in rows for i in range(n)]


@MODEST
@given(st.data())
def test_all_edges_of_a_consumer_together_are_the_oracle(data: st.DataObject) -> None:
    heads_total = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    size = data.draw(st.sampled_from([1, 3]))
    producers = data.draw(engine(heads_total, size, 1 << 40))
    consumers = data.draw(engine(heads_total, size, (1 << 64) - (1 << 25)))
    start = data.draw(st.integers(0, 9))
    stop = data.draw(st.integers(start + 1, start + 12))
    source = table(data.draw, producers[0], start, stop)
    target = table(data.draw, consumers[0], start, stop)
    consumer = data.draw(st.sampled_from(consumers))
    edges = [
        e for e in edges_between(producers[-1], consumers[0]) if e.consumer_rank == consumer.rank
    ]
    copied: list[tuple[int, int]] = []
    plans = []
    oracle: dict[int, set[int]] = {}
    for producer in producers:
        check_shard(producer, Limits())
        pairs = naive_plan(producer, consumer, source, target, start, stop)
        for at, taken in pairs.items():
            oracle.setdefault(at, set()).add(taken)
    for edge in edges:
        geometry = EdgeGeometry.build(producers[edge.producer_rank], consumer, edge)
        plans.append(geometry.plan(source, target, start, stop))
        copied += as_pairs(plans[-1])
    assert len({at for at, _ in copied}) == len(copied)
    assert {at for at, _ in copied} == set(oracle)
    assert all(taken in oracle[at] for at, taken in copied)
    check_exactly_once(consumer, target, start, stop, plans)


@MODEST
@given(st.data())
def test_wanted_bytes_are_the_oracles(data: st.DataObject) -> None:
    shard = data.draw(st.sampled_from(data.draw(engine(4, 2, 1 << 40))))
    start = data.draw(st.integers(0, 9))
    stop = data.draw(st.integers(start + 1, start + 12))
    blocks = table(data.draw, shard, start, stop)
    address, length = wanted_ranges(shard, blocks, start, stop)
    rows = zip(address.tolist(), length.tolist(), strict=True)
    assert {a + i for a, n in rows for i in range(n)} == set(
        naive_plan(shard, shard, blocks, blocks, start, stop)
    )


@MODEST
@given(st.data())
def test_bytes_arrive_and_other_blocks_stay(data: st.DataObject) -> None:
    """Real memory: numpy buffers are the areas, and the plan is carried out on them."""
    size = 2
    producers = data.draw(engine(4, size, 1 << 40))
    consumers = data.draw(engine(4, size, 1 << 41))
    start = data.draw(st.integers(0, 6))
    stop = data.draw(st.integers(start + 1, start + 10))
    source = table(data.draw, producers[0], start, stop)
    target = table(data.draw, consumers[0], start, stop)
    consumer = data.draw(st.sampled_from(consumers))
    area = consumer.areas[0]
    assume(area.length < 1 << 16)
    memory = np.full(area.length, 0xCC, np.uint8)
    for edge in edges_between(producers[0], consumer):
        if edge.consumer_rank == consumer.rank:
            producer = producers[edge.producer_rank]
            contents = filled(producer, source, start, stop, size)
            plan = EdgeGeometry.build(producer, consumer, edge).plan(source, target, start, stop)
            rows = zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
            for s, d, n in rows:
                at = s - producer.areas[0].base
                memory[d - area.base : d - area.base + n] = contents[at : at + n]
    assert np.array_equal(memory, filled(consumer, target, start, stop, size))


def filled(shard: Shard, blocks: BlockTable, start: int, stop: int, size: int) -> Any:
    """A buffer in which the wanted bytes spell what they are, and all others are 0xCC."""
    group, area = shard.groups[0], shard.areas[0]
    buffer = np.full(area.length, 0xCC, np.uint8)
    for plane, token in itertools.product(group.planes, range(start, stop)):
        entry, inside = divmod(token - blocks.first_token, group.tokens_per_block)
        part, slot = divmod(inside, group.slots_per_physical)
        block = int(blocks.blocks[entry]) * group.physical_per_block + part
        for place, layer in enumerate(group.layers):
            for head in range(group.head_start, group.head_stop):
                at = plane.offset + place * group.stride_layer + block * group.stride_block
                at += (head - group.head_start) * group.stride_head + slot * group.stride_slot
                for byte in range(size):
                    name = (plane.name, layer, head, token, byte)
                    buffer[at + byte] = sum(map(ord, repr(name))) * 31 % 251 % 0xCB
    return buffer
