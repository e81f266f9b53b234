"""Block tables: runs and back, bounds, cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.table import blocks_of, check_table, runs_of

(SHARD,) = engine_shards(
    bases=[0],
    layers=("a",),
    blocks=10,
    tokens_per_block=4,
    heads_total=1,
    content_bytes=1,
    null_block=0,
)


def table(*blocks: int, first: int = 0) -> BlockTable:
    return BlockTable(group=0, first_token=first, blocks=np.array(blocks, np.int64))


def test_runs_by_hand() -> None:
    starts, lengths = runs_of(np.array([7, 8, 9, 3, 5, 4], np.int64))
    assert starts.tolist() == [7, 3, 5, 4]
    assert lengths.tolist() == [3, 1, 1, 1]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 1 << 40), max_size=50))
def test_runs_and_back(ids: list[int]) -> None:
    blocks = np.array(ids, np.int64)
    assert blocks_of(*runs_of(blocks), 1000).tolist() == ids


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([0], [11]), ([0, 20], [6, 6]), ([0], [0]), ([0], [1 << 63]), ([1 << 63], [1])],
)
def test_runs_out_of_bounds_are_refused_before_they_are_spread(starts: list, lengths: list) -> None:
    with pytest.raises(BadValue, match="runs"):
        blocks_of(np.array(starts, np.uint64), np.array(lengths, np.uint64), 10)


def test_columns_of_unlike_length_are_refused() -> None:
    with pytest.raises(BadValue, match="as many"):
        blocks_of(np.zeros(2, np.uint64), np.ones(1, np.uint64), 10)


@pytest.mark.parametrize(
    ("given_table", "start", "stop", "what"),
    [
        (table(0), 0, 4, "null block"),
        (table(10), 0, 4, "0 to 9"),
        (table(-1), 0, 4, "0 to 9"),
        (table(3, 3), 0, 8, "once"),
        (table(3), 0, 5, "covering"),
        (table(3, first=4), 0, 4, "covering"),
        (table(), 0, 1, "covering"),
    ],
)
def test_bad_tables(given_table: BlockTable, start: int, stop: int, what: str) -> None:
    with pytest.raises(BadValue, match=what):
        check_table(SHARD, given_table, start, stop)


def test_good_tables() -> None:
    check_table(SHARD, table(3, 9, 1), 0, 12)
    check_table(SHARD, table(3, 9, first=7), 8, 14)
    check_table(SHARD, table(), 5, 5)


def test_group_that_is_not_there() -> None:
    with pytest.raises(BadValue, match=r"table\.group"):
        check_table(SHARD, BlockTable(group=1, first_token=0, blocks=np.array([1])), 0, 4)
