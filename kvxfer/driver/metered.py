"""A transport table whose posting calls are timed on the writer thread's own clock.

Owns the measurement. Knows no protocol. Invariant: the table inside is called with
the very same arguments and its answer passed on untouched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvxfer.driver.watch import Meter
from kvxfer.transport.ops import TransportOps
from kvxfer.transport.stubs import overlay

POSTING = ("post_write", "post_read")
"""Calls that do work for each range. Polls are left out: they are short and many, and two
readings of the thread's clock would cost more than most of them."""


def metered(ops: TransportOps, meter: Meter) -> TransportOps:
    """`ops`, with the CPU time of its posting calls added up in `meter`."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began_s = time.thread_time()
            try:
                return function(*args)
            finally:
                meter.post_cpu_s += time.thread_time() - began_s

        return call

    return overlay(ops, {slot: timed(getattr(ops, slot)) for slot in POSTING})
