"""Restarts: an engine's process dies with all that it had, and comes back as another life.

Owns what survives a death. Knows no protocol. Invariant: what P has posted may
still land after P's death; what was meant for D's dead memory lands nowhere.
"""

from __future__ import annotations

from kvxfer.testing.explore import transport, wires
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import Draft, Phase


def restart_producer(rig: Rig, draft: Draft, producer: int) -> None:
    """P dies with everything it has posted, and comes back with another incarnation."""
    rig.say(f"{rig.name(producer)} dies and restarts")
    for cable in list(draft.cables):
        if cable.producer == producer:
            wires.close_end(rig, draft, producer, cable.link)
    for op in list(draft.ops):
        if op.producer == producer and op.life == draft.lives[producer]:
            if op.phase is Phase.QUEUED:
                draft.ops.remove(op)
            else:
                transport.adrift(draft, op)
    draft.holdings = [h for h in draft.holdings if h.producer != producer]
    _new_life(rig, draft, producer)


def restart_consumer(rig: Rig, draft: Draft, consumer: int) -> None:
    """D dies with its memory, and comes back with another incarnation."""
    rig.say(f"{rig.name(consumer)} dies and restarts")
    for cable in list(draft.cables):
        if cable.consumer == consumer:
            wires.close_end(rig, draft, consumer, cable.link)
            transport.shut_cable(draft, cable.link)
    for index, op in enumerate(draft.ops):
        if op.work.consumer == consumer:
            draft.ops[index] = op._replace(shut=True)
    transport.forget_shut(draft)
    draft.bookings = [b for b in draft.bookings if b.consumer != consumer]
    draft.dials = [d for d in draft.dials if d[0] != consumer]
    draft.fences = [f for f in draft.fences if f[0] != consumer]
    draft.resolves = [r for r in draft.resolves if r[0] != consumer]
    _new_life(rig, draft, consumer)


def _new_life(rig: Rig, draft: Draft, agent: int) -> None:
    draft.lives[agent] += 1
    draft.agents[agent] = rig.new_session(agent, draft.lives[agent])
