"""Restarts: an engine's process dies with all that it had, and comes back as another life.

Owns what survives a death. Knows no protocol. Invariant: what P has posted may
still land after P's death; what was meant for D's dead memory lands nowhere.
"""

from __future__ import annotations

from kvxfer.testing.explore import transport, wires
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import Draft, Draining, Phase


def restart(rig: Rig, draft: Draft, agent: int) -> None:
    """An agent dies with everything it has, and comes back with another incarnation."""
    rig.say(f"{rig.name(agent)} dies and restarts")
    for cable in list(draft.cables):
        if agent in (cable.consumer, cable.producer):
            wires.close_end(rig, draft, agent, cable.link)
        if agent == cable.consumer:
            transport.shut_cable(draft, cable.link)
    _end_operations(draft, agent)
    draft.bookings = [b for b in draft.bookings if b.consumer != agent]
    draft.holdings = [h for h in draft.holdings if h.producer != agent]
    draft.dials = [d for d in draft.dials if d[0] != agent]
    draft.fences = [f for f in draft.fences if f[0] != agent]
    draft.resolves = [r for r in draft.resolves if r[0] != agent]
    draft.draining[agent] = Draining.NO
    draft.lives[agent] += 1
    draft.agents[agent] = rig.new_session(agent, draft.lives[agent])


def _end_operations(draft: Draft, agent: int) -> None:
    transport.taint(draft, agent, None)
    for op in list(draft.ops):
        if op.poster != agent:
            continue
        if op.phase is Phase.QUEUED or op.work.read:
            draft.ops.remove(op)
        elif op.phase is not Phase.ADRIFT:
            transport.adrift(draft, op)
    for index, op in enumerate(draft.ops):
        if op.work.consumer == agent:
            draft.ops[index] = op._replace(shut=True)
    transport.forget_shut(draft)
