"""Which translations are timed: engines, orders, sizes.

Owns the list of cases and how each becomes shards and tables. Knows no clock.
Invariant: the geometry of a case is worked out before it is timed, as in a driver; what
is timed is what one more request costs one consumer rank.

All cases are 64 layers, 8 heads, 512 bytes of content (128 elements each of K and V, 2
bytes) unless they say otherwise: 4 GiB for 16,384 tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

from kvxfer.bench.blocks import STEADY_RUN, draw_tables, joint_runs
from kvxfer.bench.harness import Case, Fact
from kvxfer.errors import KvxferError, LayoutMismatch
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.plan import Plan
from kvxfer.layout.staging import Side as StagingSide
from kvxfer.layout.staging import Staging
from kvxfer.layout.translate import EdgeGeometry

LAYERS = tuple(f"layer.{index}" for index in range(64))
HEADS = 8
CONTENT_BYTES = 512
BLOCK_TOKENS = 16
TOKENS = 16_384
POOL_TOKENS = 16 * TOKENS
"""Tokens that either engine's cache has room for."""
ENGINE_SPAN = 1 << 60
RANK_SPAN = 1 << 48
"""Addresses are numbers here: nothing is allocated."""


@attrs.frozen(kw_only=True)
class Side:
    """One engine of a case."""

    order: str
    tp: int = 1
    block_tokens: int = BLOCK_TOKENS
    stages: int = 1
    planes: tuple[str, ...] = ("kv",)


@attrs.frozen(kw_only=True)
class LayoutCase:
    """A pair of engines and one request."""

    name: str
    producer: Side
    consumer: Side
    tokens: int = TOKENS
    mean_run: float = STEADY_RUN
    aim_ms: float | None = None
    """What issue 4 asks for, where it asks."""
    staging_bytes: int = 0
    """Room for a staging buffer at the producer; the case then goes that way."""
    ranges_per_edge_max: int | None = None
    """A promise of the design, checked at every run: more ranges are an error."""


def _alike(name: str, order: str, **more: float) -> LayoutCase:
    side = Side(order=order)
    return LayoutCase(name=name, producer=side, consumer=side, **more)  # type: ignore[arg-type]


def _pair(name: str, producer: Side, consumer: Side) -> LayoutCase:
    return LayoutCase(name=name, producer=producer, consumer=consumer)


def _unequal_tp(order: str, producer_tp: int, consumer_tp: int) -> LayoutCase:
    whole_rows = order == "BHLNC"
    return LayoutCase(
        name=f"{order}, TP {producer_tp} to {consumer_tp}",
        producer=Side(order=order, tp=producer_tp),
        consumer=Side(order=order, tp=consumer_tp),
        ranges_per_edge_max=TOKENS // BLOCK_TOKENS if whole_rows else None,
    )


