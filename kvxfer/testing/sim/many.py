"""Many seeds: one total, in one process or several.

Owns the sum over seeds and nothing of a run. Invariant: the digest of a total is
that of its seeds in their order, however many processes worked on them.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import attrs

from kvxfer.testing.sim.agents import run_agents
from kvxfer.testing.sim.run import Broken, SeedResult, run_seed
from kvxfer.testing.workers import worker_pool

WORLDS: dict[str, Callable[..., SeedResult]] = {"fast": run_seed, "agents": run_agents}
"""The two levels, by name."""


@attrs.define(kw_only=True)
class Total:
    """What a number of seeds came to."""

    seeds: int = 0
    transfers: int = 0
    violations: int = 0
    unended: int = 0
    tables_empty: bool = True
    steps: int = 0
    seconds: float = 0.0
    hits: Counter[str] = attrs.field(factory=Counter)
    broken: list[Broken] = attrs.field(factory=list)
    """The first ones, to be read."""
    _digest: Any = attrs.field(factory=lambda: hashlib.blake2b(digest_size=16))

    BROKEN_MAX = 5

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.transfers += result.transfers
        self.unended += result.unended
        self.tables_empty = self.tables_empty and result.tables_empty
        self.steps += result.steps
        self.hits.update(result.hits)
        self._digest.update(result.digest.encode())
        if result.broken is not None:
            self.violations += 1
            if len(self.broken) < self.BROKEN_MAX:
                self.broken.append(result.broken)

    @property
    def ok(self) -> bool:
        return not self.violations and not self.unended and self.tables_empty

    def summary(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "seeds": self.seeds,
            "transfers": self.transfers,
            "violations": self.violations,
            "unended": self.unended,
            "tables_empty": self.tables_empty,
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "digest": self._digest.hexdigest(),
            "hits": dict(sorted(self.hits.items())),
            "failing": [broken.command for broken in self.broken],
        }


def simulate(
    seeds: Iterable[int],
    transfers: int,
    jobs: int = 1,
    progress: Callable[[SeedResult], None] = lambda _result: None,
    world: str = "fast",
) -> Total:
    """Run every seed with that many transfers.

    `jobs`: how many processes share the work. `world`: "fast", or "agents" for the
    level with real agents, codec and loopback transport.
    """
    started = time.perf_counter()
    total = Total()
    for result in _results(seeds, transfers, jobs, WORLDS[world]):
        total.add(result)
        total.seconds = time.perf_counter() - started
        progress(result)
    return total


def _results(
    seeds: Iterable[int], transfers: int, jobs: int, level: Callable[..., SeedResult]
) -> Iterator[SeedResult]:
    one = partial(level, transfers=transfers)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with worker_pool(jobs) as pool:
        yield from pool.imap(one, seeds)


@attrs.frozen(kw_only=True)
class Found:
    """The first seed at which an invariant broke."""

    broken: Broken
    seeds_tried: int
    transfers_run: int


def find_by_seeds(seeds: Iterable[int], transfers: int = 100) -> Found | None:
    """The first violation over `seeds`, or None: for faults planted in this process's core."""
    run = 0
    for tried, seed in enumerate(seeds, 1):
        result = run_seed(seed, transfers)
        run += result.transfers
        if result.broken is not None:
            return Found(broken=result.broken, seeds_tried=tried, transfers_run=run)
    return None
