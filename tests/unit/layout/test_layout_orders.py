"""Strides of the six orders by hand, and how heads and layers are split."""

from __future__ import annotations

import pytest

from kvxfer.errors import BadValue
from kvxfer.layout.orders import engine_shards, head_intervals, strides_for

COUNTS = {"L": 3, "B": 5, "H": 2, "N": 4, "P": 2}


@pytest.mark.parametrize(
    ("order", "strides"),
    [
        ("LBHNC", {"N": 8, "H": 32, "B": 64, "L": 320}),
        ("LBNHC", {"H": 8, "N": 16, "B": 64, "L": 320}),
        ("LHBNC", {"N": 8, "B": 32, "H": 160, "L": 320}),
        ("BLHNC", {"N": 8, "H": 32, "L": 64, "B": 192}),
        ("BLNHC", {"H": 8, "N": 16, "L": 64, "B": 192}),
        ("BHLNC", {"N": 8, "L": 32, "H": 96, "B": 192}),
        ("LBPHNC", {"N": 8, "H": 32, "P": 64, "B": 128, "L": 640}),
    ],
)
def test_strides(order: str, strides: dict[str, int]) -> None:
    assert strides_for(order, COUNTS, 8) == strides


@pytest.mark.parametrize("order", ["", "LBHN", "HLBNC", "LBHNCP", "PLPBHNC", "lbhnc"])
def test_other_orders_are_refused(order: str) -> None:
    with pytest.raises(BadValue, match="order"):
        strides_for(order, COUNTS, 8)


@pytest.mark.parametrize(
    ("heads", "ranks", "intervals"),
    [
        (8, 4, [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (6, 4, [(0, 1), (1, 3), (3, 4), (4, 6)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (2, 3, [(0, 1), (0, 1), (1, 2)]),
        (1, 3, [(0, 1), (0, 1), (0, 1)]),
    ],
)
def test_heads_of_each_rank(heads: int, ranks: int, intervals: list[tuple[int, int]]) -> None:
    assert head_intervals(heads, ranks) == intervals


def test_ranks_of_two_stages() -> None:
    shards = engine_shards(
        bases=[0, 100, 200, 300],
        stages=2,
        layers=("a", "b", "c"),
        blocks=1,
        tokens_per_block=1,
        heads_total=2,
        content_bytes=1,
    )
    held = [(s.rank, s.groups[0].layers, s.groups[0].head_start) for s in shards]
    assert held == [(0, ("a",), 0), (1, ("a",), 1), (2, ("b", "c"), 0), (3, ("b", "c"), 1)]
    assert [s.areas[0].length for s in shards] == [1, 1, 2, 2]
    assert len({s.ranks for s in shards}) == 1


@pytest.mark.parametrize("stages", [0, 2, 4])
def test_stages_divide_the_ranks(stages: int) -> None:
    with pytest.raises(BadValue, match="stages"):
        engine_shards(
            bases=[0, 1, 2],
            stages=stages,
            layers=("a",),
            blocks=1,
            tokens_per_block=1,
            heads_total=1,
            content_bytes=1,
        )
