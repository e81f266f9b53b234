"""Every cache shape against the oracle: the plan, its strided form, its parts, what is left."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.layout.check import check_shard
from kvxfer.layout.coverage import check_exactly_once, uncovered, wanted_ranges
from kvxfer.layout.edges import Edge, edges_between
from kvxfer.layout.geometry import Shard
from kvxfer.layout.naive import naive_plan
from kvxfer.layout.parts import bytes_wanted, edges_in, part_boxes
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

sys.path.insert(0, str(Path(__file__).parent))
from layout_shapes import Case, cases

SHAPES = settings(max_examples=250, deadline=None, derandomize=True)
LIMITS = Limits()


def as_pairs(plan: Plan) -> list[tuple[int, int]]:
    rows = zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
    return [(d + i, s + i) for s, d, n in rows for i in range(n)]


def edges_to(case: Case, consumer: Shard) -> list[Edge]:
    edges = edges_between(case.producers[-1], case.consumers[0])
    return [edge for edge in edges if edge.consumer_rank == consumer.rank]


def tables_of(case: Case) -> tuple:
    return case.source, case.target


@SHAPES
@given(cases(), st.data())
def test_all_edges_of_a_consumer_are_the_oracle(case: Case, data: st.DataObject) -> None:
    for shard in (*case.producers, *case.consumers):
        check_shard(shard, LIMITS)
        assert shard_from_plain(shard_to_plain(shard), LIMITS) == shard
    consumer = data.draw(st.sampled_from(case.consumers))
    span = (case.start, case.stop)
    oracle: dict[int, set[int]] = {}
    for producer in case.producers:
        for at, taken in naive_plan(producer, consumer, *tables_of(case), *span).items():
            oracle.setdefault(at, set()).add(taken)
    copied: list[tuple[int, int]] = []
    plans = []
    for edge in edges_to(case, consumer):
        geometry = EdgeGeometry.build(case.producers[edge.producer_rank], consumer, edge)
        plan = geometry.plan(*tables_of(case), *span)
        plans.append(plan)
        copied += as_pairs(plan)
        strided = geometry.plan_strided(*tables_of(case), *span)
        assert sorted(as_pairs(strided.expand())) == sorted(as_pairs(plan))
        assert strided.descriptor_count == plan.descriptor_count
        assert strided.bytes_total == plan.bytes_total
    assert len({at for at, _ in copied}) == len(copied)
    assert {at for at, _ in copied} == set(oracle)
    assert all(taken in oracle[at] for at, taken in copied)
    check_exactly_once(consumer, case.target, *span, plans)


@SHAPES
@given(cases(), st.integers(1, 9), st.integers(1, 2), st.data())
def test_parts_together_write_every_wanted_byte_once(
    case: Case, grid_tokens: int, grid_layers: int, data: st.DataObject
) -> None:
    consumer = data.draw(st.sampled_from(case.consumers))
    edges = edges_to(case, consumer)
    plans = []
    for producer in case.producers:
        mine = [edge for edge in edges if edge.producer_rank == producer.rank]
        boxes = part_boxes(
            producer,
            consumer,
            mine,
            case.start,
            case.stop,
            grid_tokens=grid_tokens,
            grid_layers=grid_layers,
        )
        for box in boxes:
            parts = [
                EdgeGeometry.build(producer, consumer, edge).plan(
                    *tables_of(case), box.token_start, box.token_stop
                )
                for edge in edges_in(producer, mine, box)
            ]
            assert sum(part.bytes_total for part in parts) > 0
            plans += parts
    check_exactly_once(consumer, case.target, case.start, case.stop, plans)
    written = sum(plan.bytes_total for plan in plans)
    assert written == bytes_wanted(consumer, case.start, case.stop)


@SHAPES
@given(cases(), st.data())
def test_what_may_be_zeroed_is_the_rest_of_the_blocks(case: Case, data: st.DataObject) -> None:
    consumer = data.draw(st.sampled_from(case.consumers))
    group, table = consumer.groups[0], case.target
    size = group.tokens_per_entry
    first = (case.start - table.first_token) // size
    begin = table.first_token + first * size
    end = table.first_token + table.blocks.size * size
    if end > 1 << 20:
        return
    # Before the window's first token the request may lack more, which it does not need.
    clipped = group.reach is not None and case.stop - group.reach == case.start
    begin = data.draw(st.integers(begin, case.start)) if clipped else case.start
    kept = set(naive_plan(consumer, consumer, table, table, case.start, case.stop))
    whole = set(naive_plan(consumer, consumer, table, table, begin, end))
    address, length = uncovered(consumer, table, begin, case.stop)
    rows = zip(address.tolist(), length.tolist(), strict=True)
    assert {a + i for a, n in rows for i in range(n)} == whole - kept


@SHAPES
@given(cases(), st.data())
def test_wanted_bytes_are_the_oracles(case: Case, data: st.DataObject) -> None:
    consumer = data.draw(st.sampled_from(case.consumers))
    address, length = wanted_ranges(consumer, case.target, case.start, case.stop)
    rows = zip(address.tolist(), length.tolist(), strict=True)
    found = {a + i for a, n in rows for i in range(n)}
    span = (case.start, case.stop)
    assert found == set(naive_plan(consumer, consumer, case.target, case.target, *span))
    assert int(length.sum(dtype=np.uint64)) == len(found)
