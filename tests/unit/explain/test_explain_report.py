"""Reasons agree with plans; edges, owners, parts and refusals are those of the layout room."""

from __future__ import annotations

import math

import pytest
from explain_pairs import engine
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.explain.joins import Join, joins_of
from kvxfer.explain.report import Report, explain
from kvxfer.explain.sample import sample_of
from kvxfer.layout.choice import Room
from kvxfer.layout.edges import edges_of
from kvxfer.layout.orders import ORDERS

orders = st.sampled_from(ORDERS)
PLANE_ORDERS = [*ORDERS, "LBPHNC", "LBPNHC", "BLPHNC"]


@given(
    here=st.sampled_from(PLANE_ORDERS),
    there=st.sampled_from(PLANE_ORDERS),
    tp=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(st.sampled_from([4, 6]), st.sampled_from([4, 6, 8])),
    planes=st.sampled_from([("kv",), ("k", "v")]),
)
def test_the_run_is_the_longest_range_of_a_plan(
    here: str,
    there: str,
    tp: tuple[int, int],
    sizes: tuple[int, int],
    planes: tuple[str, ...],
) -> None:
    producers = engine(here, tp[0], 1, tokens_per_block=sizes[0], planes=planes)
    consumers = engine(there, tp[1], 2, tokens_per_block=sizes[1], planes=planes)
    for src in producers:
        for dst in consumers:
            for edge in edges_of(src, dst, src.rank, dst.rank):
                plan = sample_of(src, dst, edge, neighbours=False).plan
                joins = joins_of(src, dst, edge)
                assert max(join.run_bytes for join in joins) == int(plan.length.max())
                assert sorted(name for join in joins for name in join.planes) == sorted(planes)
                # What did not join is what multiplies the ranges, for equal blocks.
                if sizes[0] == sizes[1]:
                    assert plan.descriptor_count == 4 * sum(_per_block(join) for join in joins)


def _per_block(join: Join) -> int:
    return join.starts * math.prod(left.count for left in join.left)


@given(here=orders, there=orders)
def test_neighbouring_blocks_join_where_it_says_so(here: str, there: str) -> None:
    (src,), (dst,) = engine(here, 1, 1), engine(there, 1, 2)
    (edge,) = edges_of(src, dst, 0, 0)
    apart = sample_of(src, dst, edge, neighbours=False).plan.descriptor_count
    row = sample_of(src, dst, edge, neighbours=True).plan.descriptor_count
    (join,) = joins_of(src, dst, edge)
    assert (row < apart) == (not join.blocks_apart)


def reasons(report: Report) -> dict[str, str]:
    return {left.axis: left.reason for left in report.edges[0].joins[0].left}


def test_reasons_of_a_transpose() -> None:
    said = reasons(explain(engine("LBHNC"), engine("LBNHC", number=2)))
    assert said.keys() == {"slot", "head", "layer"}
    assert said["slot"] == (
        "at the consumer the next is 128 bytes on: the other heads in between; "
        "at the producer it would follow at once"
    )
    assert "other blocks" in said["layer"]


def test_reasons_of_unequal_tp() -> None:
    said = reasons(explain(engine("BLHNC", 2), engine("BLHNC", 1, 2)))
    assert said == {
        "layer": "at the consumer the next is 512 bytes on: 2 heads not of this edge in "
        "between; at the producer it would follow at once"
    }


def test_edges_of_three_ranks_to_two() -> None:
    report = explain(engine("BHLNC", 3, heads_total=8), engine("BHLNC", 2, 2, heads_total=8))
    pairs = [(e.edge.producer_rank, e.edge.consumer_rank, e.ranges) for e in report.edges]
    assert pairs == [(0, 0, 4), (1, 0, 4), (1, 1, 4), (2, 1, 4)]
    assert report.parts(0) == [(0, "kv"), (1, "kv")]
    assert report.parts(1) == [(1, "kv"), (2, "kv")]


def test_replicas_are_named() -> None:
    report = explain(engine(tp=4, heads_total=2), engine(tp=2, number=2, heads_total=2))
    assert [edge.owner_of for edge in report.edges] == [(0, 1), (2, 3)]


def test_a_shard_that_is_not_at_hand() -> None:
    report = explain(engine(tp=2)[:1], engine(number=2))
    known, unknown = report.edges
    assert known.ranges is not None
    assert unknown.ranges is None
    assert unknown.missing == "the shard of producer rank 1 is not in its file"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"heads_total": 8}, "heads_total is 8 at the producer and 4"),
        ({"content_bytes": 16}, "planes is"),
        ({"layers": ["l0", "l1"]}, "no producer holds layer 'l2'"),
        ({"group": "other"}, "no producer holds"),
    ],
)
def test_refusals(change: dict[str, object], text: str) -> None:
    report = explain(engine(**change), engine(number=2))  # type: ignore[arg-type]
    assert report.edges == ()
    assert text in report.refused[0]
    assert report.to_plain()["served"] is False


def test_the_way_and_its_reason() -> None:
    pair = engine("LBHNC"), engine("LBNHC", number=2)
    direct, staged = explain(*pair), explain(*pair, Room(producer_bytes=1 << 20))
    assert direct.edges[0].way == "direct"
    assert staged.edges[0].way == "staged at the producer"
    assert "a permute in place of 192 ranges" in staged.edges[0].way_reason
