"""What one seed draws: engines, timings, and which faults are on.

Owns the swarm: each fault is off in about half of the seeds, since faults that
are always on hide each other (Groce et al., 'Swarm testing', ISSTA 2012). Knows
no engine. Invariant: the knobs are a function of the seed alone.
"""

from __future__ import annotations

import random

import attrs

from kvxfer.limits import Limits, Timings
from kvxfer.testing.sim.agenda import CLOCK_OFFSET_MS_MAX, CLOCK_RATE_PPM_MAX
from kvxfer.testing.sim.shapes import MISFIT, SHAPES, SLABS, Cut, Shape

FAULT_CHANCE = 0.5
"""How likely a fault is on in a seed."""


@attrs.frozen(kw_only=True)
class Rates:
    """Chances, from 0 to 1, of things that may go wrong each time they are done."""

    refuse_post: float = 0.0
    fail_quiet: float = 0.0
    fail_unquiet: float = 0.0
    hold: float = 0.0
    """An operation stays in flight for long, as behind a slow disk or a busy switch."""
    lose_notice: float = 0.0
    repeat_notice: float = 0.0
    refuse_fence: float = 0.0
    refuse_dial: float = 0.0
    cancel: float = 0.0
    withdraw: float = 0.0
    decline: float = 0.0
    late: float = 0.0
    """A leg comes long after the other one."""
    missing: float = 0.0
    """A leg never comes."""
    retry: float = 0.0
    """A lost transfer is dispatched again under the same id."""
    wrong_prompt: float = 0.0
    short_offer: float = 0.0
    repeated: float = 0.0
    """An engine asks twice for the same transfer."""
    bad_table: float = 0.0


@attrs.frozen(kw_only=True)
class Ways:
    """How transfers are done in a seed; chances from 0 to 1."""

    pull: float = 0.0
    """D reads."""
    stream: float = 0.0
    """The offer grows while the prefill runs."""
    read_back: float = 0.0
    """From the decoding to the prefilling engine; above 0, every engine has both roles."""
    cut: Cut = attrs.field(factory=Cut)


@attrs.frozen(kw_only=True)
class Incidents:
    """How often, per 1,000 transfers, something happens to a pair of agents or an engine."""

    cuts: int = 0
    partitions: int = 0
    clogs: int = 0
    stalls: int = 0
    producer_restarts: int = 0
    consumer_restarts: int = 0
    shutdowns: int = 0
    drains: int = 0


@attrs.frozen(kw_only=True)
class Knobs:
    """One seed's world."""

    producers: tuple[Shape, ...]
    consumers: tuple[Shape, ...]
    timings: Timings
    limits: Limits
    rates: Rates
    ways: Ways
    incidents: Incidents
    delay_us_max: int
    spacing_us: int
    """Mean time between two transfers."""
    clocks: bool
    """Agents' clocks start and run differently."""
    on_wire: bool
    """Every message goes through its bytes."""
    slabs: int
    """How many requests have room in an engine at a time."""
    windows_max: int
    """Into how many windows a part is cut."""


RATES = {
    "refuse_post": 0.02,
    "fail_quiet": 0.02,
    "fail_unquiet": 0.01,
    "hold": 0.01,
    "lose_notice": 0.01,
    "repeat_notice": 0.05,
    "refuse_fence": 0.5,
    "refuse_dial": 0.1,
    "cancel": 0.08,
    "withdraw": 0.05,
    "decline": 0.04,
    "late": 0.04,
    "missing": 0.02,
    "retry": 0.5,
    "wrong_prompt": 0.02,
    "short_offer": 0.02,
    "repeated": 0.03,
    "bad_table": 0.01,
}
INCIDENTS = {
    "cuts": 20,
    "partitions": 20,
    "clogs": 20,
    "stalls": 20,
    "producer_restarts": 8,
    "consumer_restarts": 8,
    "shutdowns": 6,
    "drains": 6,
}


def draw_knobs(seed: int) -> Knobs:
    draw = random.Random(f"kvxfer sim knobs {seed}")
    peaceful = draw.random() < 0.05
    chance = 0.0 if peaceful else FAULT_CHANCE
    rates = {
        name: high * draw.choice((0.3, 1.0, 3.0 if high < 0.1 else 1.0))
        for name, high in RATES.items()
        if draw.random() < chance
    }
    incidents = {
        name: draw.randint(1, high) for name, high in INCIDENTS.items() if draw.random() < chance
    }
    producers, consumers = _engines(draw), _engines(draw)
    if draw.random() < 0.1 * chance:
        consumers = (*consumers[:1], MISFIT)
    return Knobs(
        producers=producers,
        consumers=consumers,
        timings=_timings(draw),
        limits=_limits(draw),
        rates=Rates(**rates),
        ways=_ways(draw),
        incidents=Incidents(**incidents),
        delay_us_max=draw.choice((200, 2_000, 20_000)),
        spacing_us=draw.choice((5_000, 15_000, 40_000)),
        clocks=draw.random() < 0.5,
        on_wire=draw.random() < 0.06,
        slabs=draw.choice((10, SLABS, SLABS)),
        windows_max=draw.choice((1, 1, 3)),
    )


def _engines(draw: random.Random) -> tuple[Shape, ...]:
    """Two to four agents in one to four engines."""
    shapes: list[Shape] = []
    agents_max = draw.choice((2, 2, 3, 4))
    while agents := agents_max - sum(shape.ranks for shape in shapes):
        shapes.append(draw.choice([shape for shape in SHAPES if shape.ranks <= agents]))
    return tuple(shapes)


def _ways(draw: random.Random) -> Ways:
    return Ways(
        pull=draw.choice((0.0, 0.0, 0.3, 1.0)),
        stream=draw.choice((0.0, 0.0, 0.5)),
        read_back=draw.choice((0.0, 0.0, 0.0, 0.25)),
        cut=draw.choice((Cut(), Cut(), Cut(tokens=4), Cut(tokens=4, layers=True))),
    )


def _timings(draw: random.Random) -> Timings:
    renew_ms = draw.choice((100, 500, 2_000))
    grant_lease_ms = renew_ms * draw.choice((2, 4, 15))
    return Timings(
        handshake_ms=draw.choice((500, 10_000)),
        transfer_deadline_ms=draw.choice((1_500, 5_000, 60_000)),
        offer_lease_ms=draw.choice((1_000, 5_000, 30_000)),
        renew_ms=renew_ms,
        renew_misses_max=draw.choice((2, 5)),
        grant_lease_ms=grant_lease_ms,
        # More than two clocks drift apart in one lease.
        lease_margin_ms=2 + 2 * grant_lease_ms * CLOCK_RATE_PPM_MAX // 1_000_000,
        drain_ms=draw.choice((500, 5_000)),
        fence_retry_ms=draw.choice((100, 1_000)),
        tombstone_ms=draw.choice((60_000, 600_000)),
    )


def _limits(draw: random.Random) -> Limits:
    tight = draw.random() < 0.07
    return Limits(
        transfers_max=8 if tight else Limits().transfers_max,
        grants_parked_max=10 if tight else Limits().grants_parked_max,
        tombstones_max=200 if draw.random() < 0.15 else Limits().tombstones_max,
    )


def draw_clock(draw: random.Random) -> tuple[int, int]:
    """Offset in milliseconds and rate in parts per million."""
    return (
        draw.randrange(CLOCK_OFFSET_MS_MAX),
        draw.randint(-CLOCK_RATE_PPM_MAX // 2, CLOCK_RATE_PPM_MAX // 2),
    )
