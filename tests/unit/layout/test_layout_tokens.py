"""Shares of tokens, reach, and the cutting of parts, by hand and against a plain loop."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import (
    BlockTable,
    Group,
    GroupKind,
    RankHolding,
    Shard,
    holding_of,
)
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.parts import (
    bytes_wanted,
    check_state,
    edges_in,
    groups_left_out,
    layer_spans,
    part_boxes,
    token_spans,
)
from kvxfer.layout.table import check_table
from kvxfer.layout.tokens import (
    WHOLE,
    Share,
    share_meets,
    shared_segments,
    shared_tokens,
    wanted_tokens,
)

SHARES = st.builds(
    lambda size, rank, interleave: Share(rank % size, size, interleave),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(1, 6),
)


def engine(**changes: object) -> Shard:
    fields = {
        "bases": [1 << 20],
        "layers": ("a", "b", "c"),
        "blocks": 8,
        "tokens_per_block": 4,
        "heads_total": 2,
        "content_bytes": 4,
        "null_block": 0,
    }
    return engine_shards(**(fields | changes))[0]  # type: ignore[arg-type]


def regrouped(shard: Shard, **changes: object) -> Shard:
    group = attrs.evolve(shard.groups[0], **changes)
    ranks = (RankHolding(rank=shard.rank, holdings=(holding_of(group),)),)
    return attrs.evolve(shard, groups=(group,), ranks=ranks)


def owned(share: Share, start: int, stop: int) -> list[int]:
    return [t for t in range(start, stop) if t // share.interleave % share.size == share.rank]


@settings(deadline=None, derandomize=True)
@given(SHARES, SHARES, st.integers(0, 40), st.integers(0, 40))
def test_shares_by_counting(first: Share, second: Share, start: int, more: int) -> None:
    stop = start + more
    assert first.position(start) == len(owned(first, 0, start))
    both = sorted(set(owned(first, start, stop)) & set(owned(second, start, stop)))
    period = first.period * second.period
    assert share_meets(first, second) == bool(
        set(owned(first, 0, period)) & set(owned(second, 0, period))
    )
    if start < stop:
        tokens, counts = shared_segments((first, second), start, stop, 1000)
        rows = zip(tokens.tolist(), counts.tolist(), strict=True)
        assert [t + n for t, count in rows for n in range(count)] == both
    assert shared_tokens(first, second, start, stop) == len(both)


def test_a_context_of_vast_numbers_costs_nothing() -> None:
    vast = Share(7, 256, 1 << 40)
    assert share_meets(vast, Share(3, 255, (1 << 40) - 1))
    with pytest.raises(LayoutMismatch, match="change owner more than 100 times"):
        shared_segments((Share(0, 2, 1), vast), 0, 1 << 40, 100)


@pytest.mark.parametrize(
    ("reach", "start", "stop", "wanted"),
    [
        (None, 3, 10, (3, 10)),
        (4, 3, 10, (6, 10)),
        (4, 8, 10, (8, 10)),
        (1, 0, 10, (9, 10)),
        (4, 10, 10, (10, 10)),
        (4, 12, 10, (10, 10)),
    ],
)
def test_what_a_group_needs(reach: int | None, start: int, stop: int, wanted: tuple) -> None:
    group = attrs.evolve(engine().groups[0], reach=reach)
    assert wanted_tokens(group, start, stop) == wanted


@pytest.mark.parametrize(
    ("start", "stop", "wanted"),
    [(0, 3, (0, 3)), (0, 10, (4, 10)), (6, 10, (6, 10)), (0, 12, (8, 12)), (12, 12, (12, 12))],
)
def test_the_first_block_of_a_window_is_needed_whole_where_others_use_it(
    start: int, stop: int, wanted: tuple
) -> None:
    group = attrs.evolve(engine().groups[0], reach=3, whole_blocks=True)
    assert group.tokens_per_block == 4
    assert wanted_tokens(group, start, stop) == wanted


def test_tokens_are_cut_at_whole_states() -> None:
    group = engine().groups[0]
    assert token_spans(group, 3, 11) == [(3, 11)]
    assert token_spans(group, 3, 11, 4) == [(3, 4), (4, 8), (8, 11)]
    assert token_spans(group, 4, 8, 4) == [(4, 8)]
    assert token_spans(group, 4, 4, 4) == []
    pairs = attrs.evolve(group, tokens_per_state=2)
    assert token_spans(pairs, 3, 11, 3) == [(3, 4), (4, 8), (8, 11)]
    assert token_spans(attrs.evolve(group, reach=1), 0, 11, 4) == [(10, 11)]
    with pytest.raises(BadValue, match="grid_tokens"):
        token_spans(group, 3, 11, 0)


def test_only_the_last_tokens_are_cut_by_layers() -> None:
    producer, consumer = engine(), engine(bases=[1 << 30], layers=("c", "a", "b"))
    edges = edges_between(producer, consumer)
    boxes = part_boxes(producer, consumer, edges, 0, 8, grid_tokens=4, grid_layers=2)
    rows = [(b.token_start, b.token_stop, b.layer_start, b.layer_stop) for b in boxes]
    assert rows == [(0, 4, 0, 3), (4, 8, 0, 2), (4, 8, 2, 3)]
    kept = [[edge.layers for edge in edges_in(producer, edges, box)] for box in boxes]
    assert [sorted(layers) for (layers,) in kept] == [["a", "b", "c"], ["a", "b"], ["c"]]
    with pytest.raises(BadValue, match="grid_layers"):
        part_boxes(producer, consumer, edges, 0, 8, grid_layers=0)


def test_a_state_is_not_cut_by_layers() -> None:
    group = attrs.evolve(engine().groups[0], kind=GroupKind.STATE)
    edges = edges_between(engine(), engine())
    assert layer_spans(group, edges, 1) == [(0, 3)]
    assert layer_spans(engine().groups[0], edges, 1) == [(0, 1), (1, 2), (2, 3)]


def test_layers_of_another_stage_are_nobodys_part() -> None:
    producers = engine_shards(
        bases=[1 << 20, 1 << 24],
        stages=2,
        layers=("a", "b", "c"),
        blocks=8,
        tokens_per_block=4,
        heads_total=2,
        content_bytes=4,
    )
    consumer = engine()
    for producer, spans in zip(producers, [[(0, 1)], [(0, 1), (1, 2)]], strict=True):
        edges = [e for e in edges_between(producer, consumer) if e.producer_rank == producer.rank]
        boxes = part_boxes(producer, consumer, edges, 0, 4, grid_layers=1)
        assert [(b.layer_start, b.layer_stop) for b in boxes] == spans


def test_a_rank_without_tokens_has_no_part_and_lacks_none() -> None:
    """Three tokens, dealt out by fours: all of them are rank 0's."""
    groups = [
        attrs.evolve(engine().groups[0], context_rank=n, context_size=2, context_interleave=4)
        for n in range(2)
    ]
    ranks = tuple(RankHolding(rank=n, holdings=(holding_of(g),)) for n, g in enumerate(groups))
    first, second = (
        attrs.evolve(engine(), rank=n, groups=(group,), ranks=ranks)
        for n, group in enumerate(groups)
    )
    whole = engine()
    edges = edges_between(first, whole)
    assert sorted((e.producer_rank, e.consumer_rank) for e in edges) == [(0, 0), (1, 0)]
    assert len(part_boxes(first, whole, [edges[0]], 0, 3)) == 1
    assert part_boxes(second, whole, [edges[1]], 0, 3) == ()
    assert groups_left_out(second, 0, 3, ()) == []
    assert groups_left_out(second, 0, 5, ()) == ["kv"]
    assert groups_left_out(second, 0, 5, (0,)) == []
    assert [bytes_wanted(shard, 0, 6) for shard in (first, second, whole)] == [96, 48, 144]


