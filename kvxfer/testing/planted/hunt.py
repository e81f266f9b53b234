"""Looks for one planted fault with the explorer, within the fault's own bound.

Owns the verdict. Knows no fault. Invariant: a fault counts as found only where
one of the invariants that it names broke.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import attrs

from kvxfer.testing.explore.configs import by_name
from kvxfer.testing.explore.search import Result, search
from kvxfer.testing.explore.transcript import transcript
from kvxfer.testing.planted.fault import Fault


@attrs.frozen(kw_only=True)
class Hunt:
    """What came of looking for one fault."""

    fault: Fault
    found: bool
    invariant: str
    config: str
    states: int
    """Met until it was found, in that configuration."""
    steps: int
    seconds: float
    text: str
    """The shortest way to it, for people."""


def hunt(fault: Fault) -> Hunt:
    """Search the fault's configurations in their order until it shows."""
    started = time.perf_counter()
    result: Result | None = None
    text = ""
    with fault.plant():
        for name in fault.configs:
            config = by_name(name)
            if config is None:
                raise ValueError(f"{fault.name}: no configuration {name!r}")
            result = search(config, states_max=fault.states_max)
            if result.found is not None:
                text = transcript(config, result.found)
                break
    assert result is not None
    found = result.found
    return Hunt(
        fault=fault,
        found=found is not None and found.invariant in fault.invariants,
        invariant=found.invariant if found is not None else "",
        config=result.config.name,
        states=result.states,
        steps=len(found.trace) if found is not None else 0,
        seconds=time.perf_counter() - started,
        text=text,
    )


def summary(hunts: Iterable[Hunt]) -> dict[str, Any]:
    """The figures, ready for JSON."""
    all_hunts = list(hunts)
    return {
        "planted": len(all_hunts),
        "found": sum(h.found for h in all_hunts),
        "seconds": round(sum(h.seconds for h in all_hunts), 3),
        "faults": [
            {
                "name": h.fault.name,
                "about": h.fault.about,
                "found": h.found,
                "tool": "explore",
                "config": h.config,
                "invariant": h.invariant,
                "states": h.states,
                "states_max": h.fault.states_max,
                "steps": h.steps,
                "seconds": round(h.seconds, 3),
            }
            for h in all_hunts
        ],
    }
