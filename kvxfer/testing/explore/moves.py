"""What each move does to a state.

Owns the verbs. Knows no rule of the protocol: moves feed events to sessions, and
spend budgets. Invariant: `DO` has every verb that `enabled` lists.
"""

from __future__ import annotations

from collections.abc import Callable

from kvxfer.core import events as ev
from kvxfer.core.ids import Attempt, Reason, TransferId
from kvxfer.testing.between import Violation
from kvxfer.testing.explore import books, lives, transport, wires
from kvxfer.testing.explore.enabled import Move, end_of
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import Budget, Draft, Draining, Holding, Phase, State


def apply(rig: Rig, state: State, move: Move) -> State:
    """Make one move. Violation where it breaks an invariant."""
    draft = Draft.of(state)
    DO[move[0]](rig, draft, *move[1:])
    return wires.freeze(rig, draft)


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
        sealed=sealed,
        tag=holding.tag,
        tables=(books.table(rig.content_tags.of(holding.tag)),),
        **_stated(rig, tokens),
    )
    rig.handle(draft, holding.producer, event)


def _stated(rig: Rig, tokens: int) -> dict[str, int]:
    """How an engine says that so many tokens' worth of pieces is final."""
    if not rig.config.by_layers:
        return {"token_count": tokens}
    whole = tokens == rig.config.parts * books.TOKENS_PER_PART
    return {
        "token_count": books.TOKENS_PER_PART if whole else 0,
        "token_ahead": books.TOKENS_PER_PART,
        "layers_final": tokens // books.TOKENS_PER_PART,
    }


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
    if end_of(draft, op) != "fail" and op.phase is not Phase.STOPPED:
        _spend(draft, Budget.FAIL)
    transport.end(rig, draft, op, done=False, quiet=True)


def _unknown(rig: Rig, draft: Draft, index: int) -> None:
    op = draft.ops[index]
    if end_of(draft, op) != "unknown":
        _spend(draft, Budget.UNKNOWN)
    transport.end(rig, draft, op, done=False, quiet=False)


def _fence(rig: Rig, draft: Draft, index: int) -> None:
    transport.answer_fence(rig, draft, index, fenced=True)


def _no_fence(rig: Rig, draft: Draft, index: int) -> None:
    _spend(draft, Budget.NO_FENCE)
    transport.answer_fence(rig, draft, index, fenced=False)


def _time(rig: Rig, draft: Draft) -> None:
    _pass_time(rig, draft, behind_ms=0)


def _time_slower(rig: Rig, draft: Draft) -> None:
    _spend(draft, Budget.SKEW)
    _pass_time(rig, draft, behind_ms=rig.config.skew_ms)


def _pass_time(rig: Rig, draft: Draft, behind_ms: int) -> None:
    """To the next deadline of anybody; D's clock may fall behind meanwhile (J1)."""
    deadlines = [rig.agents.facts[number].deadline_ms for number in draft.agents]
    delta_ms = max(1, min(d for d in deadlines if d is not None))
    at_d_ms = max(0, delta_ms - behind_ms)
    rig.say(f"{delta_ms} ms pass" + (f", {at_d_ms} of them at D" if behind_ms else ""))
    for agent in range(len(draft.agents)):
        rig.feed(draft, agent, ("advance", at_d_ms if agent in rig.d_side else delta_ms))


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
    "time, D slower": _time_slower,
}
