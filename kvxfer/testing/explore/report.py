"""Runs configurations and puts what they found together, for people and for programs.

Owns the choice of configurations and the summary. Knows no terminal. Invariant:
a figure in the summary is one that a search counted or measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs

from kvxfer.testing.explore.checks import INVARIANTS
from kvxfer.testing.explore.config import Config
from kvxfer.testing.explore.configs import CONFIGS
from kvxfer.testing.explore.search import Result, search
from kvxfer.testing.explore.transcript import transcript
from kvxfer.testing.workers import worker_pool

FULL_STATES_MAX = 50_000
"""Where each configuration of a full exploration ends, if it was not exhausted before."""


@attrs.frozen(kw_only=True)
class Report:
    """What an exploration of several configurations found."""

    results: tuple[Result, ...]
    seconds: float

    @property
    def states(self) -> int:
        return sum(result.states for result in self.results)

    @property
    def violations(self) -> int:
        return sum(result.found is not None for result in self.results)

    def summary(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return {
            "states": self.states,
            "violations": self.violations,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(sum(r.cpu_seconds for r in self.results), 3),
            "transitions": sum(r.transitions for r in self.results),
            "invariants": sorted(INVARIANTS),
            "moves": dict(sum((Counter(r.made) for r in self.results), Counter())),
            "configurations": [_summary(result) for result in self.results],
        }


def _summary(result: Result) -> dict[str, Any]:
    found = result.found
    violation = None
    if found is not None:
        violation = {
            "invariant": found.invariant,
            "what": found.what,
            "steps": len(found.trace),
            "transcript": transcript(result.config, found),
        }
    return {
        "name": result.config.name,
        "about": result.config.about,
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "exhausted": result.exhausted,
        "states_max": result.states_max,
        "sessions": result.sessions,
        "seconds": round(result.seconds, 3),
        "cpu_seconds": round(result.cpu_seconds, 3),
        "violation": violation,
    }


def chosen(names: tuple[str, ...], *, full: bool) -> tuple[Config, ...]:
    """The configurations by name, or all that belong to a quick or a full exploration."""
    if names:
        known = {config.name: config for config in CONFIGS}
        return tuple(known[name] for name in names)
    return tuple(config for config in CONFIGS if full or not config.full_only)


def explore(
    configs: tuple[Config, ...],
    *,
    full: bool = False,
    states_max: int | None = None,
    jobs: int = 1,
    progress: Callable[[Result], None] = lambda _result: None,
) -> Report:
    """Search each configuration, `jobs` at a time, each in a process of its own where jobs > 1."""
    started = time.perf_counter()
    bound = FULL_STATES_MAX if full and states_max is None else states_max
    results = []
    for result in _results(configs, bound, jobs):
        progress(result)
        results.append(result)
    return Report(results=tuple(results), seconds=time.perf_counter() - started)


def _results(configs: tuple[Config, ...], bound: int | None, jobs: int) -> Iterator[Result]:
    run = partial(search, states_max=bound)
    if jobs == 1:
        yield from map(run, configs)
        return
    with worker_pool(jobs) as pool:
        yield from pool.imap(run, configs)
