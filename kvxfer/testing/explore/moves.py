"""Every move that the world can make next, and what it does.

Owns the list of enabled moves and their effect on a draft. Knows no rule of the
protocol. Invariant: the list is a function of the state alone, in a fixed order,
so a trace of indices repeats a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvxfer.core import events as ev
from kvxfer.core.ids import Attempt, Reason, TransferId
from kvxfer.testing.between import Violation
from kvxfer.testing.explore import books, lives, transport, wires
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import (
    Budget,
    Cable,
    Draft,
    Draining,
    End,
    Holding,
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
            how = _end_of(state, op)
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


def apply(rig: Rig, state: State, move: Move) -> State:
    """Make one move. Violation where it breaks an invariant."""
    draft = Draft.of(state)
    DO[move[0]](rig, draft, *move[1:])
    return wires.freeze(rig, draft)


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
            by_itself = _end_of(state, op)
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


def _end_of(state: State | Draft, op: Op) -> str:
    """How a posted operation ends where nothing more happens to it."""
    if not op.work.read:
        return "unknown" if op.shut else "done"
    if op.aborted:
        return "fail" if op.shut else "unknown"
    alive = state.lives[op.work.producer] == op.work.producer_life
    return "done" if alive and not op.shut else "fail"


# --- what it does ---


def _spend(draft: Draft, kind: Budget) -> None:
    draft.used[kind] += 1


def _register(rig: Rig, draft: Draft, taker: int, number: int) -> None:
    place = taker * len(rig.config.transfers) + number
    draft.registered[place] += 1
    transfer_id = rig.config.transfers[number]
    tag = rig.config.tag_of(transfer_id, draft.registered[place])
    rig.say(f"{rig.name(taker)}'s engine registers {transfer_id} as {tag}")
    books.book(rig, draft, taker, transfer_id, tag)
    rig.handle(draft, taker, rig.registration(transfer_id, tag, silent=False))
    if draft.draining[taker] is not Draining.NO and books.find(draft, taker, tag) is not None:
        raise Violation(f"P1: {rig.name(taker)} took {tag} although it drains")


def _decline(rig: Rig, draft: Draft, consumer: int, transfer_id: str) -> None:
    _spend(draft, Budget.DECLINE)
    rig.say(f"{rig.name(consumer)}'s engine declines {transfer_id}")
    rig.handle(draft, consumer, rig.registration(transfer_id, "", silent=True))


def _cancel(rig: Rig, draft: Draft, consumer: int, transfer_id: str, tag: str) -> None:
    _spend(draft, Budget.CANCEL)
    rig.say(f"{rig.name(consumer)}'s engine cancels {tag}")
    event = ev.CancelRegistration(
        transfer_id=TransferId(transfer_id), reason=Reason.CANCELLED_BY_CONSUMER, tag=tag
    )
    rig.handle(draft, consumer, event)


def _resolve(rig: Rig, draft: Draft, index: int) -> None:
    rig.say(f"{rig.name(draft.resolves[index][0])}'s driver has worked out the parts")
    rig.resolve(draft, index)


def _unresolved(rig: Rig, draft: Draft, index: int) -> None:
    _spend(draft, Budget.UNRESOLVED)
    consumer, transfer_id, attempt, _, _ = draft.resolves.pop(index)
    rig.say(f"{rig.name(consumer)}'s driver cannot work out the parts of {transfer_id}")
    event = ev.Unresolvable(
        transfer_id=TransferId(transfer_id),
        attempt=Attempt(attempt),
        reason=Reason.LAYOUT_REFUSED,
        detail="",
    )
    rig.handle(draft, consumer, event)


def _offer(rig: Rig, draft: Draft, giver: int, number: int) -> None:
    place = giver * len(rig.config.transfers) + number
    draft.offered[place] += 1
    transfer_id = rig.config.transfers[number]
    tag = rig.config.tag_of(transfer_id, draft.offered[place])
    tokens = rig.config.tokens.get(tag, rig.config.parts * books.TOKENS_PER_PART)
    sealed = not rig.config.streams
    holding = Holding(giver, transfer_id, tag, tokens if sealed else 0, sealed)
    rig.say(f"{rig.name(giver)}'s engine offers {holding.tokens} tokens of {transfer_id} as {tag}")
    books.hold(draft, holding)
    event = ev.Offer(
        transfer_id=TransferId(transfer_id),
        token_count=holding.tokens,
        digest=rig.config.digest_of("P", tag),
        lease_ms=rig.config.timings.offer_lease_ms,
        tag=tag,
        sealed=sealed,
        tables=(books.table(rig.content_tags.of(tag)),),
    )
    rig.handle(draft, giver, event)


def _grow(rig: Rig, draft: Draft, index: int) -> None:
    tokens = draft.holdings[index].tokens + books.TOKENS_PER_PART
    grow(rig, draft, index, tokens, sealed=False)


def _seal(rig: Rig, draft: Draft, index: int) -> None:
    grow(rig, draft, index, rig.config.parts * books.TOKENS_PER_PART, sealed=True)


def _seal_short(rig: Rig, draft: Draft, index: int) -> None:
    grow(rig, draft, index, draft.holdings[index].tokens, sealed=True)


def grow(rig: Rig, draft: Draft, index: int, tokens: int, *, sealed: bool) -> None:
    """More of a streamed offer is final, or its end has come."""
    holding = draft.holdings[index]
    draft.holdings[index] = holding._replace(tokens=tokens, sealed=sealed)
    how = "seals" if sealed else "grows"
    rig.say(f"{rig.name(holding.producer)}'s engine {how} {holding.tag} at {tokens} tokens")
    event = ev.Grow(
        transfer_id=TransferId(holding.transfer_id),
        token_count=tokens,
        sealed=sealed,
        tag=holding.tag,
        tables=(books.table(rig.content_tags.of(holding.tag)),),
    )
    rig.handle(draft, holding.producer, event)


def _drain(rig: Rig, draft: Draft, agent: int) -> None:
    _spend(draft, Budget.DRAIN)
    rig.say(f"{rig.name(agent)}'s engine drains")
    draft.draining[agent] = Draining.ASKED
    rig.handle(draft, agent, ev.Drain())


def _expect(rig: Rig, draft: Draft, producer: int, transfer_id: str) -> None:
    _spend(draft, Budget.EXPECT)
    rig.say(f"{rig.name(producer)}'s engine expects {transfer_id}")
    rig.handle(draft, producer, ev.Expect(transfer_id=TransferId(transfer_id)))


def _withdraw(rig: Rig, draft: Draft, producer: int, transfer_id: str) -> None:
    _spend(draft, Budget.WITHDRAW)
    withdraw(rig, draft, producer, transfer_id)


def withdraw(rig: Rig, draft: Draft, producer: int, transfer_id: str) -> None:
    """P's engine takes a transfer back."""
    rig.say(f"{rig.name(producer)}'s engine withdraws {transfer_id}")
    event = ev.Withdraw(transfer_id=TransferId(transfer_id), reason=Reason.PRODUCER_ABORTED)
    rig.handle(draft, producer, event)


