"""Through a staging buffer the same bytes arrive as directly, whatever the shapes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import Shard
from kvxfer.layout.permute import Buffer, apply_permute
from kvxfer.layout.plan import Plan
from kvxfer.layout.staging import Side, Staging
from kvxfer.layout.translate import EdgeGeometry

sys.path.insert(0, str(Path(__file__).parent))
from layout_shapes import Case, cases

STAGED = settings(max_examples=150, deadline=None, derandomize=True)
STAGING = 1 << 50


def memory_of(shard: Shard, seed: int) -> list[Buffer]:
    rng = np.random.default_rng(seed)
    return [Buffer(a.base, rng.integers(0, 256, a.length, np.uint8)) for a in shard.areas]


def copy(plan: Plan, sources: list[Buffer], targets: list[Buffer]) -> None:
    for src, dst, size in zip(
        *(c.tolist() for c in (plan.src, plan.dst, plan.length)), strict=True
    ):
        here = next(b for b in sources if b.base <= src and src + size <= b.base + b.data.size)
        there = next(b for b in targets if b.base <= dst and dst + size <= b.base + b.data.size)
        piece = here.data[src - here.base : src - here.base + size]
        there.data[dst - there.base : dst - there.base + size] = piece


@STAGED
@given(cases(), st.sampled_from(list(Side)), st.sampled_from([1, 1, 2, 100]), st.data())
def test_staged_bytes_are_those_of_the_direct_plan(
    case: Case, side: Side, entries: int, data: st.DataObject
) -> None:
    edge = data.draw(st.sampled_from(edges_between(case.producers[0], case.consumers[0])))
    producer, consumer = case.producers[edge.producer_rank], case.consumers[edge.consumer_rank]
    direct = EdgeGeometry.build(producer, consumer, edge)
    block = Staging.build(direct, side, STAGING, 1 << 60)
    room = block.staging_bytes // block.entries * entries
    staging = Staging.build(direct, side, STAGING, room)
    assert staging.staging_bytes <= room
    here = memory_of(producer, 1)
    wanted, got = memory_of(consumer, 2), memory_of(consumer, 2)
    arguments = (case.source, case.target, case.start, case.stop)
    copy(direct.plan(*arguments), here, wanted)
    ranges = 0
    for turn in staging.rounds(*arguments):
        buffer = [Buffer(STAGING, np.zeros(room, np.uint8))]
        ranges += turn.plan.descriptor_count
        if side is Side.PRODUCER:
            for permute in turn.permutes:
                apply_permute(permute, here, buffer, pieces_max=3)
            copy(turn.plan, buffer, got)
        else:
            copy(turn.plan, here, buffer)
            for permute in turn.permutes:
                apply_permute(permute, buffer, got)
        moved = sum(permute.bytes_total for permute in turn.permutes)
        assert moved == turn.plan.bytes_total
    assert ranges == staging.range_count(*arguments)
    for a, b in zip(wanted, got, strict=True):
        assert np.array_equal(a.data, b.data)
