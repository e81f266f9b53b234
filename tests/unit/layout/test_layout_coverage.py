"""Gaps, overlaps, strays, and the bytes that a consumer may zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.coverage import (
    check_exactly_once,
    covered_exactly_once,
    uncovered,
    wanted_ranges,
)
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.plan import Plan, coalesce

SHARD = engine_shards(
    bases=[1000], layers=("a",), blocks=8, tokens_per_block=4, heads_total=2, content_bytes=2
)[0]
TABLE = BlockTable(group=0, first_token=4, blocks=np.array([5, 2, 6], np.int64))


def plan(*ranges: tuple[int, int]) -> Plan:
    dst = np.array([at for at, _ in ranges], np.uint64)
    return Plan(dst.copy(), dst, np.array([size for _, size in ranges], np.uint64))


def pairs(ranges: Any) -> list[tuple[int, int]]:
    return list(zip(ranges[0].tolist(), ranges[1].tolist(), strict=True))


def columns(*ranges: tuple[int, int]) -> Any:
    made = plan(*ranges)
    return made.dst, made.length


def test_wanted_bytes_by_hand() -> None:
    """Block 16 bytes, head 8, slot 2. Tokens 6..9: slots 2, 3 of block 5; 0, 1 of block 2."""
    assert pairs(wanted_ranges(SHARD, TABLE, 6, 10)) == [
        (1032, 4),
        (1040, 4),
        (1084, 4),
        (1092, 4),
    ]


@pytest.mark.parametrize(
    ("plans", "gaps", "overlaps", "strays"),
    [
        ([plan((10, 20))], [], [], []),
        ([plan((20, 10)), plan((10, 10))], [], [], []),
        ([plan((10, 9), (20, 10))], [(19, 1)], [], []),
        ([plan((10, 20), (12, 3))], [], [(12, 3)], []),
        ([plan((10, 20)), plan((10, 20)), plan((29, 1))], [], [(10, 20)], []),
        ([plan((8, 23))], [], [], [(8, 2), (30, 1)]),
        ([plan((50, 2))], [(10, 20)], [], [(50, 2)]),
        ([], [(10, 20)], [], []),
        ([plan((10, 20), (40, 4), (42, 4))], [], [(42, 2)], [(40, 6)]),
    ],
)
def test_coverage(plans: list[Plan], gaps: Any, overlaps: Any, strays: Any) -> None:
    found = covered_exactly_once(plans, columns((10, 20)))
    assert (pairs(found.gaps), pairs(found.overlaps), pairs(found.strays)) == (
        gaps,
        overlaps,
        strays,
    )
    assert found.exact == (not (gaps or overlaps or strays))


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([(1080, 8), (1088, 8), (1084, 1)], "1 bytes at 1084 are written twice"),
        ([(1080, 8)], "8 bytes at 1088 are only wanted"),
        ([(1080, 8), (1088, 9)], "1 bytes at 1096 are only written"),
    ],
)
def test_the_first_wrong_byte_is_named(ranges: list[tuple[int, int]], text: str) -> None:
    with pytest.raises(LayoutMismatch, match=text):
        check_exactly_once(SHARD, TABLE, 4, 8, [plan(*ranges)])
    check_exactly_once(SHARD, TABLE, 4, 8, [plan((1088, 8), (1080, 8))])


def test_only_what_lies_behind_the_tokens_may_be_zeroed() -> None:
    """Blocks 5, 2, 6 hold tokens 4 to 15; up to 10 are there, block 2 is half full."""
    tail = [(1036, 4), (1044, 4), (1096, 16)]
    assert pairs(uncovered(SHARD, TABLE, 4, 10)) == tail
    assert pairs(uncovered(SHARD, TABLE, 9, 10)) == tail
    assert pairs(uncovered(SHARD, TABLE, 4, 16)) == []
    with pytest.raises(BadValue, match="covering tokens 4 to 16"):
        uncovered(SHARD, TABLE, 4, 17)


def test_coalesce_joins_what_touches_on_both_sides() -> None:
    made = Plan(
        np.array([20, 0, 10, 30, 90], np.uint64),
        np.array([120, 100, 110, 200, 130], np.uint64),
        np.array([10, 10, 10, 10, 10], np.uint64),
    )
    joined = coalesce(made)
    assert joined.src.tolist() == [0, 90, 30]
    assert joined.dst.tolist() == [100, 130, 200]
    assert joined.length.tolist() == [30, 10, 10]
    assert coalesce(Plan.empty()).descriptor_count == 0
