"""A pair that shares a key, and what it takes to attack it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvxfer.core.ids import Role

sys.path.insert(0, str(Path(__file__).parent))
from attacker import QUICK, RING, Attacker, Meddle, Relay, Side, toward
from driver_rig import Start, starting


@pytest.fixture
def start() -> Iterator[Start]:
    """Start agents; all are closed at the end, and their threads are gone."""
    yield from starting(keys=RING, timings=QUICK)


@pytest.fixture
def pair(start: Start) -> tuple[Side, Side]:
    return start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)


@pytest.fixture
def attack() -> Iterator[Callable[..., Attacker]]:
    """Attackers; closed at the end."""
    made: list[Attacker] = []

    def one(side: Side, **changes: object) -> Attacker:
        made.append(toward(side, **changes))
        return made[-1]

    yield one
    for attacker in made:
        attacker.close()


@pytest.fixture
def relay() -> Iterator[Callable[[Side, Meddle], Relay]]:
    """Relays in front of an agent; closed at the end."""
    made: list[Relay] = []

    def one(side: Side, meddle: Meddle) -> Relay:
        assert side.agent.address is not None
        made.append(Relay(*side.agent.address, meddle))
        return made[-1]

    yield one
    for middle in made:
        middle.close()
