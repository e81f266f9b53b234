"""Fixtures of the tests against a peer that is not kvxfer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples"))
from door import LoopbackDoor, Producer, memory_of


@pytest.fixture
def producer() -> Iterator[Producer]:
    side = Producer.start()
    yield side
    side.agent.close(timeout_s=0.5)


@pytest.fixture
def door() -> Iterator[LoopbackDoor]:
    one = LoopbackDoor(memory_of())
    yield one
    one.close()
