"""The books of both engines, and their memory: who holds which cells, what is in them.

Owns bookings (D's side) and holdings (P's side), the stamps in destination
cells, and the checks at the moment an engine is told something. Knows no
message. Invariant: cells are given out again only after TellLetGo, source
content is overwritten only after TellSent or TellUnsent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvxfer.core import effects as fx
from kvxfer.core.ids import Reason
from kvxfer.core.messages import BlockRuns, Column
from kvxfer.testing.between import Violation
from kvxfer.testing.explore import transport
from kvxfer.testing.explore.state import Booking, Draft, Draining, End, Holding, Op, Stamp, Work

if TYPE_CHECKING:
    from kvxfer.testing.explore.rig import Rig

COLUMN_BYTES = 8
TOKENS_PER_PART = 10

CALM = frozenset(
    {
        Reason.DEADLINE,
        Reason.CANCELLED_BY_CONSUMER,
        Reason.OFFER_EXPIRED,
        Reason.TRANSPORT_FAILED,
    }
)
"""What may end a transfer where nothing goes wrong: an engine that did not come in time, and
what it has posted then, which is stopped."""


def table(slot: int) -> BlockRuns:
    """A block table that names one slot of the consumer's memory."""
    start = Column(COLUMN_BYTES, slot.to_bytes(COLUMN_BYTES, "little"))
    length = Column(COLUMN_BYTES, (1).to_bytes(COLUMN_BYTES, "little"))
    return BlockRuns(group=0, first_token=0, starts=start, lengths=length)


def slot_in(tables: tuple[BlockRuns, ...]) -> int:
    """The slot that a grant's block table names."""
    return int.from_bytes(tables[0].starts.data, "little") if tables else 0


# --- D's engine ---


def book(rig: Rig, draft: Draft, consumer: int, transfer_id: str, tag: str) -> None:
    """Take the lowest free slot for a new registration; it holds nothing of this transfer."""
    taken = {b.slot for b in draft.bookings if b.consumer == consumer}
    slot = next(s for s in range(1, len(taken) + 2) if s not in taken)
    writers = rig.config.producers - rig.config.idle_producers
    cells = (None,) * (rig.config.parts * writers)
    draft.bookings.append(Booking(consumer, transfer_id, tag, slot, 0, End.NONE, cells))


def find(draft: Draft, consumer: int, tag: str) -> int | None:
    """Where in the books a registration is, if the engine still holds it."""
    for index, booking in enumerate(draft.bookings):
        if booking.consumer == consumer and booking.tag == tag:
            return index
    return None


def numbered(draft: Draft, consumer: int, tag: str, attempt: int) -> None:
    """The session has given the registration its attempt."""
    index = find(draft, consumer, tag)
    if index is not None:
        draft.bookings[index] = draft.bookings[index]._replace(attempt=attempt)


def slot_of(draft: Draft, consumer: int, tag: str) -> int:
    """The slot of a registration; 0, which is nobody's, where the engine holds it no more."""
    index = find(draft, consumer, tag)
    return 0 if index is None else draft.bookings[index].slot


def written(draft: Draft, op: Op, content: str) -> None:
    """An operation has left bytes in its cell: all of them, or not (no content)."""
    work = op.work
    for index, booking in enumerate(draft.bookings):
        if booking.consumer == work.consumer and booking.slot == work.slot:
            stamp = Stamp(op.poster, op.life, op.op, work.attempt, content)
            cells = list(booking.cells)
            cells[work.part] = stamp
            draft.bookings[index] = booking._replace(cells=tuple(cells))


