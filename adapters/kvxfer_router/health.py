"""Whether an engine is asked: what its legs and its health checks showed.

Owns one engine's state and when it changes. Refuses to know HTTP, clocks and pools: the
time is an argument. Invariant: an engine that is OUT is asked nothing before its pause is
over, and in TRIAL one request at a time, until one has been answered.

    state   leg answered   legs failed   checks failed   pause over, check good
    UP      UP             OUT           OUT             -
    OUT     OUT            OUT           OUT             TRIAL
    TRIAL   UP             OUT           OUT             -
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs


class State(Enum):
    """What the router sends to an engine."""

    UP = "up"
    """Whatever is chosen for it."""
    OUT = "out"
    """Nothing."""
    TRIAL = "trial"
    """One request, to see whether it is back (half-open)."""


class Event(Enum):
    """What changes a state."""

    ANSWERED = "leg answered"
    LEGS_FAILED = "legs failed"
    CHECKS_FAILED = "checks failed"
    PAUSE_OVER = "pause over, check good"


TABLE: Final = {
    (State.UP, Event.ANSWERED): State.UP,
    (State.UP, Event.LEGS_FAILED): State.OUT,
    (State.UP, Event.CHECKS_FAILED): State.OUT,
    (State.UP, Event.PAUSE_OVER): State.UP,
    (State.OUT, Event.ANSWERED): State.OUT,
    (State.OUT, Event.LEGS_FAILED): State.OUT,
    (State.OUT, Event.CHECKS_FAILED): State.OUT,
    (State.OUT, Event.PAUSE_OVER): State.TRIAL,
    (State.TRIAL, Event.ANSWERED): State.UP,
    (State.TRIAL, Event.LEGS_FAILED): State.OUT,
    (State.TRIAL, Event.CHECKS_FAILED): State.OUT,
    (State.TRIAL, Event.PAUSE_OVER): State.TRIAL,
}


@attrs.define
class Health:
    """One engine's state. Failures of legs and of checks are counted apart.

    A good check does not forgive failed legs: an engine may answer /health and nothing else.
    """

    failures_max: int
    pause_s: float
    pause_s_max: float
    state: State = State.UP
    check_good: bool | None = None
    """The last check's result; None before the first."""
    _next_pause_s: float = attrs.field(init=False)
    until_s: float = 0.0
    _failed_legs: int = 0
    _failed_checks: int = 0

    def __attrs_post_init__(self) -> None:
        self._next_pause_s = self.pause_s

    def admits(self, now_s: float, open_requests: int) -> bool:
        """True if a request may be sent now, while `open_requests` of ours are open there."""
        if self.is_pause_over(now_s):
            self._fire(Event.PAUSE_OVER, now_s)
        return self.state is State.UP or (self.state is State.TRIAL and open_requests == 0)

    def is_pause_over(self, now_s: float) -> bool:
        """True for an engine that is OUT, until the next request tries it."""
        return self.state is State.OUT and now_s >= self.until_s and self.check_good is not False

    def answered(self, now_s: float) -> None:
        """A leg brought an answer."""
        self._failed_legs = 0
        self._fire(Event.ANSWERED, now_s)

    def leg_failed(self, now_s: float) -> None:
        """A leg failed in a way that speaks against the engine, not the request."""
        self._failed_legs += 1
        if self.state is State.TRIAL or self._failed_legs >= self.failures_max:
            self._fire(Event.LEGS_FAILED, now_s)

    def checked(self, good: bool, now_s: float) -> None:
        """A health check has ended."""
        self.check_good = good
        self._failed_checks = 0 if good else self._failed_checks + 1
        if self._failed_checks >= self.failures_max or (not good and self.state is State.TRIAL):
            self._fire(Event.CHECKS_FAILED, now_s)

    def _fire(self, event: Event, now_s: float) -> None:
        before, self.state = self.state, TABLE[self.state, event]
        if self.state is State.OUT and before is not State.OUT:
            self.until_s = now_s + self._next_pause_s
            self._next_pause_s = min(2 * self._next_pause_s, self.pause_s_max)
            self._failed_legs = 0
        elif self.state is State.UP and before is State.TRIAL:
            self._next_pause_s = self.pause_s
