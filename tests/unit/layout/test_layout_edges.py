"""Edges: replicas, ratios that do not divide, stages, and what is refused by name."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import Edge, edges_between, edges_of
from kvxfer.layout.geometry import Holding, RankHolding, Shard
from kvxfer.layout.orders import engine_shards

LAYERS = ("a", "b", "c", "d")


def engine(ranks: int, heads: int, stages: int = 1, **other: object) -> Shard:
    fields: dict[str, object] = {
        "bases": [rank << 24 for rank in range(ranks)],
        "layers": LAYERS,
        "blocks": 4,
        "tokens_per_block": 2,
        "heads_total": heads,
        "content_bytes": 4,
        "stages": stages,
    }
    return engine_shards(**(fields | other))[0]  # type: ignore[arg-type]


def heads(edges: tuple[Edge, ...]) -> list[tuple[int, int, int, int]]:
    return [(e.producer_rank, e.consumer_rank, e.head_start, e.head_stop) for e in edges]


def test_three_to_two() -> None:
    assert sorted(heads(edges_between(engine(3, 6), engine(2, 6)))) == [
        (0, 0, 0, 2),
        (1, 0, 2, 3),
        (1, 1, 3, 4),
        (2, 1, 4, 6),
    ]


def test_replicas_of_a_latent_are_taken_in_turn() -> None:
    """H3: every consumer gets an edge of its own, and no producer serves all (H-08)."""
    edges = heads(edges_between(engine(2, 1), engine(4, 1)))
    assert sorted(edges) == [(0, 0, 0, 1), (0, 2, 0, 1), (1, 1, 0, 1), (1, 3, 0, 1)]
    edges = heads(edges_between(engine(4, 1), engine(2, 1)))
    assert sorted(edges) == [(0, 0, 0, 1), (1, 1, 0, 1)]


def test_replicas_on_both_sides() -> None:
    """Two heads on four ranks (0 0 1 1) to two heads on eight (0 0 0 0 1 1 1 1)."""
    load = Counter(e.producer_rank for e in edges_between(engine(4, 2), engine(8, 2)))
    assert load == {0: 2, 1: 2, 2: 2, 3: 2}


def test_stages_are_paired_by_layer_name() -> None:
    """H-09: two stages to three, each layer from the rank that has it."""
    edges = edges_between(engine(2, 1, stages=2), engine(3, 1, stages=3))
    assert sorted((e.producer_rank, e.consumer_rank, e.layers) for e in edges) == [
        (0, 0, ("a",)),
        (0, 1, ("b",)),
        (1, 2, ("c", "d")),
    ]


def test_stages_and_heads_together_cover_every_pair_once() -> None:
    for p, d in ((4, 2), (4, 3), (6, 4)):
        producer, consumer = engine(p, 6, stages=2), engine(d, 6)
        seen = Counter(
            (e.consumer_rank, layer, head)
            for e in edges_between(producer, consumer)
            for layer in e.layers
            for head in range(e.head_start, e.head_stop)
        )
        wanted = Counter(
            (entry.rank, layer, head)
            for entry in consumer.ranks
            for holding in entry.holdings
            for layer in holding.layers
            for head in range(holding.head_start, holding.head_stop)
        )
        assert seen == wanted


def holding(group: str, start: int, stop: int, layers: tuple[str, ...]) -> Holding:
    return Holding(group=group, head_start=start, head_stop=stop, layers=layers)


def with_ranks(shard: Shard, *holdings: tuple[Holding, ...]) -> Shard:
    ranks = tuple(RankHolding(rank=n, holdings=h) for n, h in enumerate(holdings))
    return attrs.evolve(shard, ranks=ranks)


def test_partly_overlapping_producers() -> None:
    """Heads 1 and 2 are held twice: each interval has its own owner, none has two."""
    producer = with_ranks(
        engine(1, 4), (holding("kv", 0, 3, LAYERS),), (holding("kv", 1, 4, LAYERS),)
    )
    edges = edges_between(producer, engine(1, 4))
    assert heads(edges) == [(0, 0, 0, 3), (1, 0, 3, 4)]


def test_group_numbers_are_those_of_each_rank() -> None:
    """A group that only another stage holds has another index there."""
    producer = with_ranks(
        engine(1, 1, group="x"), (holding("x", 0, 1, ("a",)),), (holding("y", 0, 1, ("b",)),)
    )
    consumer = with_ranks(
        engine(1, 1, group="x"), (holding("x", 0, 1, ("a",)), holding("y", 0, 1, ("b",)))
    )
    edges = edges_between(producer, consumer)
    numbers = [(e.producer_rank, e.producer_group, e.consumer_group) for e in edges]
    assert numbers == [(0, 0, 0), (1, 0, 1)]


def test_edges_of_one_pair() -> None:
    producer, consumer = engine(3, 6), engine(2, 6)
    assert heads(edges_of(producer, consumer, 1, 0)) == [(1, 0, 2, 3)]
    assert edges_of(producer, consumer, 0, 1) == ()


def test_both_ends_derive_the_same_edges() -> None:
    """Whichever rank's descriptor is at hand, the maps are the same (D3)."""
    fields = {"layers": LAYERS, "blocks": 4, "tokens_per_block": 2, "content_bytes": 4}
    producers = engine_shards(bases=[0, 1 << 24, 2 << 24], heads_total=6, **fields)
    consumers = engine_shards(bases=[0, 1 << 24], heads_total=6, **fields)
    found = {edges_between(p, d) for p in producers for d in consumers}
    assert len(found) == 1


