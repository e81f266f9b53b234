"""Descriptor counts worked out by hand, and the borders of the translation."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pytest

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.check import check_shard
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import Area, BlockTable, Shard
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry, plan_edge
from kvxfer.limits import Limits

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 8, 16, 4, 4, 32
NAMES = tuple(f"layers.{n}" for n in range(LAYERS))
PAGE = HEADS * TOKENS * CONTENT


def engine(
    order: str = "LBHNC", ranks: int = 1, base: int = 1 << 20, **other: object
) -> list[Shard]:
    fields: dict[str, object] = {
        "bases": [base + (rank << 24) for rank in range(ranks)],
        "order": order,
        "layers": NAMES,
        "blocks": 2 * BLOCKS,
        "tokens_per_block": TOKENS,
        "heads_total": HEADS,
        "content_bytes": CONTENT,
    }
    return list(engine_shards(**(fields | other)))  # type: ignore[arg-type]


def table(blocks: Sequence[int], first_token: int = 0) -> BlockTable:
    return BlockTable(group=0, first_token=first_token, blocks=np.array(blocks, np.int64))


def plan_of(p: Shard, d: Shard, source: BlockTable, target: BlockTable, stop: int) -> Plan:
    edge = next(
        e for e in edges_between(p, d) if (e.producer_rank, e.consumer_rank) == (p.rank, d.rank)
    )
    return plan_edge(p, d, edge, source, target, 0, stop)


SCATTERED = table([2 * n for n in range(BLOCKS)])
CONSECUTIVE = table(range(1, BLOCKS + 1))


@pytest.mark.parametrize(
    ("order", "planes", "blocks", "count"),
    [
        # vllm-contract 4.5 in small: layers x blocks, twice for planes apart, blocks, layers, one.
        ("LBHNC", ("kv",), SCATTERED, LAYERS * BLOCKS),
        ("LBHNC", ("k", "v"), SCATTERED, 2 * LAYERS * BLOCKS),
        ("LBPHNC", ("k", "v"), SCATTERED, LAYERS * BLOCKS),
        ("BHLNC", ("kv",), SCATTERED, BLOCKS),
        ("BLHNC", ("kv",), SCATTERED, BLOCKS),
        ("BPLHNC", ("k", "v"), SCATTERED, BLOCKS),
        ("LBHNC", ("kv",), CONSECUTIVE, LAYERS),
        ("BHLNC", ("kv",), CONSECUTIVE, 1),
        ("LHBNC", ("kv",), CONSECUTIVE, LAYERS * HEADS),
    ],
)
def test_descriptors_of_equal_layouts(
    order: str, planes: tuple[str, ...], blocks: BlockTable, count: int
) -> None:
    p, d = engine(order, planes=planes)[0], engine(order, planes=planes, base=1 << 40)[0]
    plan = plan_of(p, d, blocks, blocks, BLOCKS * TOKENS)
    assert plan.descriptor_count == count
    assert plan.bytes_total == LAYERS * BLOCKS * PAGE * len(planes)


@pytest.mark.parametrize(
    ("order", "count", "piece"),
    [
        ("LBHNC", LAYERS * BLOCKS, PAGE // 2),
        ("BHLNC", BLOCKS, LAYERS * PAGE // 2),
        ("BLHNC", LAYERS * BLOCKS, PAGE // 2),
        ("LBNHC", LAYERS * BLOCKS * TOKENS, HEADS // 2 * CONTENT),
        ("LHBNC", LAYERS * HEADS // 2 * BLOCKS, TOKENS * CONTENT),
    ],
)
def test_descriptors_of_split_heads(order: str, count: int, piece: int) -> None:
    """TP 2 to 1: each source rank sends its half of every page."""
    d = engine(order, base=1 << 40)[0]
    for p in engine(order, ranks=2):
        plan = plan_of(p, d, SCATTERED, SCATTERED, BLOCKS * TOKENS)
        assert plan.descriptor_count == count
        assert set(plan.length.tolist()) == {piece}


@pytest.mark.parametrize(
    ("order", "count"),
    [("LBNHC", LAYERS), ("LBHNC", LAYERS * HEADS * 16), ("BLNHC", LAYERS * 16)],
)
def test_blocks_of_16_to_24_consecutive(order: str, count: int) -> None:
    """192 tokens are cut at 12 + 8 borders, of which 4 coincide: 16 pieces (contract 4.4)."""
    p = engine(order, tokens_per_block=16, blocks=20)[0]
    d = engine(order, tokens_per_block=24, blocks=20, base=1 << 40)[0]
    plan = plan_of(p, d, table(range(3, 15)), table(range(5, 13)), 192)
    assert plan.descriptor_count == count
    assert plan.bytes_total == LAYERS * HEADS * 192 * CONTENT


def test_unlike_inner_orders_move_single_contents() -> None:
    p, d = engine("LBHNC")[0], engine("LBNHC", base=1 << 40)[0]
    plan = plan_of(p, d, table([3]), table([5]), TOKENS)
    assert set(plan.length.tolist()) == {CONTENT}
    assert plan.descriptor_count == LAYERS * HEADS * TOKENS


@pytest.mark.parametrize("order", ORDERS)
def test_one_known_address(order: str) -> None:
    """Token 6 of head 2 in layer 1, followed by hand through the strides."""
    p, d = engine(order)[0], engine(order, base=1 << 40)[0]
    source, target = table([7, 9]), table([4, 2])
    plan = plan_edge(p, d, edges_between(p, d)[0], source, target, 6, 7)
    here, there = p.groups[0], d.groups[0]
    inside = here.stride_layer + 2 * here.stride_head + 2 * here.stride_slot
    want_src = (1 << 20) + 9 * here.stride_block + inside
    want_dst = (1 << 40) + 2 * there.stride_block + inside
    hits = [
        (s, t)
        for s, t, n in zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
        if s <= want_src < s + n
    ]
    assert [t + (want_src - s) for s, t in hits] == [want_dst]


def test_tables_in_opposite_order_still_join() -> None:
    p, d = engine()[0], engine(base=1 << 40)[0]
    blocks = table(range(BLOCKS, 0, -1))
    assert plan_of(p, d, blocks, blocks, BLOCKS * TOKENS).descriptor_count == LAYERS


def test_layers_listed_in_another_order_go_by_name() -> None:
    p, d = engine()[0], engine(base=1 << 40, layers=tuple(reversed(NAMES)))[0]
    plan = plan_of(p, d, table([0]), table([0]), TOKENS)
    step = p.groups[0].stride_layer
    layers = sorted(
        ((s - (1 << 20)) // step, (t - (1 << 40)) // step)
        for s, t in zip(plan.src.tolist(), plan.dst.tolist(), strict=True)
    )
    assert layers == [(n, LAYERS - 1 - n) for n in range(LAYERS)]


def test_planes_listed_in_another_order_go_by_name() -> None:
    p = engine(planes=("k", "v"))[0]
    d = engine(planes=("v", "k"), base=1 << 40)[0]
    plan = plan_of(p, d, table([0]), table([0]), TOKENS)
    offset = p.groups[0].planes[1].offset
    first = dict(zip(plan.src.tolist(), plan.dst.tolist(), strict=True))
    assert first[1 << 20] == (1 << 40) + offset
    assert first[(1 << 20) + offset] == 1 << 40


@pytest.mark.parametrize("base", [1 << 63, (1 << 64) - (1 << 20)])
def test_memory_anywhere_in_the_64_bit_space(base: int) -> None:
    p, d = engine()[0], engine(base=base)[0]
    check_shard(d, Limits())
    plan = plan_of(p, d, table([1]), table([2]), TOKENS)
    assert int(plan.dst.min()) == base + 2 * PAGE


def test_the_stride_of_an_axis_of_one_means_nothing() -> None:
    p, d = engine()[0], engine(base=1 << 40)[0]
    lone = attrs.evolve(d.groups[0], physical_blocks=1, stride_block=(1 << 64) - 1)
    d = attrs.evolve(d, groups=(lone,))
    check_shard(d, Limits())
    plan = plan_of(p, d, table([1]), table([0]), TOKENS)
    assert plan.bytes_total == LAYERS * PAGE


def test_the_bound_counts_the_whole_plan() -> None:
    p, d = engine()[0], engine(base=1 << 40, layers=tuple(reversed(NAMES)))[0]
    geometry = EdgeGeometry.build(p, d, edges_between(p, d)[0])
    blocks = table([0])
    assert geometry.plan(blocks, blocks, 0, TOKENS, LAYERS).descriptor_count == LAYERS
    with pytest.raises(LayoutMismatch, match=f"need {LAYERS} ranges"):
        geometry.plan(blocks, blocks, 0, TOKENS, LAYERS - 1)


def test_a_bound_far_below_the_cuts_is_noticed_before_they_are_made() -> None:
    p = engine(tokens_per_block=1 << 40, physical_per_block=1 << 40, blocks=1, layers=("a",))[0]
    tokens = table([0])
    with pytest.raises(LayoutMismatch, match="ranges, at most"):
        plan_of(p, p, tokens, tokens, 1 << 40)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (table([1], first_token=4), "table"),
        (table([1]), "table"),
        (table([1, 99]), "table.blocks"),
        (attrs.evolve(table([1, 2]), group=1), "table.group"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(source: BlockTable, field: str) -> None:
    p, d = engine()[0], engine(base=1 << 40)[0]
    with pytest.raises(BadValue) as caught:
        plan_of(p, d, source, table([1, 2]), 2 * TOKENS)
    assert caught.value.field == field


def test_windows_and_concat() -> None:
    p, d = engine()[0], engine(base=1 << 40)[0]
    plan = plan_of(p, d, SCATTERED, SCATTERED, BLOCKS * TOKENS)
    halves = [plan.window(0, 50), plan.window(50, plan.descriptor_count)]
    assert halves[0].descriptor_count == 50
    whole = Plan.concat(halves)
    for name in ("src", "dst", "length"):
        assert np.array_equal(getattr(whole, name), getattr(plan, name))
    assert Plan.concat([]).bytes_total == 0
    assert plan_of(p, d, table([]), table([]), 0).descriptor_count == 0


def test_a_range_never_leaves_its_area() -> None:
    """Layers in areas of their own that touch: registered apart, so written apart."""
    (one,) = engine(layers=("a", "b"), blocks=1)
    length = one.areas[0].length // 2
    areas = tuple(Area(base=one.areas[0].base + n * length, length=length) for n in range(2))
    (plane,) = one.groups[0].planes
    group = attrs.evolve(one.groups[0], planes=(attrs.evolve(plane, layer_areas=(0, 1)),))
    apart = attrs.evolve(one, areas=areas, groups=(group,))
    check_shard(apart, Limits())
    (edge,) = edges_between(apart, one)
    whole = EdgeGeometry.build(one, one, edge).plan(table([0]), table([0]), 0, TOKENS)
    assert whole.length.tolist() == [2 * length]
    plan = EdgeGeometry.build(apart, one, edge).plan(table([0]), table([0]), 0, TOKENS)
    assert plan.length.tolist() == [length, length]
