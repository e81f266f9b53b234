"""Breadth-first search over states: each distinct one once, the shortest way first.

Owns the frontier, the set of states met and the way back to the start. Knows
nothing of what a state is. Invariant: states are met in order of their distance
from the start, so the first violation found has the shortest trace there is.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping

import attrs

from kvxfer.testing.between import Violation
from kvxfer.testing.explore.checks import check
from kvxfer.testing.explore.config import Config
from kvxfer.testing.explore.enabled import Move, moves
from kvxfer.testing.explore.moves import apply
from kvxfer.testing.explore.rest import Rest
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import State


@attrs.frozen(kw_only=True)
class Found:
    """A violation and the shortest way to it."""

    invariant: str
    what: str
    trace: tuple[Move, ...]
    in_rest: bool
    """It shows on the friendly way on from the trace's end, not at the end itself."""


@attrs.frozen(kw_only=True)
class Result:
    """What one exploration found."""

    config: Config
    states: int
    states_max: int
    transitions: int
    depth: int
    exhausted: bool
    """Every state that the configuration allows was met; else `states_max` ended the search."""
    seconds: float
    cpu_seconds: float
    sessions: int
    """Distinct session states: how much of it was run by the real machines."""
    runs: int
    made: Mapping[str, int]
    """How often each kind of move was made."""
    found: Found | None


@attrs.define
class _Search:
    """One search under way."""

    rig: Rig
    rest: Rest
    met: set[int] = attrs.field(factory=set)
    parents: array[int] = attrs.field(factory=lambda: array("q"))
    choices: array[int] = attrs.field(factory=lambda: array("H"))
    made: Counter[str] = attrs.field(factory=Counter)

    def meet(self, state: State, parent: int, choice: int) -> bool:
        """True for a state not met before."""
        digest = hash(state)
        if digest in self.met:
            return False
        self.met.add(digest)
        self.parents.append(parent)
        self.choices.append(choice)
        return True

    def trace(self, number: int) -> tuple[Move, ...]:
        """The moves from the start to a state, by its number."""
        choices = []
        while self.parents[number] >= 0:
            choices.append(self.choices[number])
            number = self.parents[number]
        state, found = self.rig.start(), []
        for choice in reversed(choices):
            move = moves(self.rig, state)[choice]
            found.append(move)
            state = apply(self.rig, state, move)
        return tuple(found)


def search(config: Config, states_max: int | None = None) -> Result:
    """Meet every state of a configuration, up to `states_max`, and check each."""
    started, cpu_started = time.perf_counter(), time.process_time()
    bound = config.states_max if states_max is None else states_max
    rig = Rig(config)
    under_way = _Search(rig, Rest(rig))
    found, depth, exhausted = _run(under_way, bound)
    return Result(
        config=config,
        states=len(under_way.met),
        states_max=bound,
        transitions=under_way.made.total(),
        made=dict(under_way.made),
        depth=depth,
        exhausted=exhausted,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
        sessions=len(rig.agents),
        runs=rig.agents.runs,
        found=found,
    )


def _run(under_way: _Search, bound: int) -> tuple[Found | None, int, bool]:
    rig = under_way.rig
    start = rig.start()
    under_way.meet(start, -1, 0)
    frontier = deque([(start, 0, 0)])
    depth = 0
    while frontier:
        state, number, depth = frontier.popleft()
        for choice, move in enumerate(moves(rig, state)):
            under_way.made[move[0]] += 1
            at_end = False
            try:
                after = apply(rig, state, move)
                if not under_way.meet(after, number, choice):
                    continue
                check(rig, after)
                at_end = True
                under_way.rest.check(after)
            except Violation as violation:
                trace = (*under_way.trace(number), move)
                return _found(violation, trace, in_rest=at_end), depth + 1, False
            frontier.append((after, len(under_way.parents) - 1, depth + 1))
        if len(under_way.met) >= bound:
            return None, depth, not frontier
    return None, depth, True


def _found(violation: Violation, trace: tuple[Move, ...], *, in_rest: bool) -> Found:
    text = str(violation)
    return Found(invariant=text.partition(":")[0], what=text, trace=trace, in_rest=in_rest)