def test_entries_outside_a_window_may_be_null_or_repeated() -> None:
    shard = regrouped(engine(), kind=GroupKind.WINDOW, reach=5)

    def check(*blocks: int) -> None:
        table = BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64))
        check_table(shard, table, 5, 10)

    check(0, 3, 4)
    check(3, 3, 4)
    with pytest.raises(BadValue, match="null"):
        check(1, 0, 4)
    with pytest.raises(BadValue, match="once"):
        check(1, 4, 4)
    with pytest.raises(BadValue, match="0 to 7"):
        check(8, 3, 4)


def state(tokens_per_block: int) -> Group:
    return attrs.evolve(
        engine().groups[0],
        kind=GroupKind.STATE,
        reach=1,
        tokens_per_block=tokens_per_block,
        tokens_per_state=tokens_per_block,
    )


@pytest.mark.parametrize(
    ("tokens", "first", "stop", "final", "held"),
    [
        (1 << 40, 0, 7, 7, 7),
        (1 << 40, 0, 7, 8, 8),
        (4, 0, 8, 30, 8),
        (4, 0, 7, 30, 8),
        (4, 0, 7, 7, 7),
        (4, 4, 10, 11, 11),
    ],
)
def test_a_state_of_other_tokens_is_not_served(
    tokens: int, first: int, stop: int, final: int, held: int
) -> None:
    table = BlockTable(group=0, first_token=first, blocks=np.arange(1, 9))
    if held == stop:
        check_state(state(tokens), table, stop, final)
        return
    with pytest.raises(LayoutMismatch, match=f"after {held} tokens, the one after {stop}"):
        check_state(state(tokens), table, stop, final)


def test_other_kinds_have_no_state_to_check() -> None:
    check_state(engine().groups[0], BlockTable(group=0, first_token=0, blocks=np.arange(2)), 7, 9)


def test_every_token_has_one_owner() -> None:
    for size, interleave in itertools.product(range(1, 5), range(1, 4)):
        shares = [Share(rank, size, interleave) for rank in range(size)]
        found = sorted(t for share in shares for t in owned(share, 0, 50))
        assert found == list(range(50))
        assert sum(share.position(50) for share in shares) == 50
    assert WHOLE.position(50) == 50
