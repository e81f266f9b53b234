"""From any state, if all goes well from here on, everything comes to an end (C2, L1, L2).

Owns the friendly order of moves: what is pending happens, fences succeed, time
passes when nothing else is left. Knows no protocol. Invariant: a state that has
once been seen to come to rest is not looked at again.
"""

from __future__ import annotations

import attrs

from kvxfer.testing.between import Violation
from kvxfer.testing.explore import wires
from kvxfer.testing.explore.checks import check, check_idle, check_rest
from kvxfer.testing.explore.enabled import next_deadline_ms, under_way
from kvxfer.testing.explore.moves import apply, withdraw
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import Draft, State

STEPS_MAX = 400


@attrs.define
class Rest:
    """Follows the friendly path of states until it meets one that came to rest before."""

    rig: Rig
    resting: set[int] = attrs.field(factory=set)

    def check(self, state: State) -> None:
        """Violation where the friendly path breaks an invariant or has no end."""
        path = []
        for _ in range(STEPS_MAX):
            digest = hash(state)
            if digest in self.resting:
                break
            path.append(digest)
            if under_way(state) is None:
                check_idle(self.rig, state)
            after = friendly_step(self.rig, state)
            if after is None:
                check_rest(self.rig, state)
                break
            state = after
            check(self.rig, state)
        else:
            raise Violation(f"C2: no rest after {STEPS_MAX} steps in which all goes well")
        self.resting.update(path)


def friendly_step(rig: Rig, state: State) -> State | None:
    """The next state where all goes well, or None at rest."""
    move = under_way(state)
    if move is not None:
        return apply(rig, state, move)
    waiting = [(a, t) for a, n in enumerate(state.agents) for t in rig.agents.facts[n].waiting]
    if waiting:
        # An engine that announced a prefill ends it: a duty of its adapter.
        draft = Draft.of(state)
        withdraw(rig, draft, *waiting[0])
        return wires.freeze(rig, draft)
    streams = [i for i, holding in enumerate(state.holdings) if not holding.sealed]
    if streams:
        return apply(rig, state, ("seal", streams[0]))
    if next_deadline_ms(rig, state) is not None:
        return apply(rig, state, ("time",))
    return None
