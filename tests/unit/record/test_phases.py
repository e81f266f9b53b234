"""Phases from steps: names, first milestone of each, nothing left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvxfer.core.ids import TransferId
from kvxfer.record import Step
from kvxfer.record.histogram import SECONDS, Histogram
from kvxfer.record.phases import CONSUMER, PHASES, PRODUCER, PhaseClock


def feed(clock: PhaseClock, *steps: tuple[str, float], attempt: int = 1) -> None:
    for name, t_ms in steps:
        clock.note(Step(t_ms=t_ms, transfer_id=TransferId("t"), attempt=attempt, step=name))


def seen(clock: PhaseClock) -> dict[str, tuple[int, float]]:
    taken = {name: h.snapshot() for name, h in clock.histograms.items()}
    return {name: (s.count, round(s.total, 6)) for name, s in taken.items() if s.count}


def test_the_consumer_passes_its_milestones() -> None:
    clock = PhaseClock()
    feed(clock, ("registered", 0), ("granted", 5), ("granted", 9), ("landed", 105), ("let go", 105))
    assert seen(clock) == {"granted": (1, 0.005), "landed": (1, 0.1)}
    assert len(clock) == 0


def test_the_producer_passes_its_own_and_may_skip_one() -> None:
    clock = PhaseClock()
    feed(clock, ("offered", 0), ("grant parked", 1), ("matched", 2), ("posted", 4))
    feed(clock, ("posted", 6), ("written", 8), ("sent", 10))
    assert seen(clock) == {"matched": (1, 0.002), "posted": (1, 0.002), "sent": (1, 0.006)}
    pull = PhaseClock()
    feed(pull, ("offered", 0), ("matched", 2), ("lent", 2), ("sent", 10))
    assert seen(pull) == {"matched": (1, 0.002), "sent": (1, 0.008)}
    assert len(clock) == len(pull) == 0


def test_what_fails_ends_its_book_and_no_phase() -> None:
    clock = PhaseClock()
    feed(clock, ("registered", 0), ("granted", 5), ("lost", 50), ("landed", 60))
    feed(clock, ("offered", 0), ("unsent", 50), ("sent", 60))
    assert seen(clock) == {"granted": (1, 0.005)}
    assert len(clock) == 0


def test_attempts_are_told_apart() -> None:
    clock = PhaseClock()
    feed(clock, ("registered", 0))
    feed(clock, ("registered", 100), ("granted", 101), attempt=2)
    assert seen(clock) == {"granted": (1, 0.001)}
    assert len(clock) == 2


@given(st.lists(st.tuples(st.sampled_from((*CONSUMER, *PRODUCER, "lost", "unsent")), st.just(0.0))))
def test_the_book_holds_at_most_what_is_open(steps: list[tuple[str, float]]) -> None:
    clock = PhaseClock()
    feed(clock, *steps)
    feed(clock, ("lost", 0), ("unsent", 0))
    assert len(clock) == 0
    assert set(seen(clock)) <= set(PHASES)


def test_histogram_buckets_hold_what_is_at_most_their_bound() -> None:
    histogram = Histogram()
    for value in (0.0, SECONDS[0], 0.00011, 61.0):
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert (snapshot.counts[0], snapshot.counts[1], snapshot.counts[-1]) == (2, 1, 1)
    assert (snapshot.count, round(snapshot.total, 5)) == (4, 61.00021)