AIMED = (
    _alike("LBHNC to LBHNC", "LBHNC", aim_ms=1.0),
    _alike("LBHNC to LBHNC, runs of 1", "LBHNC", mean_run=1.0, aim_ms=1.0),
    _alike("BLHNC to BLHNC", "BLHNC", aim_ms=0.1),
    _alike("BLHNC to BLHNC, runs of 1", "BLHNC", mean_run=1.0, aim_ms=0.1),
    _alike("BHLNC to BHLNC, runs of 1", "BHLNC", mean_run=1.0, aim_ms=0.1),
)
OTHER_ORDERS = (
    _alike("LBNHC to LBNHC", "LBNHC"),
    _alike("LHBNC to LHBNC", "LHBNC"),
    _alike("BLNHC to BLNHC", "BLNHC"),
    _pair("LBHNC to BLHNC", Side(order="LBHNC"), Side(order="BLHNC")),
    _pair("BLHNC to BHLNC", Side(order="BLHNC"), Side(order="BHLNC")),
    _pair("LBHNC to LBNHC", Side(order="LBHNC"), Side(order="LBNHC")),
    attrs.evolve(
        _pair("LBHNC to LBNHC, staged in 64 MiB", Side(order="LBHNC"), Side(order="LBNHC")),
        staging_bytes=64 << 20,
    ),
    _alike("LBHNC to LBHNC, one run", "LBHNC", mean_run=float(TOKENS // 16)),
    _pair(
        "LBHNC to LBHNC, K and V apart",
        Side(order="LBHNC", planes=("k", "v")),
        Side(order="LBHNC", planes=("k", "v")),
    ),
    _pair("LBHNC to LBHNC, PP 2 to 1", Side(order="LBHNC", stages=2, tp=2), Side(order="LBHNC")),
)
UNEQUAL_TP = (
    _unequal_tp("BHLNC", 8, 4),
    _unequal_tp("BHLNC", 4, 8),
    _unequal_tp("BHLNC", 3, 2),
    _unequal_tp("BLHNC", 8, 4),
    _unequal_tp("LBHNC", 8, 4),
)
UNEQUAL_BLOCKS = tuple(
    _pair(
        f"{order}, block 16 to {size}",
        Side(order=order),
        Side(order=order, block_tokens=size),
    )
    for order, size in (("LBNHC", 24), ("LBNHC", 32), ("BLNHC", 32), ("LBHNC", 32), ("BHLNC", 24))
)
GROWTH = tuple(
    attrs.evolve(_alike(f"{order}, {tokens // 1024}k tokens", order, mean_run=1.0), tokens=tokens)
    for order in ("LBHNC", "BLHNC")
    for tokens in (1024, 4096, 16_384, 65_536)
)
CASES = AIMED + OTHER_ORDERS + UNEQUAL_TP + UNEQUAL_BLOCKS + GROWTH


def shards_of(side: Side, engine: int) -> tuple[Shard, ...]:
    """All shards of one engine; `engine` (1 or 2) keeps the two apart in memory."""
    return engine_shards(
        bases=[engine * ENGINE_SPAN + rank * RANK_SPAN for rank in range(side.tp)],
        order=side.order,
        layers=LAYERS,
        blocks=POOL_TOKENS // side.block_tokens,
        tokens_per_block=side.block_tokens,
        heads_total=HEADS,
        content_bytes=CONTENT_BYTES,
        planes=side.planes,
        stages=side.stages,
        null_block=0,
    )


def tables_of(case: LayoutCase, seed: int) -> tuple[BlockTable, BlockTable]:
    """The request's blocks at either side."""
    sizes = (case.producer.block_tokens, case.consumer.block_tokens)
    pools = [POOL_TOKENS // size for size in sizes]
    # With unequal blocks there is no common run of ids; each side is drawn for itself.
    draws = [
        draw_tables(-(-case.tokens // size), pool, case.mean_run, seed)
        for size, pool in zip(sizes, pools, strict=True)
    ]
    source, target = draws[0][0], draws[1][1]
    return (
        BlockTable(group=0, first_token=0, blocks=source),
        BlockTable(group=0, first_token=0, blocks=target),
    )


def geometries(case: LayoutCase) -> list[EdgeGeometry]:
    """The edges of consumer rank 0, ready for requests: what a driver keeps per peer."""
    producer, consumer = shards_of(case.producer, 1), shards_of(case.consumer, 2)
    return [
        EdgeGeometry.build(producer[edge.producer_rank], consumer[0], edge)
        for edge in edges_between(producer[0], consumer[0])
        if edge.consumer_rank == 0
    ]


def plan_request(
    edges: Sequence[EdgeGeometry], source: BlockTable, target: BlockTable, tokens: int
) -> list[Plan]:
    """What is timed: the plans of one request, one per edge of the rank."""
    return [edge.plan(source, target, 0, tokens) for edge in edges]


def staged_request(
    edges: Sequence[Staging], source: BlockTable, target: BlockTable, tokens: int
) -> list[Plan]:
    """The same through a staging buffer: the ranges on the wire, and permutes beside them."""
    return [
        Plan.concat([one.plan for one in edge.rounds(source, target, 0, tokens)]) for edge in edges
    ]


def to_case(case: LayoutCase, seed: int) -> Case:
    """Shards, tables and one checked run; the same run is then timed.

    A pair that the layout room refuses gets a row with its reason. Raises LayoutMismatch
    where a case needs more ranges than the design promises.
    """
    source, target = tables_of(case, seed)
    facts: dict[str, Fact] = {"tokens": case.tokens}
    if source.blocks.size == target.blocks.size:
        runs = joint_runs(source.blocks, target.blocks)
        facts["mean_run"] = round(source.blocks.size / runs, 3)
    if case.aim_ms is not None:
        facts["aim_ms"] = case.aim_ms
    try:
        edges = geometries(case)
        request = (source, target, case.tokens)
        run = functools.partial(plan_request, edges, *request)
        if case.staging_bytes:
            room = (StagingSide.PRODUCER, 0, case.staging_bytes)
            staged = [Staging.build(edge, *room) for edge in edges]
            run = functools.partial(staged_request, staged, *request)
        plans = run()
    except KvxferError as error:
        return Case(name=case.name, facts=facts, skipped=f"refused: {error}")
    counts = [plan.descriptor_count for plan in plans]
    bound = case.ranges_per_edge_max
    if bound is not None and max(counts) > bound:
        raise LayoutMismatch(f"{case.name}: {max(counts)} ranges on one edge, promised {bound}")
    facts |= {"edges": len(edges), "ranges": sum(counts)}
    facts["bytes"] = sum(plan.bytes_total for plan in plans)
    return Case(name=case.name, run=run, facts=facts)
