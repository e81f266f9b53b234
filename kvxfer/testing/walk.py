"""Seeded random walks over a `Duet`: the same seed gives the same walk.

Owns the knobs of a walk, drawn per seed so that many faults are off in most
walks (swarm testing), and their weights, so that walks get deep. Knows no rule
of the protocol. A walk that breaks an invariant raises `Violation` with the
seed and the transcript.
"""

from __future__ import annotations

import random

import attrs

from kvxfer.testing.between import Violation
from kvxfer.testing.duet import Duet
from kvxfer.testing.moves import Script, moves

WEIGHTS = (
    ("time", 0.15),
    ("expect", 0.3),
    ("withdraw", 0.2),
    ("decline", 0.2),
    ("cancel", 0.4),
    ("restart", 0.1),
    ("refuse", 0.2),
    ("seal short", 0.2),
    ("drain", 0.1),
)
RARE = ("cut", "lose", "fail", "unknown", "again", "no fence")


@attrs.frozen(kw_only=True)
class Knobs:
    """What one seed draws."""

    script: Script
    linked: bool
    steps: int


def knobs(seed: int) -> Knobs:
    draw = random.Random(f"knobs {seed}")
    faults = draw.random() < 0.8
    return Knobs(
        script=Script(
            transfers=draw.choice((("t",), ("t", "u"))),
            registers_max=draw.choice((1, 2, 3)),
            offers_max=draw.choice((1, 2, 3)),
            restarts_max=draw.choice((0, 1)) if faults else 0,
            consumer_restarts_max=draw.choice((0, 0, 1, 2)) if faults else 0,
            cuts_max=draw.choice((0, 1, 2)) if faults else 0,
            faults=faults,
            pulls=draw.random() < 0.5,
            streams=draw.random() < 0.5,
            drains_max=draw.choice((0, 0, 0, 1, 2)),
        ),
        linked=draw.random() < 0.7,
        steps=draw.choice((10, 20, 40)),
    )


def walk(seed: int) -> Duet:
    """Take one walk and let it come to rest. Raises Violation."""
    chosen = knobs(seed)
    draw = random.Random(f"walk {seed}")
    duet = Duet()
    try:
        if chosen.linked:
            duet.link_up()
        for _ in range(chosen.steps):
            enabled = moves(duet, chosen.script)
            if not enabled:
                break
            weights = [_weight(name) for name, _ in enabled]
            draw.choices(enabled, weights)[0][1]()
        duet.quiesce()
    except Violation as violation:
        lines = "\n".join(duet.transcript)
        raise Violation(f"seed {seed}: {violation}\n{lines}") from violation
    return duet


def _weight(name: str) -> float:
    for start, weight in WEIGHTS:
        if name.startswith(start):
            return weight
    return 0.25 if any(word in name for word in RARE) else 3.0
