"""The invariants, and the checks made in every state and at rest.

Owns the list of what the explorer pins and where. Knows no move. Invariant: each
check names the invariant of the failure catalogue that it stands for, first.
"""

from __future__ import annotations

from kvxfer.testing.between import Violation
from kvxfer.testing.explore import books
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import Booking, Budget, Draining, End, Op, Phase, State

INVARIANTS = {
    "A1": "every state: an operation that may write has its slot held for its own attempt",
    "A2": "every state: no operation may still write for an attempt that was let go",
    "A3": "at landing: every cell was written for this attempt",
    "B1": "every state: the source of every posted operation is held by P's engine",
    "B2": "every post: the source is still held at the moment of posting; of a READ, at landing: "
    "from its first byte to its last",
    "C1": "every tell: an end once, before the let-go; where nothing is under way: D knows of "
    "every part that failed or was never posted, and waits for nothing that P has ended",
    "C2": "every state: where all goes well from here, everything comes to an end",
    "C3": "at landing: no cell was written in part only or by an operation of unknown end",
    "D1": "at landing: every cell of the expected set was written",
    "E1": "every tell: the tag's own transfer; at landing: the same prompt's digest",
    "E3": "at landing: every cell holds this transfer's content",
    "F2": "every step: a late message breaks nothing and is told to nobody",
    "I1": "every step: no event after a restart breaks a session",
    "J1": "at landing: what was read counts only within the lease, on a clock that drifts too",
    "J3": "every tell, where all goes well: no lease lapsed and no peer seemed silent",
    "L1": "every state: each timer has its owner; at rest: no table, timer or fence is left",
    "L2": "at rest: both engines hold nothing",
    "N2": "every tell: of what the engine holds, to the side that holds it",
    "P1": "at the tell: who has drained holds nothing; at rest: who was to drain has been told",
    "Q1": "every state: the tokens that a posted operation reads are final",
    "R1": "every step: an end that is told moves exactly one outcome counter",
}
"""Invariant of the failure catalogue -> where the explorer checks it."""


def check(rig: Rig, state: State) -> None:
    """Violation where this state breaks an invariant."""
    for agent, number in enumerate(state.agents):
        for orphan in rig.agents.facts[number].orphans:
            raise Violation(f"L1: {rig.name(agent)} keeps {orphan}, whose owner is gone")
    for op in state.ops:
        if op.phase is Phase.QUEUED:
            continue
        if op.phase is not Phase.ADRIFT and not op.work.read:
            _check_source(rig, state, op)
        if not op.shut:
            _check_target(rig, state, op)


def _check_source(rig: Rig, state: State, op: Op) -> None:
    holding = books.held(state.holdings, op.work)
    name = f"{rig.name(op.poster)}'s {op.name}"
    if holding is None:
        raise Violation(f"B1: {name} reads {op.work.tag}, which the engine may reuse")
    if not books.final(rig, holding, op.work.part):
        raise Violation(f"Q1: {name} reads part {op.work.part} of {op.work.tag}, not final yet")


def _check_target(rig: Rig, state: State, op: Op) -> None:
    work = op.work
    owner: Booking | None = None
    for booking in state.bookings:
        if booking.consumer == work.consumer and booking.slot == work.slot:
            owner = booking
    writer = f"{rig.name(op.poster)}'s {op.name} for {work.transfer_id}/{work.attempt}"
    if owner is None:
        raise Violation(f"A2: {writer} may write into slot {work.slot}, which was let go")
    if (owner.transfer_id, owner.attempt) != (work.transfer_id, work.attempt):
        raise Violation(f"A1: {writer} may write into slot {work.slot}, now {owner.tag}'s")
    if owner.end is End.LANDED:
        raise Violation(f"A1: {writer} may write into {owner.tag}, which has landed")


def check_idle(rig: Rig, state: State) -> None:
    """Violation where all has been delivered and D still waits for what has failed (C1)."""
    for booking in state.bookings:
        for part, stamp in enumerate(booking.cells):
            failed = stamp is not None and not stamp.content and stamp.attempt == booking.attempt
            if failed and booking.end is End.NONE:
                name = rig.name(booking.consumer)
                raise Violation(f"C1: {name} was not told that part {part} of {booking.tag} failed")
    if not state.used[Budget.LOSE]:
        _check_waits(rig, state)


def _check_waits(rig: Rig, state: State) -> None:
    """Nobody waits, up to his deadline, for an attempt that the other side has ended."""
    facts = [rig.agents.facts[number] for number in state.agents]
    for agent, mine in enumerate(facts):
        for peer, attempt in mine.granted:
            if (rig.key(agent), attempt) not in facts[rig.agent(peer)].held:
                what = f"{attempt.transfer_id}/{attempt.attempt}"
                raise Violation(
                    f"C1: {rig.name(agent)} waits for {what}, which the other side has ended"
                )


def check_rest(rig: Rig, state: State) -> None:
    """Violation where a state in which nothing can happen any more has left something."""
    for agent, number in enumerate(state.agents):
        left = rig.agents.facts[number].left
        if left:
            raise Violation(f"L1: {rig.name(agent)} is at rest with {', '.join(left)} not empty")
    for agent, how in enumerate(state.draining):
        if how is Draining.ASKED:
            raise Violation(f"P1: {rig.name(agent)} was never told that it has drained")
    for booking in state.bookings:
        what = "never ended" if booking.end is End.NONE else "was never let go"
        raise Violation(f"L2: {booking.tag} at {rig.name(booking.consumer)} {what}")
    for holding in state.holdings:
        raise Violation(f"L2: offer {holding.tag} at {rig.name(holding.producer)} never ended")
    for op in state.ops:
        raise Violation(f"L1: {op.name} of {rig.name(op.poster)} is still there at rest")
