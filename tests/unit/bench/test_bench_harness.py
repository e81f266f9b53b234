"""Cases take turns, samples are kept apart, what cannot run says why."""

from __future__ import annotations

import gc

import pytest

from kvxfer.bench.harness import Case, Row, measure
from kvxfer.errors import BadValue


class Clock:
    """Seconds that advance only when something is run."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def case_of(name: str, clock: Clock, seconds: float, log: list[str]) -> Case:
    def run() -> None:
        log.append(name)
        clock.now += seconds

    return Case(name=name, run=run, facts={"ranges": 3})


def test_cases_take_turns_in_an_order_that_rotates() -> None:
    clock, log = Clock(), list[str]()
    cases = [case_of(name, clock, 0.001, log) for name in "abc"]
    measure(cases, rounds=3, warmup=0, clock=clock)
    assert "".join(log) == "abcbcacab"


def test_samples_are_milliseconds_of_each_case_alone() -> None:
    clock, log = Clock(), list[str]()
    cases = [case_of("a", clock, 0.25, log), case_of("b", clock, 0.5, log)]
    fast, slow = measure(cases, rounds=4, warmup=2, clock=clock)
    assert fast.samples_ms == (250.0,) * 4
    assert slow.samples_ms == (500.0,) * 4
    assert len(log) == 12


def test_percentiles() -> None:
    row = Row(name="a", facts={}, samples_ms=tuple(float(n) for n in range(10, 0, -1)))
    assert (row.ms(10), row.ms_p50, row.ms(90)) == (2.0, 5.5, 10.0)
    assert row.ms(100) == 10.0


def test_a_row_as_plain_values() -> None:
    row = Row(name="a", facts={"ranges": 7}, samples_ms=(1.0, 2.0, 3.0))
    assert row.to_plain() == {
        "name": "a",
        "ranges": 7,
        "ms_p50": 2.0,
        "ms_p10": 1.0,
        "ms_p90": 3.0,
        "rounds": 3,
    }


def test_what_cannot_run_has_its_reason_and_no_time() -> None:
    ran, skipped = measure(
        [Case(name="a", run=lambda: None), Case(name="b", skipped="no such library")], rounds=2
    )
    assert len(ran.samples_ms) == 2
    assert skipped.to_plain() == {"name": "b", "skipped": "no such library"}
    assert skipped.ms_p50 is None
    assert skipped.ms(50) is None


def test_nothing_to_run_is_no_error() -> None:
    assert measure([], rounds=1) == []


def test_the_collector_stands_still_and_comes_back() -> None:
    seen = []
    measure([Case(name="a", run=lambda: seen.append(gc.isenabled()))], rounds=1, warmup=0)
    assert seen == [False]
    assert gc.isenabled()

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure([Case(name="a", run=broken)], rounds=1)
    assert gc.isenabled()


@pytest.mark.parametrize("rounds", [0, -1, 10**6])
def test_rounds_have_a_bound(rounds: int) -> None:
    with pytest.raises(BadValue, match="rounds"):
        measure([], rounds=rounds)
