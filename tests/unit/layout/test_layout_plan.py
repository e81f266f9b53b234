"""Plans with numbers worked out by hand, and edges between unlike engines."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.coverage import check_exactly_once
from kvxfer.layout.edges import Edge, edges_between
from kvxfer.layout.geometry import BlockTable, Holding, RankHolding, Shard
from kvxfer.layout.orders import area_bytes, engine_shards
from kvxfer.layout.plan import Plan, coalesce
from kvxfer.layout.translate import EdgeGeometry, plan_edge

LAYERS = tuple(f"layer.{n}" for n in range(8))


def engine(tp_size: int = 1, **changes: object) -> tuple[Shard, ...]:
    settings = {
        "layers": LAYERS,
        "blocks": 64,
        "tokens_per_block": 16,
        "heads_total": 8,
        "content_bytes": 32,
    } | changes
    size = area_bytes(
        layers=len(settings["layers"]),
        blocks=settings["blocks"],
        heads=settings["heads_total"],
        tokens_per_block=settings["tokens_per_block"],
        content_bytes=settings["content_bytes"],
    )
    return engine_shards(bases=[1 << 20 | rank * size for rank in range(tp_size)], **settings)


def table(blocks: list[int], first: int = 0) -> BlockTable:
    return BlockTable(group=0, first_token=first, blocks=np.array(blocks, np.int64))


def count(src: Shard, dst: Shard, source: list[int], target: list[int]) -> int:
    (edge,) = [
        e
        for e in edges_between(src, dst)
        if (e.producer_rank, e.consumer_rank) == (src.rank, dst.rank)
    ]
    tokens = len(target) * dst.groups[0].tokens_per_block
    plan = plan_edge(src, dst, edge, table(source), table(target), 0, tokens)
    assert plan.bytes_total == tokens * len(LAYERS) * (edge.head_stop - edge.head_start) * 32
    return plan.descriptor_count


SCATTERED = [2 * n + 1 for n in range(20)]
TOGETHER = list(range(3, 23))


@pytest.mark.parametrize(
    ("order", "scattered", "together"),
    [
        ("LBHNC", 8 * 20, 8),
        ("LBNHC", 8 * 20, 8),
        ("LHBNC", 8 * 8 * 20, 8 * 8),
        ("BLHNC", 20, 1),
        ("BLNHC", 20, 1),
        ("BHLNC", 20, 1),
    ],
)
def test_ranges_for_equal_engines(order: str, scattered: int, together: int) -> None:
    """The table of vLLM-contract 4.4, first column: L x runs, L x H x runs, runs."""
    (p,), (d,) = engine(order=order), engine(order=order)
    assert count(p, d, SCATTERED, SCATTERED) == scattered
    assert count(p, d, TOGETHER, TOGETHER) == together


@pytest.mark.parametrize(
    ("order", "ranges"),
    [("LBHNC", 8 * 20), ("LBNHC", 8 * 20 * 16), ("BLHNC", 8 * 20), ("BHLNC", 20)],
)
def test_ranges_for_split_heads(order: str, ranges: int) -> None:
    """Second column: a part of each page, or of each slot; block-outermost heads stay whole."""
    p, d = engine(2, order=order), engine(1, order=order)
    assert count(p[0], d[0], SCATTERED, SCATTERED) == ranges


def test_sixteen_to_twenty_four() -> None:
    """Cuts at both grids: 48 tokens are 3 blocks of 16 and 2 of 24, so 4 pieces a layer."""
    (p,), (d,) = engine(order="LBNHC"), engine(order="LBNHC", tokens_per_block=24)
    assert count(p, d, [1, 3, 5], [7, 9]) == 8 * 4


def test_opposite_orders_fall_to_single_slots() -> None:
    (p,), (d,) = engine(order="LBHNC"), engine(order="LBNHC")
    assert count(p, d, [1], [2]) == 8 * 8 * 16


def test_too_many_ranges_are_refused() -> None:
    (p,), (d,) = engine(order="LBHNC"), engine(order="LBNHC")
    (edge,) = edges_between(p, d)
    geometry = EdgeGeometry.build(p, d, edge)
    with pytest.raises(LayoutMismatch, match="1024 ranges, at most 1000"):
        geometry.plan(table([1]), table([2]), 0, 16, descriptors_max=1000)


def pairs(edges: tuple[Edge, ...]) -> list[tuple[int, int, int, int]]:
    return [(e.producer_rank, e.consumer_rank, e.head_start, e.head_stop) for e in edges]


def test_edges_three_to_two() -> None:
    edges = edges_between(engine(3, heads_total=6)[0], engine(2, heads_total=6)[0])
    assert pairs(edges) == [(0, 0, 0, 2), (1, 0, 2, 3), (1, 1, 3, 4), (2, 1, 4, 6)]


def test_replicas_at_the_producer_share_the_work() -> None:
    """Four ranks hold two heads twice: each of two consumers of a head has its own giver."""
    edges = edges_between(engine(4, heads_total=2)[0], engine(4, heads_total=2)[0])
    assert pairs(edges) == [(0, 0, 0, 1), (1, 1, 0, 1), (2, 2, 1, 2), (3, 3, 1, 2)]


def test_replicas_at_the_consumer_are_all_written() -> None:
    """[H-08] Every replica gets an edge of its own."""
    edges = edges_between(engine(1, heads_total=1)[0], engine(4, heads_total=1)[0])
    assert pairs(edges) == [(0, rank, 0, 1) for rank in range(4)]


def staged(shards: tuple[Shard, ...], layers: list[tuple[str, ...]]) -> Shard:
    """A rank map in which each rank holds its own layers: pipeline stages."""
    ranks = tuple(
        RankHolding(
            rank=rank, holdings=(Holding(group="kv", head_start=0, head_stop=8, layers=names),)
        )
        for rank, names in enumerate(layers)
    )
    group = attrs.evolve(shards[0].groups[0], layers=layers[0])
    return attrs.evolve(shards[0], ranks=ranks, groups=(group,))


def test_pipeline_stages_are_paired_by_layer_name() -> None:
    """[H-09]"""
    p = staged(engine(), [LAYERS[:3], LAYERS[3:]])
    edges = edges_between(p, engine()[0])
    assert [(e.producer_rank, e.layers) for e in edges] == [(0, LAYERS[:3]), (1, LAYERS[3:])]


def test_a_layer_that_nobody_holds_is_refused_by_name() -> None:
    p = staged(engine(), [LAYERS[:3], LAYERS[4:]])
    with pytest.raises(LayoutMismatch, match=r"'layer\.3', heads 0 to 7"):
        edges_between(p, engine()[0])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"heads_total": 4}, "heads_total"),
        ({"content_bytes": 16}, "planes"),
        ({"planes": ("k", "v")}, "planes"),
        ({"group": "other"}, "group 'kv'"),
    ],
)
def test_unlike_models_are_refused(changes: dict, what: str) -> None:
    with pytest.raises(LayoutMismatch, match=what):
        edges_between(engine(**changes)[0], engine()[0])


def test_coalesce_joins_what_follows_on_both_sides() -> None:
    def column(*values: int) -> np.ndarray:
        return np.array(values, np.uint64)

    plan = Plan(column(0, 10, 20, 40, 50), column(100, 110, 130, 140, 150), column(*[10] * 5))
    joined = coalesce(plan)
    assert joined.src.tolist() == [0, 20, 40]
    assert joined.dst.tolist() == [100, 130, 140]
    assert joined.length.tolist() == [20, 10, 20]


def test_coverage_finds_a_gap_an_overlap_and_a_stray_byte() -> None:
    (p,), (d,) = engine(), engine()
    (edge,) = edges_between(p, d)
    source, target = table([1, 2]), table([5, 9])
    plan = plan_edge(p, d, edge, source, target, 0, 32)
    check_exactly_once(d, target, 0, 32, [plan])
    with pytest.raises(LayoutMismatch, match="only wanted"):
        check_exactly_once(d, target, 0, 32, [plan.window(1, plan.descriptor_count)])
    with pytest.raises(LayoutMismatch, match="written twice"):
        check_exactly_once(d, target, 0, 32, [plan, plan.window(3, 4)])
    with pytest.raises(LayoutMismatch, match="only"):
        check_exactly_once(d, target, 0, 31, [plan])


def test_an_empty_span_needs_nothing() -> None:
    (p,), (d,) = engine(), engine()
    (edge,) = edges_between(p, d)
    assert plan_edge(p, d, edge, table([1]), table([2]), 7, 7).descriptor_count == 0
