"""The fast translation against the byte-by-byte oracle, over shapes, ranks and orders."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.layout.coverage import check_exactly_once, uncovered
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.naive import naive_plan
from kvxfer.layout.orders import ORDERS, area_bytes, engine_shards
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry

EXACT = settings(max_examples=150, deadline=None, derandomize=True)
LAYERS, POOL_TOKENS, CONTENT = ("a", "b"), 96, 3


@st.composite
def engines(draw: st.DrawFn, heads_total: int, planes: tuple[str, ...]) -> tuple[Shard, ...]:
    """One engine: TP size, order, block size and physical split drawn."""
    tp_size = draw(st.sampled_from([1, 2, 3, 4]))
    tokens = draw(st.sampled_from([2, 4, 6, 12]))
    physical = draw(st.sampled_from([n for n in (1, 2, 3) if tokens % n == 0]))
    base = draw(st.integers(0, 7))
    blocks = POOL_TOKENS // tokens + 1
    size = area_bytes(
        layers=len(LAYERS),
        blocks=blocks,
        heads=heads_total,
        tokens_per_block=tokens,
        content_bytes=CONTENT,
        planes=len(planes),
    )
    return engine_shards(
        bases=[1 << 20 | base + rank * size for rank in range(tp_size)],
        order=draw(st.sampled_from(ORDERS)),
        layers=LAYERS,
        blocks=blocks,
        tokens_per_block=tokens,
        heads_total=heads_total,
        content_bytes=CONTENT,
        planes=planes,
        physical_per_block=physical,
        null_block=0,
    )


def tables(draw: st.DrawFn, shard: Shard, first: int, stop: int) -> BlockTable:
    """Blocks in any order for tokens from `first` on, aligned or not."""
    group = shard.groups[0]
    count = -(-(stop - first) // group.tokens_per_block)
    ids = draw(st.permutations(range(1, group.manager_blocks)))[:count]
    return BlockTable(group=0, first_token=first, blocks=np.array(ids, np.int64))


@st.composite
def cases(draw: st.DrawFn):
    heads_total = draw(st.sampled_from([1, 2, 3, 4, 6]))
    planes = draw(st.sampled_from([("kv",), ("k", "v")]))
    producers = draw(engines(heads_total, planes))
    consumers = draw(engines(heads_total, planes))
    stop = draw(st.integers(1, 30))
    start = draw(st.integers(0, stop - 1))
    first_here = draw(st.integers(0, start))
    first_there = draw(st.integers(0, start))
    sources = {s.rank: tables(draw, s, first_here, stop) for s in producers[:1]}
    targets = {s.rank: tables(draw, s, first_there, stop) for s in consumers[:1]}
    return producers, consumers, sources[0], targets[0], start, stop


def as_pairs(plan: Plan) -> dict[int, int]:
    pairs: dict[int, int] = {}
    for src, dst, length in zip(
        plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True
    ):
        for i in range(length):
            assert dst + i not in pairs, "a byte is written twice by one plan"
            pairs[dst + i] = src + i
    return pairs


@EXACT
@given(cases())
def test_every_consumer_byte_comes_from_the_right_place_exactly_once(case) -> None:
    producers, consumers, source, target, start, stop = case
    edges = edges_between(producers[0], consumers[0])
    for consumer in consumers:
        plans = []
        for edge in (e for e in edges if e.consumer_rank == consumer.rank):
            producer = producers[edge.producer_rank]
            plan = EdgeGeometry.build(producer, consumer, edge).plan(source, target, start, stop)
            plans.append(plan)
            # With replicas the oracle knows more than this edge has to carry.
            assert (
                as_pairs(plan).items()
                <= naive_plan(producer, consumer, source, target, start, stop).items()
            )
        check_exactly_once(consumer, target, start, stop, plans)


@EXACT
@given(cases())
def test_what_may_be_zeroed_is_all_behind_the_tokens_and_nothing_before(case) -> None:
    _, consumers, _, target, start, stop = case
    shard = consumers[0]
    end = target.first_token + target.blocks.size * shard.groups[0].tokens_per_block
    behind = naive_plan(shard, shard, target, target, stop, end)
    address, length = uncovered(shard, target, start, stop)
    left = {int(a) + i for a, n in zip(address, length, strict=True) for i in range(int(n))}
    assert left == set(behind)


@EXACT
@given(cases())
def test_copying_the_plan_moves_the_bytes_and_touches_nothing_else(case) -> None:
    producers, consumers, source, target, start, stop = case
    edges = edges_between(producers[0], consumers[0])
    consumer = consumers[-1]
    area = consumer.areas[0]
    memory = np.full(area.length, 0xCC, np.uint8)
    written = set()
    for edge in (e for e in edges if e.consumer_rank == consumer.rank):
        producer = producers[edge.producer_rank]
        here = producer.areas[0]
        contents = np.random.default_rng(producer.rank).integers(0, 256, here.length, np.uint8)
        plan = EdgeGeometry.build(producer, consumer, edge).plan(source, target, start, stop)
        for s, d, n in zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True):
            piece = contents[s - here.base : s - here.base + n]
            memory[d - area.base : d - area.base + n] = piece
        for d, s in as_pairs(plan).items():
            assert memory[d - area.base] == contents[s - here.base]
            written.add(d - area.base)
    untouched = np.ones(area.length, bool)
    untouched[sorted(written)] = False
    assert (memory[untouched] == 0xCC).all()