def _shut_down(rig: Rig, draft: Draft, agent: int) -> None:
    _spend(draft, Budget.SHUT_DOWN)
    rig.say(f"{rig.name(agent)}'s engine shuts down")
    rig.feed(draft, agent, ("shut down",))


def _connect(rig: Rig, draft: Draft, consumer: int, producer: int) -> None:
    rig.say(f"a link opens between {rig.name(consumer)} and {rig.name(producer)}")
    wires.connect(rig, draft, consumer, producer)


def _refuse_dial(rig: Rig, draft: Draft, consumer: int, producer: int) -> None:
    _spend(draft, Budget.REFUSE_DIAL)
    draft.dials.remove((consumer, producer))
    rig.say(f"{rig.name(consumer)} cannot reach {rig.name(producer)}")
    event = ev.Unreachable(peer=rig.key(producer), reason=Reason.UNREACHABLE)
    rig.handle(draft, consumer, event)


def _to_producer(rig: Rig, draft: Draft, link: int) -> None:
    wires.deliver(rig, draft, link, to_producer=True)


def _to_consumer(rig: Rig, draft: Draft, link: int) -> None:
    wires.deliver(rig, draft, link, to_producer=False)


def _notice(rig: Rig, draft: Draft, link: int, index: int) -> None:
    wires.notify(rig, draft, link, index, keep=False)


