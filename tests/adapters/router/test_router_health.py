"""When an engine is asked: states, pauses, and the one request that tries it again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvxfer_router.health import TABLE, Event, Health, State


def fresh() -> Health:
    return Health(failures_max=3, pause_s=1.0, pause_s_max=4.0)


def out(at_s: float = 0.0) -> Health:
    health = fresh()
    for _ in range(3):
        health.leg_failed(at_s)
    assert health.state is State.OUT
    return health


def test_every_cell_is_defined() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Event}


def test_failures_in_a_row_take_an_engine_out() -> None:
    health = fresh()
    health.leg_failed(0.0)
    health.leg_failed(0.0)
    health.answered(0.0)
    health.leg_failed(0.0)
    health.leg_failed(0.0)
    assert health.admits(0.0, 0)
    health.leg_failed(0.0)
    assert not health.admits(0.0, 0)


def test_a_good_check_does_not_forgive_failed_legs() -> None:
    health = fresh()
    for _ in range(3):
        health.checked(True, 0.0)
        health.leg_failed(0.0)
    assert health.state is State.OUT


def test_checks_in_a_row_take_an_engine_out_and_a_good_one_ends_it() -> None:
    health = fresh()
    for _ in range(3):
        health.checked(False, 0.0)
    assert not health.admits(100.0, 0), "its last check was not good"
    health.checked(True, 100.0)
    assert health.admits(100.0, 0)
    assert health.state is State.TRIAL


def test_after_the_pause_one_request_tries_it() -> None:
    health = out()
    assert not health.admits(0.99, 0)
    assert health.admits(1.0, 0)
    assert not health.admits(1.0, 1), "a second one waits for the first"
    health.answered(1.5)
    assert health.admits(1.5, 7)


def test_pauses_double_up_to_the_bound_and_begin_anew_after_an_answer() -> None:
    health = out()
    now_s = 0.0
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        assert not health.admits(now_s + pause_s - 0.01, 0)
        now_s += pause_s
        assert health.admits(now_s, 0)
        health.leg_failed(now_s)
        assert health.state is State.OUT
    assert health.admits(now_s + 4.0, 0)
    health.answered(now_s + 4.0)
    for _ in range(3):
        health.leg_failed(50.0)
    assert not health.admits(50.99, 0)
    assert health.admits(51.0, 0)


def test_an_old_leg_that_ends_well_does_not_bring_it_back() -> None:
    health = out()
    health.answered(0.5)
    assert not health.admits(0.5, 0)


STEPS = st.lists(st.tuples(st.sampled_from(["answered", "failed", "good", "bad"]), st.floats(0, 3)))


@given(STEPS)
def test_out_is_left_only_by_a_pause_and_a_good_check(steps: list[tuple[str, float]]) -> None:
    health, now_s, out_since_s = fresh(), 0.0, None
    for step, passed_s in steps:
        now_s += passed_s
        before = health.state
        admitted = health.admits(now_s, 0)
        if before is State.OUT and admitted:
            assert out_since_s is not None
            assert now_s - out_since_s >= 1.0 - 1e-9
            assert health.check_good is not False
        moves = {
            "answered": lambda at=now_s: health.answered(at),
            "failed": lambda at=now_s: health.leg_failed(at),
            "good": lambda at=now_s: health.checked(True, at),
            "bad": lambda at=now_s: health.checked(False, at),
        }
        between = health.state
        moves[step]()
        if health.state is State.OUT and between is not State.OUT:
            out_since_s = now_s
