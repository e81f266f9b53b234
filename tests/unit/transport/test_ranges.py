"""Range checks and joining, against a plain reading of the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.transport.ops import Memory
from kvxfer.transport.ranges import RegionIndex, column_fault, join_ranges

TOP = (1 << 64) - 1
_EDGES = st.sampled_from([0, 1, 99, 100, 149, 150, 199, 200, 201, TOP - 1, TOP])
_NUMBER = _EDGES | st.integers(0, TOP)


def u64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@st.composite
def _region(draw: st.DrawFn) -> Memory:
    base = draw(st.integers(1, 200) | st.integers(1, TOP - 1))
    return Memory(base=base, length=draw(st.integers(1, min(200, TOP - base))))


@given(
    st.lists(_region(), max_size=6),
    st.lists(st.tuples(_NUMBER | st.integers(0, 400), _NUMBER | st.integers(0, 200)), max_size=8),
)
def test_first_outside_agrees_with_looking_at_each_region(
    regions: list[Memory], ranges: list[tuple[int, int]]
) -> None:
    outside = [
        at
        for at, (start, length) in enumerate(ranges)
        if not any(r.base <= start and start + length <= r.base + r.length for r in regions)
    ]
    got = RegionIndex.of(regions).first_outside(
        u64(*(start for start, _ in ranges)), u64(*(length for _, length in ranges))
    )
    assert got == (outside[0] if outside else -1)


def test_regions_that_touch_are_not_one() -> None:
    index = RegionIndex.of([Memory(base=100, length=50), Memory(base=150, length=50)])
    assert index.first_outside(u64(100, 150), u64(50, 50)) == -1
    assert index.first_outside(u64(100, 149), u64(50, 2)) == 1


def test_a_long_region_below_a_short_one_is_found() -> None:
    index = RegionIndex.of([Memory(base=100, length=1000), Memory(base=200, length=10)])
    assert index.first_outside(u64(205, 300), u64(100, 800)) == -1


def test_a_length_that_wraps_is_outside() -> None:
    index = RegionIndex.of([Memory(base=100, length=50)])
    assert index.first_outside(u64(120), u64(TOP - 10)) == 0


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ((u64(1), u64(1), u64(1)), ""),
        ((u64(), u64(), u64()), ""),
        (([1], u64(1), u64(1)), "local_addr is list"),
        ((u64(1), u64(1).astype(np.int64), u64(1)), "remote_addr has dtype int64"),
        ((u64(1), u64(1), u64(1).reshape(1, 1)), "length has 2 dimensions"),
        ((u64(1), u64(1, 2), u64(1)), "[1, 2, 1] entries"),
        ((u64(1, 2), u64(1, 2), u64(5, 0)), "length[1] = 0"),
    ],
)
def test_column_fault_names_what_is_wrong(columns: tuple, says: str) -> None:
    text = column_fault(*columns)
    assert says in text
    assert bool(text) == bool(says)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5)), max_size=12))
def test_joined_ranges_move_the_same_bytes_in_the_same_order(
    ranges: list[tuple[int, int, int]],
) -> None:
    columns = tuple(u64(*(r[at] for r in ranges)) for at in range(3))
    local, remote, length = join_ranges(*columns)

    def moves(*parts: np.ndarray) -> list[tuple[int, int]]:
        lists = zip(*(part.tolist() for part in parts))
        return [(a + at, b + at) for a, b, count in lists for at in range(count)]

    assert moves(local, remote, length) == moves(*columns)
    for part, column in zip((local, remote, length), columns):
        assert not np.shares_memory(part, column)


def test_neighbours_on_both_sides_become_one_range() -> None:
    joined = join_ranges(u64(0, 10, 20, 30), u64(100, 110, 120, 200), u64(10, 10, 10, 10))
    assert [part.tolist() for part in joined] == [[0, 30], [100, 200], [30, 10]]
