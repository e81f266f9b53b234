"""Every move that the world can make next.

Owns the list of enabled moves, and which of them go well. Knows no rule of the
protocol. Invariant: the list is a function of the state alone, in a fixed order,
so a trace of indices repeats a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvxfer.testing.explore import books
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import (
    Budget,
    Cable,
    Draft,
    Draining,
    End,
    Op,
    Phase,
    State,
)

Move = tuple[Any, ...]
"""A verb and its arguments: small numbers and names."""


def moves(rig: Rig, state: State) -> list[Move]:
    """All enabled moves."""
    may = _allowance(rig, state)
    found: list[Move] = []
    _consumer_engine(rig, state, may, found)
    _producer_engine(rig, state, may, found)
    _network(rig, state, may, found)
    for cable in state.cables:
        _cable(cable, may, found)
    _transport(state, may, found)
    if next_deadline_ms(rig, state) is not None and _time_may_pass(rig, state):
        found.append(("time",))
        if may(Budget.SKEW):
            found.append(("time, D slower",))
    return found


def _time_may_pass(rig: Rig, state: State) -> bool:
    return rig.config.time_passes or under_way(state) is None


def under_way(state: State) -> Move | None:
    """What is pending and goes well, or None where nothing is."""
    if state.resolves:
        return ("resolve", 0)
    if state.dials:
        return ("connect", *state.dials[0])
    if state.fences:
        return ("fence", 0)
    for index, op in enumerate(state.ops):
        if op.phase is Phase.QUEUED:
            return ("post", index)
        if op.phase is not Phase.ADRIFT:
            how = end_of(state, op)
            stopped = op.phase is Phase.STOPPED and how == "done"
            return ("fail" if stopped else how, index)
    return _under_way_on_cable(state)


def _under_way_on_cable(state: State) -> Move | None:
    for cable in state.cables:
        if not cable.producer_open:
            return ("cut at D", cable.link)
        if not cable.consumer_open:
            return ("cut at P", cable.link)
        if cable.to_producer:
            return ("to P", cable.link)
        if cable.notices:
            return ("notice", cable.link, 0)
        if cable.to_consumer:
            return ("to D", cable.link)
    return None


def next_deadline_ms(rig: Rig, state: State) -> int | None:
    facts = rig.agents.facts
    both = [facts[number].deadline_ms for number in state.agents]
    return min((d for d in both if d is not None), default=None)


def _allowance(rig: Rig, state: State) -> Callable[[Budget], bool]:
    budgets, used = rig.config.budgets, state.used
    return lambda kind: used[kind] < budgets.get(kind, 0)


# --- what is enabled ---

Allowed = Callable[[Budget], bool]


def _consumer_engine(rig: Rig, state: State, may: Allowed, found: list[Move]) -> None:
    names = rig.config.transfers
    for number, transfer_id in enumerate(names):
        for taker in rig.takers(transfer_id):
            if state.registered[taker * len(names) + number] < rig.config.registers_max:
                found.append(("register", taker, number))
            if may(Budget.DECLINE):
                found.append(("decline", taker, transfer_id))
    if may(Budget.CANCEL):
        waiting = [booking for booking in state.bookings if booking.end is End.NONE]
        found += [("cancel", b.consumer, b.transfer_id, b.tag) for b in waiting]
    for index, _ in enumerate(state.resolves):
        found.append(("resolve", index))
        if may(Budget.UNRESOLVED):
            found.append(("unresolved", index))
    if may(Budget.DRAIN):
        asked = [a for a, how in enumerate(state.draining) if how is Draining.NO]
        found += [("drain", agent) for agent in asked]
    if may(Budget.SHUT_DOWN):
        found += [("shut down", agent) for agent in range(len(state.agents))]


def _producer_engine(rig: Rig, state: State, may: Allowed, found: list[Move]) -> None:
    names = rig.config.transfers
    for number, transfer_id in enumerate(names):
        for giver in rig.givers(transfer_id):
            if state.offered[giver * len(names) + number] < rig.config.offers_max:
                found.append(("offer", giver, number))
            if may(Budget.EXPECT):
                found.append(("expect", giver, transfer_id))
            if may(Budget.WITHDRAW):
                found.append(("withdraw", giver, transfer_id))
    for index, holding in enumerate(state.holdings):
        if holding.sealed:
            continue
        if holding.tokens < rig.config.parts * books.TOKENS_PER_PART:
            found.append(("grow", index))
            found.append(("seal short", index))
        found.append(("seal", index))


def _network(rig: Rig, state: State, may: Allowed, found: list[Move]) -> None:
    for dial in state.dials:
        found.append(("connect", *dial))
        if may(Budget.REFUSE_DIAL):
            found.append(("refuse dial", *dial))
    for index, (consumer, producer, _) in enumerate(state.strays):
        if any(
            c.consumer == consumer and c.producer == producer and c.consumer_open
            for c in state.cables
        ):
            found.append(("stray", index))
    if may(Budget.RESTART_P):
        found += [("restart P", agent) for agent in rig.p_side]
    if may(Budget.RESTART_D):
        found += [("restart D", agent) for agent in rig.d_side]


def _cable(cable: Cable, may: Allowed, found: list[Move]) -> None:
    link = cable.link
    if cable.to_producer:
        found.append(("to P", link))
    if cable.to_consumer:
        found.append(("to D", link))
    for index in range(len(cable.notices)):
        found.append(("notice", link, index))
        if may(Budget.AGAIN):
            found.append(("notice again", link, index))
        if may(Budget.LOSE):
            found.append(("lose notice", link, index))
    half_open = cable.consumer_open != cable.producer_open
    if half_open or may(Budget.CUT):
        if cable.consumer_open:
            found.append(("cut at D", link))
        if cable.producer_open:
            found.append(("cut at P", link))


def _transport(state: State, may: Allowed, found: list[Move]) -> None:
    for index, op in enumerate(state.ops):
        if op.phase is Phase.QUEUED:
            found.append(("post", index))
            if may(Budget.REFUSE_POST):
                found.append(("refuse post", index))
        elif op.phase is not Phase.ADRIFT:
            by_itself = end_of(state, op)
            if by_itself == "done":
                found.append(("done", index))
            if by_itself == "fail" or op.phase is Phase.STOPPED or may(Budget.FAIL):
                found.append(("fail", index))
            if by_itself == "unknown" or may(Budget.UNKNOWN):
                found.append(("unknown", index))
    for index, _ in enumerate(state.fences):
        found.append(("fence", index))
        if may(Budget.NO_FENCE):
            found.append(("no fence", index))


def end_of(state: State | Draft, op: Op) -> str:
    """How a posted operation ends where nothing more happens to it."""
    if not op.work.read:
        return "unknown" if op.shut else "done"
    if op.aborted:
        return "fail" if op.shut else "unknown"
    alive = state.lives[op.work.producer] == op.work.producer_life
    return "done" if alive and not op.shut else "fail"