def test_what_nobody_holds_is_named() -> None:
    half = with_ranks(engine(2, 4), (holding("kv", 0, 2, LAYERS),))
    with pytest.raises(LayoutMismatch, match=r"group 'kv'.*layer 'a', heads 2 to 3"):
        edges_between(half, engine(1, 4))
    short = engine(1, 4, layers=LAYERS[:3])
    with pytest.raises(LayoutMismatch, match=r"group 'kv'.*layer 'd'"):
        edges_between(short, engine(1, 4))
    with pytest.raises(LayoutMismatch, match="group 'latent'"):
        edges_between(engine(1, 4), engine(1, 4, group="latent"))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"heads": 8}, "heads_total"),
        ({"heads": 4, "content_bytes": 8}, "planes"),
        ({"heads": 4, "planes": ("kv.float16",)}, "planes"),
        ({"heads": 4, "planes": ("k", "v")}, "planes"),
    ],
)
def test_fields_that_must_agree(other: dict[str, object], field: str) -> None:
    with pytest.raises(LayoutMismatch, match=f"group 'kv': {field}"):
        edges_between(engine(1, 4), engine(1, **other))  # type: ignore[arg-type]


def test_whole_blocks_of_a_window_need_a_producer_that_keeps_as_much() -> None:
    def sized(blocks_joined: int, **other: object) -> Shard:
        shard = engine(1, 4)
        (group,) = shard.groups
        tokens, physical = group.tokens_per_block, group.physical_blocks
        group = attrs.evolve(
            group,
            reach=3,
            tokens_per_block=tokens * blocks_joined,
            physical_per_block=blocks_joined,
            physical_blocks=physical,
            **other,
        )
        return attrs.evolve(shard, groups=(group,))

    for at_p, at_d in ((1, 1), (2, 1)):
        assert edges_between(sized(at_p), sized(at_d, whole_blocks=True))
    assert edges_between(sized(1), sized(2))
    with pytest.raises(LayoutMismatch, match="without a prefix cache at the consumer"):
        edges_between(sized(1), sized(2, whole_blocks=True))


def test_maps_that_ask_for_too_many_edges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """M1: n replicas that each want a head from n owners are n x n edges."""
    count = 20
    owners = [(holding("kv", n, n + 1, ("a",)),) for n in range(count)]
    replicas = [(holding("kv", 0, count, ("a",)),)] * count
    maps = with_ranks(engine(1, count), *owners), with_ranks(engine(1, count), *replicas)
    monkeypatch.setattr("kvxfer.layout.edges.EDGES_MAX", count * count)
    assert len(edges_between(*maps)) == count * count
    monkeypatch.setattr("kvxfer.layout.edges.EDGES_MAX", count * count - 1)
    with pytest.raises(LayoutMismatch, match=f"more than {count * count - 1} edges"):
        edges_between(*maps)
