"""Parts on the producer's grid: they tile what is wanted, and never become too many."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.core.ids import FEATURES, NO_FEATURES, Feature, Part
from kvxfer.driver.grid import Grid, cut_parts, layers_of
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import GroupKind
from kvxfer.layout.orders import engine_shards

LAYERS = tuple("abcdefgh")
(SHARD,) = engine_shards(
    bases=[0], layers=LAYERS, blocks=64, tokens_per_block=4, heads_total=1, content_bytes=2
)
EDGES = edges_between(SHARD, SHARD)


def cut(part: Part, grid: Grid, parts_max: int = 1024) -> list[tuple[int, int]]:
    parts = cut_parts([part], grid, SHARD, EDGES, parts_max)
    return [(p.token_start, p.token_stop) for p in parts]


def test_no_grid_is_one_part() -> None:
    assert cut(Part(0, 0, 5, 50), Grid()) == [(5, 50)]


def test_cuts_are_at_multiples_from_token_0() -> None:
    grid = Grid(part_tokens=16)
    assert cut(Part(0, 0, 5, 50), grid) == [(5, 16), (16, 32), (32, 48), (48, 50)]
    assert cut(Part(0, 0, 16, 32), grid) == [(16, 32)]
    assert cut(Part(0, 0, 0, 3), grid) == [(0, 3)]


def test_too_fine_a_grid_is_doubled_until_it_fits() -> None:
    assert cut(Part(0, 0, 0, 100), Grid(part_tokens=10), parts_max=4) == [
        (0, 40),
        (40, 80),
        (80, 100),
    ]


def test_a_grid_of_one_token_over_a_million_costs_nothing() -> None:
    """[M2] The grid is the peer's choice; what it makes is bounded, and so is the work."""
    parts = cut_parts([Part(0, 0, 0, 1 << 40)], Grid(part_tokens=1), SHARD, EDGES, 1024)
    assert len(parts) == 1024


def test_too_many_cells_by_layers_are_given_up_first() -> None:
    grid = Grid(part_tokens=10, part_layers=1)
    assert cut(Part(0, 0, 0, 40), grid, parts_max=4) == [(0, 10), (10, 20), (20, 30), (30, 40)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(0, 500),
    st.integers(1, 2_000),
    st.integers(0, 70),
    st.integers(0, 9),
    st.integers(2, 40),
)
def test_parts_tile_what_is_wanted(
    start: int, count: int, tokens: int, layers: int, parts_max: int
) -> None:
    grid = Grid(part_tokens=tokens, part_layers=layers)
    parts = cut_parts([Part(0, 0, start, start + count)], grid, SHARD, EDGES, parts_max)
    assert len(parts) <= parts_max
    assert len(set(parts)) == len(parts)
    spans = sorted({(p.token_start, p.token_stop) for p in parts})
    assert spans[0][0] == start
    assert spans[-1][1] == start + count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    for span in spans:
        cells = [p for p in parts if (p.token_start, p.token_stop) == span]
        covered = [
            layer
            for p in cells
            for layer in (LAYERS[p.layer_start : p.layer_stop] if p.layer_stop else LAYERS)
        ]
        assert sorted(covered) == list(LAYERS)


def test_only_the_last_tokens_are_cut_by_layers() -> None:
    grid = Grid(part_tokens=16, part_layers=3)
    parts = cut_parts([Part(0, 0, 0, 20)], grid, SHARD, EDGES, 1024)
    assert parts == (
        Part(0, 0, 0, 16),
        Part(0, 0, 16, 20, 0, 3),
        Part(0, 0, 16, 20, 3, 6),
        Part(0, 0, 16, 20, 6, 8),
    )


def test_layers_are_counted_in_the_producers_list_and_unshared_cells_left_out() -> None:
    """The consumer holds a later pipeline stage: the first cell moves nothing to it."""
    _, second = engine_shards(
        bases=[0, 0],
        layers=LAYERS,
        blocks=64,
        tokens_per_block=4,
        heads_total=1,
        content_bytes=2,
        stages=2,
    )
    edges = [e for e in edges_between(SHARD, second) if e.consumer_rank == second.rank]
    parts = cut_parts([Part(0, 0, 0, 4)], Grid(part_layers=4), SHARD, edges, 1024)
    assert parts == (Part(0, 0, 0, 4, 4, 8),)
    (edge,) = edges
    assert layers_of(parts[0], SHARD, edge).layers == edge.layers
    assert layers_of(Part(0, 0, 0, 4, 0, 4), SHARD, edge).layers == ()


@pytest.mark.parametrize(
    ("features", "grid"),
    [
        (FEATURES, Grid(part_tokens=16, part_layers=4)),
        (Feature.STREAMING, Grid(part_tokens=16)),
        (Feature.LAYER_RANGES, Grid(part_layers=4)),
        (NO_FEATURES, Grid()),
    ],
)
def test_a_grid_is_used_only_as_far_as_both_ends_know_it(features: Feature, grid: Grid) -> None:
    assert Grid(part_tokens=16, part_layers=4).within(features) == grid


def test_cuts_are_at_whole_states_and_states_are_not_cut_by_layers() -> None:
    """Slots of four tokens: a grid of six becomes one of eight."""
    (group,) = SHARD.groups
    fours = attrs.evolve(SHARD, groups=(attrs.evolve(group, tokens_per_state=4),))
    grid = Grid(part_tokens=6, part_layers=3)
    parts = cut_parts([Part(0, 0, 3, 20)], grid, fours, EDGES, 1024)
    spans = [(p.token_start, p.token_stop) for p in parts if p.token_stop < 20]
    assert spans == [(3, 8), (8, 16)]
    assert [(p.layer_start, p.layer_stop) for p in parts[2:]] == [(0, 3), (3, 6), (6, 8)]
    page = attrs.evolve(fours.groups[0], kind=GroupKind.STATE, reach=1)
    state = attrs.evolve(fours, groups=(page,))
    whole = (Part(0, 0, 19, 20),)
    assert cut_parts(whole, grid, state, EDGES, 1024) == whole
