"""What is done to a pair in a chaos run: kills with restarts, and stalls.

Owns the schedule, drawn from a seed, and its carrying out. Judges nothing. Invariant: one
incident at a time; when `run` returns, both engines run and none is stopped.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from enum import Enum

import attrs

from kvxfer_vllm.pd.engines import EngineSpec
from kvxfer_vllm.pd.pair import Pair

CYCLE_S = 240.0
"""Each engine is killed once in so long, counted while both are up."""
KILLS_AT = {"D": 0.15, "P": 0.4}
"""At which share of a cycle, D first: what P's end leaves at D then stays, and is seen."""
STALL_EVERY_S = (6.0, 14.0)
STALL_S = (0.5, 6.0)
POLL_S = 0.1


class Kind(Enum):
    """What an incident is."""

    KILL = "kill"
    STALL = "stall"


@attrs.frozen(kw_only=True)
class Incident:
    """One thing to do. `at_s` counts the time in which both engines are up."""

    kind: Kind
    engine: str
    at_s: float
    for_s: float = 0.0


@attrs.frozen(kw_only=True)
class Window:
    """When an incident was felt. Times as of `time.monotonic`."""

    incident: Incident
    begun_s: float
    ended_s: float


def schedule(seconds: float, rng: random.Random) -> list[Incident]:
    """The incidents of a run: stalls at random, kills at fixed shares of each cycle."""
    cycle_s = min(CYCLE_S, seconds)
    cycles = max(1, round(seconds / cycle_s))
    found = [
        Incident(kind=Kind.KILL, engine=engine, at_s=(cycle + share) * cycle_s)
        for cycle in range(cycles)
        for engine, share in KILLS_AT.items()
    ]
    at_s = rng.uniform(*STALL_EVERY_S)
    while at_s < seconds:
        for_s = rng.uniform(*STALL_S)
        engine = rng.choice(tuple(KILLS_AT))
        found.append(Incident(kind=Kind.STALL, engine=engine, at_s=at_s, for_s=for_s))
        at_s += for_s + rng.uniform(*STALL_EVERY_S)
    return sorted(found, key=lambda incident: incident.at_s)


@attrs.define
class Faults:
    """The incidents of one run, carried out."""

    pair: Pair
    windows: list[Window] = attrs.field(factory=list)
    _up_s: float = 0.0
    """How long both engines were up so far."""

    async def run(self, incidents: Sequence[Incident], seconds: float) -> None:
        """Carry all out at their times, until both engines were up for `seconds`."""
        for incident in incidents:
            await self._pass_time(incident.at_s)
            await self._carry_out(incident)
        await self._pass_time(seconds)

    async def _pass_time(self, until_s: float) -> None:
        while self._up_s < until_s:
            before_s = time.monotonic()
            await asyncio.sleep(POLL_S)
            self._up_s += time.monotonic() - before_s

    async def _carry_out(self, incident: Incident) -> None:
        begun_s = time.monotonic()
        spec = self._spec(incident.engine)
        if incident.kind is Kind.KILL:
            self.pair.setting.say(f"    kill {spec.name}")
            await asyncio.to_thread(self.pair.kill, spec)
            await self.pair.restart(spec)
        else:
            await self._stall(spec, incident.for_s)
            self._up_s += incident.for_s
        window = Window(incident=incident, begun_s=begun_s, ended_s=time.monotonic())
        self.windows.append(window)

    async def _stall(self, spec: EngineSpec, for_s: float) -> None:
        self.pair.setting.say(f"    {spec.name} stopped for {for_s:.1f} s")
        self.pair.freeze(spec, on=True)
        try:
            await asyncio.sleep(for_s)
        finally:
            self.pair.freeze(spec, on=False)

    def _spec(self, engine: str) -> EngineSpec:
        return self.pair.prefill if engine == self.pair.prefill.name else self.pair.decode
