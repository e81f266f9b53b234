"""Processes that share a search or a run of seeds.

Owns how they are started and what Ctrl-C does to them. Knows no work. Invariant: the
parent alone answers Ctrl-C, and ends the workers.
"""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.pool import Pool


def worker_pool(jobs: int) -> Pool:
    """`jobs` fresh processes that do not see Ctrl-C, which reaches a whole process group."""
    context = multiprocessing.get_context("spawn")
    return context.Pool(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
