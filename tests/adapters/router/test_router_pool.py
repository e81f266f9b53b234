"""Which engine is asked: the least work, known beginnings, and bounds of what is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from kvxfer_router import EngineSpec, Mode, RouterConfig
from kvxfer_router.health import State
from kvxfer_router.pool import Pool, Prefixes
from kvxfer_router.prompts import BLOCK_TOKENS, REQUEST_TOKENS, Prompt


def pool_of(count: int, **changes: Any) -> Pool:
    specs = tuple(EngineSpec(url=f"http://e{number}") for number in range(count))
    config = RouterConfig(mode=Mode.PULL, prefills=specs, decodes=specs, **changes)
    return Pool(specs, config)


def prompt(*blocks: str) -> Prompt:
    return Prompt(
        size_tokens=BLOCK_TOKENS * len(blocks), blocks=tuple(block.encode() for block in blocks)
    )


EMPTY = prompt()


def number_chosen(pool: Pool, one: Prompt, **options: Any) -> int:
    engine = pool.choose(one, 0.0, **options)
    assert engine is not None
    return engine.number


def test_equals_take_turns() -> None:
    pool = pool_of(3)
    order = []
    for _ in range(6):
        engine = pool.choose(EMPTY, 0.0)
        assert engine is not None
        order.append(engine.number)
        pool.take(engine, EMPTY).leave()
    assert order == [0, 1, 2, 0, 1, 2]


def test_the_least_work_wins_not_the_fewest_requests() -> None:
    pool = pool_of(2)
    pool.take(pool.engines[0], Prompt(10000, ()))
    for _ in range(3):
        assert number_chosen(pool, EMPTY) == 1
        pool.take(pool.engines[1], EMPTY)


def test_a_seat_is_left_once() -> None:
    pool = pool_of(1)
    engine = pool.engines[0]
    first, second = pool.take(engine, EMPTY), pool.take(engine, EMPTY)
    first.leave()
    first.leave()
    assert (engine.open_legs, engine.load_tokens) == (1, REQUEST_TOKENS)
    second.leave()
    assert (engine.open_legs, engine.load_tokens) == (0, 0)


def test_a_known_beginning_outweighs_as_much_work_as_it_saves() -> None:
    pool = pool_of(2)
    pool.prefixes.learn(prompt("a", "ab", "abc"), pool.engines[1])
    one = prompt("a", "ab", "abd", "abde")
    saved_tokens = 2 * BLOCK_TOKENS
    assert number_chosen(pool, one) == 1
    pool.engines[1].sit(saved_tokens - 1)
    assert number_chosen(pool, one) == 1
    pool.engines[1].sit(2)
    assert number_chosen(pool, one) == 0


def test_the_longest_known_beginning_wins() -> None:
    pool = pool_of(3)
    pool.prefixes.learn(prompt("s"), pool.engines[1])
    pool.prefixes.learn(prompt("s", "st"), pool.engines[2])
    assert number_chosen(pool, prompt("s", "st", "stu")) == 2
    # Two conversations with one system prompt may go to whoever has it.
    assert number_chosen(pool, prompt("s", "sx"), without={pool.engines[2]}) == 1


def test_a_block_without_its_beginning_counts_for_nothing() -> None:
    pool = pool_of(2)
    pool.prefixes.learn(prompt("a", "ab"), pool.engines[1])
    assert pool.prefixes.known_blocks(prompt("x", "ab"), pool.engines[1]) == 0


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    prefixes, (first, second) = Prefixes(names_max=3), pool_of(2).engines
    prefixes.learn(prompt("a", "ab"), first)
    prefixes.learn(prompt("b", "bb"), second)
    assert len(prefixes) == 3
    assert prefixes.known_blocks(prompt("a", "ab"), first) == 1, "its end went, not its beginning"
    prefixes.learn(prompt("c", "cc", "ccc", "cccc"), second)
    assert len(prefixes) == 3
    assert prefixes.known_blocks(prompt("c", "cc", "ccc", "cccc"), second) == 3


def test_an_engine_that_was_out_has_lost_what_it_had() -> None:
    pool = pool_of(2, failures_max=1)
    both = prompt("a", "ab")
    for engine in pool.engines:
        pool.prefixes.learn(both, engine)
    pool.note_failed(pool.engines[0], 0.0)
    assert pool.engines[0].health.state is State.OUT
    assert pool.prefixes.known_blocks(both, pool.engines[0]) == 0
    assert pool.prefixes.known_blocks(both, pool.engines[1]) == 2
    pool.note_checked(pool.engines[1], False, 0.0)
    assert len(pool.prefixes) == 0


def test_an_engine_on_trial_gets_one_request() -> None:
    pool = pool_of(1, failures_max=1, pause_s=1.0)
    pool.note_failed(pool.engines[0], 0.0)
    assert pool.choose(EMPTY, 0.5) is None
    engine = pool.choose(EMPTY, 1.0)
    assert engine is pool.engines[0]
    seat = pool.take(engine, EMPTY)
    assert pool.choose(EMPTY, 1.0) is None
    seat.leave()
    assert pool.choose(EMPTY, 1.0) is engine


def test_nobody_without_coordinates_where_they_must_be_known() -> None:
    assert pool_of(2).choose(EMPTY, 0.0, known=True) is None


@pytest.mark.parametrize("count", [1, 5])
def test_nobody_left(count: int) -> None:
    pool = pool_of(count)
    assert pool.choose(EMPTY, 0.0, without=set(pool.engines)) is None
