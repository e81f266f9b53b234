"""Processes that share a search or a run of seeds.

Owns how they are started and what Ctrl-C does to them. Knows no work. Invariant: the
parent alone answers Ctrl-C, and ends the workers.
"""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing import resource_tracker
from multiprocessing.pool import Pool


def worker_pool(jobs: int) -> Pool:
    """`jobs` fresh processes that do not see Ctrl-C, which reaches a whole process group.

    A process inherits what is blocked, so not even its own start can be interrupted. The
    tracker is started before: it unblocks the signal in whoever starts it.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return multiprocessing.get_context("spawn").Pool(jobs)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
