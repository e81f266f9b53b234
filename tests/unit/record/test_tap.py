"""The tap: order, bound, and sinks that fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from kvxfer.core.ids import TransferId
from kvxfer.record import Step, Tap

LOGGER = logging.getLogger("kvxfer.test-tap")


def step(number: int) -> Step:
    return Step(t_ms=number, transfer_id=TransferId("t"), attempt=1, step="granted")


class Kept:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.dropped = 0
        self.closed = False

    def take(self, steps: Sequence[Step], dropped: int) -> None:
        self.steps += steps
        self.dropped += dropped

    def close(self) -> None:
        self.closed = True


class Broken(Kept):
    def take(self, steps: Sequence[Step], dropped: int) -> None:
        raise OSError("disk full")


def test_all_steps_arrive_in_order_before_close_returns() -> None:
    kept = Kept()
    tap = Tap([kept], LOGGER)
    for number in range(1000):
        tap.put(step(number))
    tap.close()
    assert [s.t_ms for s in kept.steps] == list(range(1000))
    assert kept.closed


def test_what_does_not_fit_is_counted_and_told() -> None:
    class Slow(Kept):
        def take(self, steps: Sequence[Step], dropped: int) -> None:
            busy.set()
            assert go_on.wait(60)
            super().take(steps, dropped)

    busy, go_on = threading.Event(), threading.Event()
    slow = Slow()
    tap = Tap([slow], LOGGER, queue_max=5)
    tap.put(step(0))
    assert busy.wait(60)
    for number in range(1, 9):
        tap.put(step(number))
    go_on.set()
    tap.close()
    assert [s.t_ms for s in slow.steps] == [0, 1, 2, 3, 4, 5]
    assert (tap.dropped, slow.dropped) == (3, 3)


def test_a_sink_that_fails_is_left_out_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    tap = Tap([Broken(), kept], LOGGER)
    tap.put(step(1))
    tap.close()
    assert [s.t_ms for s in kept.steps] == [1]
    assert "disk full" in caplog.text


def test_a_sink_that_hangs_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    class Hung(Kept):
        def take(self, steps: Sequence[Step], dropped: int) -> None:
            assert never.wait(60)

    never = threading.Event()
    tap = Tap([Hung()], LOGGER)
    tap.put(step(1))
    tap.close(timeout_s=0.05)
    assert "a sink hangs" in caplog.text
    never.set()
    tap.close()