def _notice_again(rig: Rig, draft: Draft, link: int, index: int) -> None:
    _spend(draft, Budget.AGAIN)
    wires.notify(rig, draft, link, index, keep=True)


def _lose_notice(rig: Rig, draft: Draft, link: int, index: int) -> None:
    _spend(draft, Budget.LOSE)
    wires.lose(rig, draft, link, index)


def _cut_at_consumer(rig: Rig, draft: Draft, link: int) -> None:
    _cut(rig, draft, link, at_consumer=True)


def _cut_at_producer(rig: Rig, draft: Draft, link: int) -> None:
    _cut(rig, draft, link, at_consumer=False)


def _cut(rig: Rig, draft: Draft, link: int, *, at_consumer: bool) -> None:
    cable = draft.cable(link)
    assert cable is not None
    if cable.consumer_open and cable.producer_open:
        _spend(draft, Budget.CUT)
    wires.cut(rig, draft, cable.consumer if at_consumer else cable.producer, link)


def _restart_p(rig: Rig, draft: Draft, agent: int) -> None:
    _spend(draft, Budget.RESTART_P)
    lives.restart(rig, draft, agent)


def _restart_d(rig: Rig, draft: Draft, agent: int) -> None:
    _spend(draft, Budget.RESTART_D)
    lives.restart(rig, draft, agent)


def _post(rig: Rig, draft: Draft, index: int) -> None:
    transport.claim(rig, draft, draft.ops[index], taken=True)


def _refuse_post(rig: Rig, draft: Draft, index: int) -> None:
    _spend(draft, Budget.REFUSE_POST)
    transport.claim(rig, draft, draft.ops[index], taken=False)


def _done(rig: Rig, draft: Draft, index: int) -> None:
    transport.end(rig, draft, draft.ops[index], done=True, quiet=True)


def _fail(rig: Rig, draft: Draft, index: int) -> None:
    op = draft.ops[index]
    if _end_of(draft, op) != "fail" and op.phase is not Phase.STOPPED:
        _spend(draft, Budget.FAIL)
    transport.end(rig, draft, op, done=False, quiet=True)


def _unknown(rig: Rig, draft: Draft, index: int) -> None:
    op = draft.ops[index]
    if _end_of(draft, op) != "unknown":
        _spend(draft, Budget.UNKNOWN)
    transport.end(rig, draft, op, done=False, quiet=False)


def _fence(rig: Rig, draft: Draft, index: int) -> None:
    transport.answer_fence(rig, draft, index, fenced=True)


def _no_fence(rig: Rig, draft: Draft, index: int) -> None:
    _spend(draft, Budget.NO_FENCE)
    transport.answer_fence(rig, draft, index, fenced=False)


def _time(rig: Rig, draft: Draft) -> None:
    facts = rig.agents.facts
    both = [facts[number].deadline_ms for number in draft.agents]
    delta_ms = max(1, min(d for d in both if d is not None))
    rig.say(f"{delta_ms} ms pass")
    for agent in range(len(draft.agents)):
        rig.feed(draft, agent, ("advance", delta_ms))


DO: dict[str, Callable[..., None]] = {
    "register": _register,
    "decline": _decline,
    "cancel": _cancel,
    "resolve": _resolve,
    "unresolved": _unresolved,
    "offer": _offer,
    "grow": _grow,
    "seal": _seal,
    "seal short": _seal_short,
    "drain": _drain,
    "shut down": _shut_down,
    "expect": _expect,
    "withdraw": _withdraw,
    "connect": _connect,
    "refuse dial": _refuse_dial,
    "to P": _to_producer,
    "to D": _to_consumer,
    "notice": _notice,
    "notice again": _notice_again,
    "lose notice": _lose_notice,
    "cut at D": _cut_at_consumer,
    "cut at P": _cut_at_producer,
    "stray": wires.stray,
    "restart P": _restart_p,
    "restart D": _restart_d,
    "post": _post,
    "refuse post": _refuse_post,
    "done": _done,
    "fail": _fail,
    "unknown": _unknown,
    "fence": _fence,
    "no fence": _no_fence,
    "time": _time,
}
