"""Bytes of a request in flight, at both of its ends together.

Owns the measurement. Invariant: all requests are counted in the same state, known to both
sides and with nothing posted yet; links, caches and one request of each peer came before.
"""

from __future__ import annotations

import gc
import time
import tracemalloc

import attrs

from kvxfer.bench.peers.arm import Arm, Load

SETTLE_S = 0.2


@attrs.frozen(kw_only=True)
class Bytes:
    """Of one request: what Python allocated, numpy's arrays among it."""

    held: float
    remembered: float
    """Once it has ended: in tombstones and the flight recorder, up to their bounds."""


def bytes_of(load: Load) -> Bytes:
    """Raises KvxferError or ImportError where the transport cannot be used here."""
    arm = Arm.start(load)
    try:
        arm.run(load.peers)
        gc.collect()
        tracemalloc.start()
        try:
            arm.hold()
            held = _traced()
            arm.release()
            remembered = _traced()
        finally:
            tracemalloc.stop()
    finally:
        arm.close()
    return Bytes(held=held / load.in_flight, remembered=remembered / load.in_flight)


def _traced() -> int:
    """Once both ends rest: messages on their way are not a request's memory."""
    gc.collect()
    before, now = None, tracemalloc.get_traced_memory()[0]
    while before is None or now < before:
        time.sleep(SETTLE_S)
        before, now = now, tracemalloc.get_traced_memory()[0]
    return min(before, now)
