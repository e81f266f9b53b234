"""The simulator's own parts: clocks, slabs, cables, pools."""

from __future__ import annotations

import numpy as np
import pytest

from kvxfer.core.ids import Part
from kvxfer.layout.check import check_shard
from kvxfer.layout.translate import plan_edge
from kvxfer.limits import Limits
from kvxfer.testing.sim.agenda import CLOCK_RATE_PPM_MAX, Agenda, Clock
from kvxfer.testing.sim.history import History
from kvxfer.testing.sim.knobs import draw_knobs
from kvxfer.testing.sim.pools import Pool
from kvxfer.testing.sim.scene import Scene
from kvxfer.testing.sim.shapes import (
    MISFIT,
    PATTERNS,
    SHAPES,
    SLABS,
    TOKENS_MAX,
    Cut,
    Shape,
    blocks_of_slab,
    canon,
    edges_of_shapes,
    fits,
    givers,
    memory_bytes,
    moved_bytes,
    parts_between,
    shards_of,
    shift_of,
    table_of,
)


@pytest.mark.parametrize("rate_ppm", [-CLOCK_RATE_PPM_MAX, -7, 0, 3, CLOCK_RATE_PPM_MAX])
@pytest.mark.parametrize("offset_ms", [0, 1, 999_999_937])
def test_clock_shows_a_time_at_its_instant_and_not_before(rate_ppm: int, offset_ms: int) -> None:
    clock = Clock(offset_ms, rate_ppm)
    for ahead_ms in (0, 1, 77, 123_456_789):
        at_us = clock.when_us(offset_ms + ahead_ms)
        assert clock.read_ms(at_us) == offset_ms + ahead_ms
        assert clock.read_ms(at_us - 1) < offset_ms + ahead_ms


def test_agenda_keeps_the_order_of_one_instant() -> None:
    agenda, seen = Agenda(), []
    for number in range(5):
        agenda.at(10, seen.append, number)
    agenda.at(3, seen.append, "first")
    assert not agenda.run(9)
    assert agenda.run(10)
    assert seen == ["first", 0, 1, 2, 3, 4]


def test_history_tells_of_a_transfer_and_of_the_world_only() -> None:
    history = History()
    history.note(1000, "D0.0", "registers", "t1", "t1/d1")
    history.note(2000, "world", "dies", "", "P0")
    history.note(3000, "D0.0", "registers", "t2")
    assert history.transcript("").splitlines() == ["       2.000 ms  world  dies P0"]
    assert history.transcript("t1").splitlines() == [
        "       1.000 ms  D0.0   registers t1/d1",
        "       2.000 ms  world  dies P0",
    ]
    other = History()
    other.note(1000, "D0.0", "registers", "t1", "t1/d2")
    assert other.digest() != history.digest()


@pytest.mark.parametrize("shape", [*SHAPES, MISFIT])
def test_shapes_are_sound_and_slabs_apart(shape: Shape) -> None:
    for shard in shards_of(shape):
        check_shard(shard, Limits())
    for rank in range(shape.ranks):
        taken = np.zeros(memory_bytes(shape, rank), np.int64)
        for slab in range(SLABS):
            at = canon(shape, rank, slab % PATTERNS).at + shift_of(shape, rank, slab)
            taken[at] += 1
        assert taken.max() == 1


@pytest.mark.parametrize("consumer", SHAPES)
@pytest.mark.parametrize("producer", SHAPES)
def test_moved_bytes_are_the_real_plan_and_the_canonical_bytes(
    producer: Shape, consumer: Shape
) -> None:
    """The shift of a pattern is exact, and the two sides agree on every byte's name."""
    start, stop, slabs = 3, TOKENS_MAX - 1, (PATTERNS * 5 + 2, PATTERNS * 2 + 1)
    for edge in edges_of_shapes(producer, consumer):
        ranks = (edge.producer_rank, edge.consumer_rank)
        src, dst = moved_bytes(producer, consumer, Part(ranks[0], 0, start, stop), ranks[1], slabs)
        whole = plan_edge(
            shards_of(producer)[ranks[0]],
            shards_of(consumer)[ranks[1]],
            edge,
            table_of(producer, slabs[0]),
            table_of(consumer, slabs[1]),
            start,
            stop,
        )
        pairs = {
            int(b) + n: int(a) + n
            for a, b, size in zip(whole.src, whole.dst, whole.length, strict=True)
            for n in range(int(size))
        }
        found = dict(zip(dst.tolist(), src.tolist(), strict=True))
        assert pairs.items() <= found.items()
        names = [
            _names(shape, rank, slab)
            for shape, rank, slab in (
                (producer, ranks[0], slabs[0]),
                (consumer, ranks[1], slabs[1]),
            )
        ]
        assert all(names[0][a] == names[1][b] for b, a in found.items())


@pytest.mark.parametrize("cut", [Cut(), Cut(tokens=4), Cut(tokens=4, layers=True)])
@pytest.mark.parametrize("consumer", SHAPES)
@pytest.mark.parametrize("producer", SHAPES)
def test_parts_of_all_ranks_move_every_wanted_byte_once(
    producer: Shape, consumer: Shape, cut: Cut
) -> None:
    span = (3, TOKENS_MAX - 1)
    for rank in range(consumer.ranks):
        where = canon(consumer, rank, 0)
        hit = np.zeros(memory_bytes(consumer, rank), np.int64)
        for giver in givers(producer, consumer, rank):
            for part in parts_between(producer, consumer, (giver, rank), span, cut):
                hit[moved_bytes(producer, consumer, part, rank, (0, 0))[1]] += 1
        wanted = where.at[where.tokens(*span)]
        assert (hit[wanted] == 1).all()
        assert hit.sum() == wanted.size


def test_final_bytes_grow_by_tokens_and_by_layers() -> None:
    where = canon(SHAPES[0], 0, 0)
    (whole,) = where.final(TOKENS_MAX, TOKENS_MAX, 0)
    assert whole[0].size == where.at.size
    some = where.final(4, 8, 1)
    per_token = where.token_bytes
    assert [at.size for at, _ in some] == [4 * per_token, 4 * per_token // 2]
    assert not set(some[0][0].tolist()) & set(some[1][0].tolist())


def _names(shape: Shape, rank: int, slab: int) -> dict[int, int]:
    where = canon(shape, rank, slab % PATTERNS)
    at = (where.at + shift_of(shape, rank, slab)).tolist()
    return dict(zip(at, where.of.tolist(), strict=True))


def test_blocks_of_a_slab_are_neither_sorted_nor_one_run() -> None:
    shuffled = [s for s in SHAPES if s.blocks_per_slab > 2]
    assert all((np.diff(blocks_of_slab(s, 1)) != 1).any() for s in shuffled)
    assert not fits(SHAPES[0], MISFIT)


def test_who_finds_no_slab_waits_in_order() -> None:
    pool = Pool(Scene(1, draw_knobs(1)), 0, SLABS)
    taken: list[int] = []
    for _ in range(SLABS):
        pool.take(taken.append)
    late: list[str] = []
    pool.take(lambda _slab: late.append("a"))
    pool.take(lambda _slab: late.append("b"))
    assert (len(set(taken)), late) == (SLABS, [])
    pool.give(taken[0])
    assert late == ["a"]
    pool.give(taken[1])
    assert late == ["a", "b"]
