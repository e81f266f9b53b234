"""Fixtures of the driver's tests; the rig itself is in driver_rig.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvxfer.core.ids import Role
from kvxfer.driver import Timings

sys.path.insert(0, str(Path(__file__).parent))
from driver_rig import Side, Start, starting


@pytest.fixture
def start() -> Iterator[Start]:
    """Start agents; all are closed at the end, and their threads are gone."""
    yield from starting()


@pytest.fixture
def pair(start: Start) -> tuple[Side, Side]:
    quick = Timings(transfer_deadline_ms=5_000, offer_lease_ms=5_000)
    producer = start("P", Role.PRODUCER, 1, timings=quick)
    consumer = start("D", Role.CONSUMER, timings=quick)
    return producer, consumer
