"""What all parts of one run share: time, chance, records and the faults that hit.

Owns the run's one source of chance. Knows no protocol. Invariant: once `calm` was
called nothing goes wrong any more that had not begun before.
"""

from __future__ import annotations

import random
from collections import Counter

import attrs

from kvxfer.testing.between import Violation
from kvxfer.testing.sim.agenda import Agenda
from kvxfer.testing.sim.history import History
from kvxfer.testing.sim.knobs import Knobs, Rates

RARE = (
    "grants_refused",
    "late_messages",
    "late_offers",
    "late_operations",
    "pairs_refused",
    "reads_after_lease",
    "repeated_parts",
    "stale_messages",
)
"""Counters of the core that stand for paths which a run should reach."""


class SimViolation(Violation):
    """A violation, and the transfer that it concerns ("" where it is about none)."""

    def __init__(self, rule: str, transfer: str = "") -> None:
        super().__init__(rule)
        self.transfer = transfer


@attrs.define(eq=False)
class Scene:
    """Handed to everything that acts in a run."""

    seed: int
    knobs: Knobs
    agenda: Agenda = attrs.field(factory=Agenda)
    history: History = attrs.field(factory=History)
    hits: Counter[str] = attrs.field(factory=Counter)
    """Faults that really hit, and ends that engines were told of."""
    faulty: bool = True
    rates: Rates = attrs.field(init=False)
    draw: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rates = self.knobs.rates
        self.draw = random.Random(f"kvxfer sim {self.seed}")

    def calm(self) -> None:
        """Faults stop."""
        self.faulty = False
        self.rates = Rates()
        self.note("world", "faults stop")

    def note(self, where: str, what: str, transfer: str = "", more: str = "") -> None:
        self.history.note(self.agenda.now_us, where, what, transfer, more)

    def hit(self, name: str) -> None:
        self.hits[name] += 1

    def count(self, counters: Counter[str]) -> None:
        """A life of an agent is over, or the run is: what its core counted of rare things."""
        for name in RARE:
            if counters[name]:
                self.hits[f"core: {name}"] += counters[name]

    def chance(self, name: str) -> bool:
        """Does this go wrong now? A fault that hits is counted."""
        rate: float = getattr(self.rates, name)
        if rate and self.draw.random() < rate:
            self.hits[name] += 1
            return True
        return False

    def delay_us(self) -> int:
        """One way through the network; at least 1, so that order is never a tie."""
        return 1 + int(self.draw.random() * self.knobs.delay_us_max)

    def long_us(self) -> int:
        """How long something is stuck: 20 ms to 20 s, short ones more often; or about a lease."""
        if self.draw.random() < 0.3:
            lease_us = min(1000 * self.knobs.timings.grant_lease_ms, 20_000_000)
            return int(lease_us * (0.7 + 1.3 * self.draw.random()))
        return int(20_000 * 10 ** (3 * self.draw.random()))
