"""The drawn tables have the runs that they are said to have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.bench.blocks import draw_tables, joint_runs
from kvxfer.errors import BadValue


@given(
    blocks=st.integers(1, 300),
    seed=st.integers(0, 1000),
    share=st.floats(0, 1),
    spare=st.integers(0, 50),
)
def test_ids_are_of_the_pool_and_the_runs_as_asked(
    blocks: int, seed: int, share: float, spare: int
) -> None:
    mean_run = 1 + share * (blocks - 1)
    runs = round(blocks / mean_run)
    pool = blocks + runs + 1 + spare
    for ids in (tables := draw_tables(blocks, pool, mean_run, seed)):
        assert ids.shape == (blocks,)
        assert len(set(ids.tolist())) == blocks
        assert ids.min() >= 1
        assert ids.max() < pool
    assert joint_runs(*tables) == runs


def test_the_same_seed_draws_the_same() -> None:
    for one, other in zip(draw_tables(64, 500, 1.2, 7), draw_tables(64, 500, 1.2, 7), strict=True):
        assert np.array_equal(one, other)


def test_runs_are_counted_on_both_sides() -> None:
    column = np.array([5, 6, 7, 20, 21])
    assert joint_runs(column, column) == 2
    assert joint_runs(column, np.array([1, 2, 9, 3, 4])) == 3
    assert joint_runs(column, column[::-1].copy()) == 5
    assert joint_runs(column[:0], column[:0]) == 0


@pytest.mark.parametrize(
    ("blocks", "pool", "mean_run", "field"),
    [(8, 100, 0.5, "mean_run"), (8, 100, 9.0, "mean_run"), (8, 16, 1.0, "pool")],
)
def test_impossible_draws_are_refused(blocks: int, pool: int, mean_run: float, field: str) -> None:
    with pytest.raises(BadValue, match=field):
        draw_tables(blocks, pool, mean_run, 0)