def told_consumer(
    rig: Rig, draft: Draft, agent: int, effect: fx.TellLanded | fx.TellLost | fx.TellLetGo
) -> None:
    """D's engine is told how a registration goes."""
    what = type(effect).__name__.removeprefix("Tell")
    reason = f" ({effect.reason.name})" if isinstance(effect, fx.TellLost) else ""
    rig.say(f"{rig.name(agent)}'s engine is told: {effect.tag} {what}{reason}")
    index = find(draft, agent, effect.tag)
    if index is None:
        raise Violation(f"N2: {what} of {effect.tag!r}, which the engine does not hold")
    booking = draft.bookings[index]
    if booking.transfer_id != effect.transfer_id:
        raise Violation(f"E1: {what} of {effect.tag!r} names transfer {effect.transfer_id}")
    if isinstance(effect, fx.TellLetGo):
        if booking.end is End.NONE:
            raise Violation(f"C1: {effect.tag} let go before it ended")
        del draft.bookings[index]
        return
    if booking.end is not End.NONE:
        raise Violation(f"C1: {effect.tag} ended twice: {booking.end.name}, then {what}")
    if isinstance(effect, fx.TellLost):
        _check_calm(rig, effect.tag, effect.reason)
    landed = isinstance(effect, fx.TellLanded)
    if landed:
        _check_content(rig, booking._replace(attempt=effect.attempt))
    end = End.LANDED if landed else End.LOST
    draft.bookings[index] = booking._replace(end=end, attempt=effect.attempt)


def _check_content(rig: Rig, booking: Booking) -> None:
    """D would decode from these cells now: each must hold the right bytes (D1, C3, E3, A3)."""
    for part, stamp in enumerate(booking.cells):
        where = f"{booking.tag} landed, part {part} of slot {booking.slot}"
        if stamp is None:
            raise Violation(f"D1: {where} was never written")
        if not stamp.content:
            raise Violation(
                f"C3: {where} holds what op {stamp.op} left there, which failed or read too late"
            )
        if stamp.attempt != booking.attempt:
            raise Violation(f"A3: {where} was written for attempt {stamp.attempt}")
        if rig.config.transfer_of(stamp.content) != booking.transfer_id:
            raise Violation(f"E3: {where} holds {stamp.content}")
        theirs, ours = (
            rig.config.digest_of("P", stamp.content),
            rig.config.digest_of("D", booking.tag),
        )
        if theirs and ours and theirs != ours:
            raise Violation(f"E1: {where} holds another prompt's {stamp.content}")


def _check_calm(rig: Rig, tag: str, reason: Reason) -> None:
    if rig.config.calm and reason not in CALM:
        raise Violation(f"J3: {tag} ended by {reason.name} although nothing went wrong")


# --- P's engine ---


def hold(draft: Draft, holding: Holding) -> None:
    """P's engine has offered: the source cells hold the content of that tag."""
    draft.holdings.append(holding)


def held(holdings: Sequence[Holding], work: Work) -> Holding | None:
    """The offer that an operation reads, if P's engine still holds it."""
    for holding in holdings:
        if holding.producer == work.producer and holding.tag == work.tag:
            return holding
    return None


def final(rig: Rig, holding: Holding, part: int) -> bool:
    """True where every token of the part is final."""
    return (part % rig.config.parts + 1) * TOKENS_PER_PART <= holding.tokens


def content(draft: Draft, op: Op) -> str:
    """What the operation has read from its source."""
    return "" if op.tainted or held(draft.holdings, op.work) is None else op.work.tag


def told_producer(rig: Rig, draft: Draft, agent: int, effect: fx.TellSent | fx.TellUnsent) -> None:
    """P's engine may overwrite its source cells."""
    what = type(effect).__name__.removeprefix("Tell")
    reason = f" ({effect.reason.name})" if isinstance(effect, fx.TellUnsent) else ""
    rig.say(f"{rig.name(agent)}'s engine is told: {effect.tag} {what}{reason}")
    if isinstance(effect, fx.TellUnsent):
        _check_calm(rig, effect.tag, effect.reason)
    for index, holding in enumerate(draft.holdings):
        if holding[:3] == (agent, effect.transfer_id, effect.tag):
            del draft.holdings[index]
            transport.taint(draft, agent, effect.tag)
            return
    raise Violation(f"N2: {what} of {effect.tag!r}, which the engine does not hold")


def told_drained(rig: Rig, draft: Draft, agent: int) -> None:
    """An engine may stop now: nothing of it is under way (P1)."""
    name = rig.name(agent)
    rig.say(f"{name}'s engine is told: drained")
    if draft.draining[agent] is not Draining.ASKED:
        raise Violation(f"P1: {name} was told that it has drained, {draft.draining[agent].name}")
    mine = [b.tag for b in draft.bookings if b.consumer == agent]
    mine += [h.tag for h in draft.holdings if h.producer == agent]
    if mine:
        raise Violation(f"P1: {name} was told that it has drained, with {', '.join(mine)} open")
    draft.draining[agent] = Draining.TOLD
