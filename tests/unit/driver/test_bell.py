"""The bell wakes, coalesces, keeps the interpreter lock, and is silent once closed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import trio

from kvxfer.driver.bell import Bell


@pytest.fixture
def bell() -> Iterator[Bell]:
    one = Bell()
    yield one
    one.close()


def test_a_ring_from_another_thread_wakes(bell: Bell) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bell.rung)
                await trio.to_thread.run_sync(bell.ring)

    trio.run(main)


def test_many_rings_are_one(bell: Bell) -> None:
    async def main() -> bool:
        for _ in range(1000):
            assert bell.ring()
        with trio.fail_after(30):
            await bell.rung()
        with trio.move_on_after(0) as scope:
            await bell.rung()
        return scope.cancelled_caught

    assert trio.run(main)


def test_a_bell_that_is_full_rings_still(bell: Bell) -> None:
    """As a pipe is that nobody reads; an eventfd takes 2^64 - 2 rings."""
    for _ in range(20_000):
        assert bell.ring()


def test_ringing_keeps_the_interpreter_lock(bell: Bell) -> None:
    gate, ran, ready = threading.Lock(), threading.Event(), threading.Event()

    def wait_then_run() -> None:
        ready.set()
        gate.acquire()
        ran.set()

    gate.acquire()
    thread = threading.Thread(target=wait_then_run)
    before = sys.getswitchinterval()
    try:
        thread.start()
        assert ready.wait(30)
        sys.setswitchinterval(100.0)
        # From here on the thread wants the lock and gets it only where this one lets it go.
        gate.release()
        for _ in range(10_000):
            bell.ring()
        took_it = ran.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join(30)
    assert not took_it
    assert ran.is_set()


def test_a_closed_bell_says_so() -> None:
    bell = Bell()
    bell.close()
    bell.close()
    assert bell.closed
    assert not bell.ring()
