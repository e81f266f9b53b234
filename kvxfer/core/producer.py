"""The producer half: sources, and who may have them.

Owns what P knows of each transfer it prefills: SOURCE (may the engine reuse the
blocks), and the pairing of sources with the attempts of consumers, which
`senders.py` (push) or `lenders.py` (pull) moves. Knows no layout and posts
nothing itself. Invariants: B1 (pinned until every operation ended), A3, E1-E3;
what hangs on one link is found without looking at any other.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.attempts import Attempts
from kvxfer.core.context import Context, Link
from kvxfer.core.effects import TellSent, TellUnsent
from kvxfer.core.events import Expect, Grow, Offer, Withdraw
from kvxfer.core.ids import (
    Attempt,
    AttemptKey,
    Feature,
    Initiator,
    Peer,
    Reason,
    TransferId,
)
from kvxfer.core.lenders import Lenders
from kvxfer.core.memory import AttemptMemory
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Gone,
    Grant,
    GrantAck,
    Release,
    Renew,
    ToProducer,
)
from kvxfer.core.operations import Operations
from kvxfer.core.senders import Senders
from kvxfer.core.sends import AnyServed, Loan, Send, Source
from kvxfer.core.serving import ServingMoves
from kvxfer.core.tables import (
    SOURCE,
    LoanState,
    SendState,
    SourceAction,
    SourceEvent,
    SourceState,
)
from kvxfer.core.timers import GrantTimer, OfferTimer


@attrs.define
class Producer:
    """All sources of one agent, and all attempts of consumers at them."""

    ctx: Context
    operations: Operations
    sources: dict[TransferId, Source] = attrs.field(factory=dict)
    attempts: Attempts = attrs.field(factory=Attempts)
    senders: Senders = attrs.field(init=False)
    lenders: Lenders = attrs.field(init=False)
    memory: AttemptMemory = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = AttemptMemory(self.ctx)
        self.senders = Senders(self.ctx, self, self.operations)
        self.lenders = Lenders(self.ctx, self)

    # --- from the engine ---

    def expect(self, event: Expect) -> None:
        if self.ctx.closing:
            return
        if self.ctx.draining and not self.attempts.of_transfer(event.transfer_id):
            # Nobody can come for it any more; its offer ends at once.
            return
        if event.transfer_id in self.sources:
            self.ctx.counters["refused"] += 1
            return
        if len(self.sources) < self.ctx.limits.transfers_max:
            self._begin(event.transfer_id).tag = event.tag

    def _begin(self, transfer_id: TransferId) -> Source:
        """A source in its first state, or in the second where its consumer has left already."""
        self.memory.begin(transfer_id)
        source = self.sources[transfer_id] = Source(transfer_id=transfer_id)
        reason = self.memory.take_unwanted(transfer_id)
        if reason is not None:
            self._fire(source, SourceEvent.CONSUMER_ENDED, reason)
        return source

    def offer(self, event: Offer) -> None:
        if self.ctx.closing:
            self._refuse(event, Reason.SHUTDOWN)
            return
        source = self.sources.get(event.transfer_id)
        if source is None:
            if len(self.sources) >= self.ctx.limits.transfers_max:
                self._refuse(event, Reason.TABLE_FULL)
                return
            source = self._begin(event.transfer_id)
        elif source.state not in (SourceState.EXPECTED, SourceState.UNWANTED):
            self._refuse(event, Reason.ALREADY_IN_USE)
            return
        self.ctx.counters["offered"] += 1
        source.tag = event.tag
        source.digest = event.digest
        source.lease_ms = event.lease_ms
        self.ctx.trace(AttemptKey(event.transfer_id, Attempt(0)), "offered")
        self._advance(source, event, SourceEvent.STREAM)
        if self.ctx.draining:
            self._end_unwanted(source)

    def grow(self, event: Grow) -> None:
        source = self.sources.get(event.transfer_id)
        if source is None or source.state is not SourceState.STREAMING or source.tag != event.tag:
            # It has ended meanwhile, and the engine is told or will be: nothing is revived.
            self.ctx.counters["late_offers"] += 1
            return
        source.token_ahead = event.token_ahead
        source.layers_final = event.layers_final
        self._advance(source, event, SourceEvent.GROW)

    def _advance(self, source: Source, event: Offer | Grow, unsealed: SourceEvent) -> None:
        # What was final stays final.
        source.token_count = max(source.token_count, event.token_count)
        source.tables = event.tables
        source.sealed = event.sealed
        if event.sealed and not source.all_came():
            self.ctx.timers.set(OfferTimer(source.transfer_id), self.ctx.now_ms + source.lease_ms)
        kind = SourceEvent.OFFER if event.sealed else unsealed
        self._fire(source, kind, Reason.CANCELLED_BY_CONSUMER)

    def _refuse(self, event: Offer, reason: Reason) -> None:
        self.ctx.counters["refused"] += 1
        self.ctx.emit(TellUnsent(transfer_id=event.transfer_id, tag=event.tag, reason=reason))

    def withdraw(self, event: Withdraw) -> None:
        source = self.sources.get(event.transfer_id)
        if source is not None:
            if event.tag in ("", source.tag):
                self._fire(source, SourceEvent.WITHDRAW, event.reason)
            else:
                # A second request under a name in use was aborted: not the one that holds it.
                self.ctx.counters["refused"] += 1
            return
        # The prefill was aborted before anybody announced it: whoever waits is told.
        self.memory.take_unwanted(event.transfer_id)
        self.memory.note_ended(event.transfer_id, event.reason)
        self._stop_all(event.transfer_id, event.reason)

    def withdraw_all(self, reason: Reason) -> None:
        for source in list(self.sources.values()):
            self._fire(source, SourceEvent.WITHDRAW, reason)
        for transfer_id in self.attempts.transfers():
            self._stop_all(transfer_id, reason)

    def drain(self) -> None:
        """No grant is taken from now on: an offer to which nobody came ends at once."""
        for source in list(self.sources.values()):
            self._end_unwanted(source)

    def _end_unwanted(self, source: Source) -> None:
        if source.open and source.consumers is None:
            self._fire(source, SourceEvent.WITHDRAW, Reason.DRAINING)

    # --- from the consumer ---

    def message(self, link: Link, message: ToProducer) -> None:
        served = self.attempts.live.get((link.peer, message.header.key))
        match message:
            case Grant():
                self._grant(link, message, served)
            case Renew():
                self._renew(link, message, served)
            case Cancel():
                self._cancel(link, message, served)
            case Release():
                self._release(link, message, served)
            case _:
                assert_never(message)

    def _grant(self, link: Link, grant: Grant, live: AnyServed | None) -> None:
        if live is not None:
            self._acknowledge(live, 0)
            return
        reason = self._refusal(link, grant)
        if reason is not Reason.NONE:
            self.ctx.counters["grants_refused"] += 1
            # GONE says that nothing is in flight: not of an attempt that is unproven.
            if self.memory.vouches(link.peer, grant.header.key):
                self.ctx.send(link.id, Gone(header=self.ctx.reply(grant.header), reason=reason))
            return
        self.memory.note(link.peer, grant.header.key)
        self.memory.take_unwanted(grant.header.transfer_id)
        self._supersede(link.peer, grant.header.transfer_id)
        served = self.attempts.hold(link, grant)
        self.ctx.trace(served.key, "grant parked", peer=link.peer.key)
        self._extend(served, grant.lease_ms)
        self._acknowledge(served, 0)
        source = self.sources.get(served.key.transfer_id)
        if source is not None:
            self._fire(source, SourceEvent.CONSUMER_CAME, Reason.NONE)
            self._try_match(source, served)

    def _supersede(self, peer: Peer, transfer_id: TransferId) -> None:
        """A newer attempt of the same consumer rank ends the older ones; the source stays."""
        for older in self.attempts.of_transfer(transfer_id):
            if older.peer.key != peer.key:
                continue
            older.superseded = True
            self._side(older).supersede(older)

    def _refusal(self, link: Link, grant: Grant) -> Reason:
        """Why a new grant cannot be taken, or NONE."""
        if self.ctx.closing:
            return Reason.SHUTDOWN
        if self.ctx.draining and grant.parts:
            return Reason.DRAINING
        if grant.initiator is Initiator.CONSUMER and not link.features & Feature.PULL:
            return Reason.UNSUPPORTED
        tid = grant.header.transfer_id
        seen = self.memory.seen(link.peer, tid)
        if seen is not None and grant.header.attempt <= seen.attempt:
            return Reason.STALE_ATTEMPT
        source = self.sources.get(tid)
        if source is None:
            ended = self.memory.ended(tid)
            # Whoever knew an earlier attempt comes anew; a first attempt came too late (F2).
            if ended is not None and seen is None:
                self.memory.note(link.peer, grant.header.key)
                return ended
        elif source.state is SourceState.CLOSING:
            return source.reason if source.reason is not Reason.NONE else Reason.UNKNOWN_TRANSFER
        elif source.consumers is not None and link.peer.key not in source.consumers:
            return Reason.ALREADY_IN_USE
        limits = self.ctx.limits
        full = self.attempts.parts_held + len(grant.parts) > limits.parts_parked_max
        if full or len(self.attempts.live) >= limits.grants_parked_max:
            return Reason.TABLE_FULL
        return Reason.NONE

    def _renew(self, link: Link, renew: Renew, served: AnyServed | None) -> None:
        header = self.ctx.reply(renew.header)
        if isinstance(served, Loan) and served.state is LoanState.RECALLED:
            # A lease that is called back is not lengthened.
            self.ctx.send(link.id, Gone(header=header, reason=served.reason))
            return
        if served is not None:
            self._extend(served, renew.lease_ms)
            self._acknowledge(served, renew.serial)
            return
        seen = self.memory.seen(link.peer, renew.header.transfer_id)
        if seen is not None and seen.served and seen.attempt == renew.header.attempt:
            # Its DONE is on the way over the transport; GONE must not overtake it.
            self.ctx.send(link.id, GrantAck(header=header, serial=renew.serial))
        elif self.memory.vouches(link.peer, renew.header.key):
            self.ctx.send(link.id, Gone(header=header, reason=Reason.UNKNOWN_TRANSFER))

    def _cancel(self, link: Link, cancel: Cancel, served: AnyServed | None) -> None:
        header = self.ctx.reply(cancel.header)
        if isinstance(served, Loan):
            self._fault(link)
            return
        if served is not None:
            served.cancelled = True
            self.senders.cancel(served, cancel.reason)
            if served.state is SendState.DRAINING:
                self.ctx.send(link.id, GrantAck(header=header))
            return
        # Ended already, or it overtook its grant, which is then refused as stale.
        seen = self.memory.seen(link.peer, cancel.header.transfer_id)
        if seen is None or seen.attempt < cancel.header.attempt:
            self.memory.note(link.peer, cancel.header.key)
        vouched = self.memory.vouches(link.peer, cancel.header.key)
        answer = Cancelled(header=header) if vouched else GrantAck(header=header)
        self.ctx.send(link.id, answer)

    def _release(self, link: Link, release: Release, served: AnyServed | None) -> None:
        if isinstance(served, Loan):
            self.lenders.release(served, release)
        elif served is not None:
            self._fault(link)
        else:
            self.ctx.counters["late_messages"] += 1

    def _fault(self, link: Link) -> None:
        """CANCEL ends what this side writes, RELEASE what the consumer reads; never across."""
        self.ctx.counters["protocol_faults"] += 1
        self.ctx.drop_link(link.id, Reason.PROTOCOL_ERROR)

    def _acknowledge(self, served: AnyServed, serial: int) -> None:
        header = self.ctx.header(served.key, served.peer)
        lease_ms = max(0, served.lease_until_ms - self.ctx.now_ms)
        self.ctx.send(served.link.id, GrantAck(header=header, serial=serial, lease_ms=lease_ms))

    # --- links and timers ---

    def link_up(self, link: Link) -> None:
        self.memory.new_life(link.peer)

    def link_lost(self, link: Link, reason: Reason) -> None:
        for served in self.attempts.of_link(link.id):
            self._side(served).link_lost(served, reason)

    def grant_lease_over(self, peer: Peer, key: AttemptKey) -> None:
        served = self.attempts.live[peer, key]
        self._side(served).lease_over(served)

    def offer_lease_over(self, transfer_id: TransferId) -> None:
        self._fire(self.sources[transfer_id], SourceEvent.LEASE_EXPIRED, Reason.OFFER_EXPIRED)

    def _extend(self, served: AnyServed, lease_ms: int) -> None:
        """Renewal only lengthens (J2), and no peer gets more than our own bound."""
        lease_ms = min(lease_ms, self.ctx.timings.grant_lease_ms)
        served.lease_until_ms = max(served.lease_until_ms, self.ctx.now_ms + lease_ms)
        if not isinstance(served, Send) or served.state is not SendState.DRAINING:
            self.ctx.timers.set(GrantTimer(served.peer, served.key), served.lease_until_ms)

    # --- pairing ---

    def _try_match(self, source: Source, served: AnyServed) -> None:
        if not source.open or not served.parked:
            return
        reason = source.mismatch(served, check_digest=self.ctx.check_digest)
        if reason is not Reason.NONE:
            self._refuse_pair(source, served, reason)
            return
        if source.consumers is None:
            source.consumers = served.link.engine
        source.note_came(served.peer.key)
        if source.all_came():
            self.ctx.timers.clear(OfferTimer(source.transfer_id))
        self.ctx.trace(served.key, "matched", peer=served.peer.key)
        self._side(served).match(served)

    def _refuse_pair(self, source: Source, served: AnyServed, reason: Reason) -> None:
        self.ctx.counters["pairs_refused"] += 1
        self._side(served).refuse(served, reason)
        if served.peer.key in source.came:
            # It came before for what is offered here, and now wants something else: with
            # the lease over, nothing but this would ever end the source.
            self._fire(source, SourceEvent.CONSUMER_ENDED, reason)

    def _match_all(self, source: Source) -> None:
        """More is offered: for those who wait for an offer, and those who wait for its rest."""
        for served in self.attempts.of_transfer(source.transfer_id):
            if served.parked:
                self._try_match(source, served)
            else:
                self._side(served).grow(served)

    def _stop_all(self, transfer_id: TransferId, reason: Reason) -> None:
        for served in self.attempts.of_transfer(transfer_id):
            self._side(served).stop(served, reason)

    # --- what the attempts report ---

    def source_of(self, transfer_id: TransferId) -> Source | None:
        return self.sources.get(transfer_id)

    def doubt(self, served: AnyServed) -> None:
        self.memory.doubt(served.peer, served.key)

    def forget(self, served: AnyServed) -> None:
        """An attempt has ended."""
        self.ctx.timers.clear(GrantTimer(served.peer, served.key))
        self.attempts.forget(served)
        if served.served:
            self.memory.note(served.peer, served.key, served=True)

    def settle(self, served: AnyServed, *, let_down: bool) -> None:
        """Tell the source how one consumer's attempt ended."""
        if served.superseded:
            return
        source = self.sources.get(served.key.transfer_id)
        if (source is None or source.consumers is None) and self._somebody_waits(served):
            return
        if source is None:
            self.memory.note_unwanted(served.key.transfer_id, served.reason)
            return
        # What never met the offer, a declining grant among it, leaves nobody to wait for.
        unmatched = source.consumers is None
        if unmatched or let_down or not served.served:
            self._fire(source, SourceEvent.CONSUMER_ENDED, served.reason)
            return
        source.served |= {served.peer.key}
        if source.all_served():
            self._fire(source, SourceEvent.SERVED, Reason.NONE)

    def _somebody_waits(self, served: AnyServed) -> bool:
        """Another attempt is parked for the same offer: its consumer has not left."""
        others = self.attempts.of_transfer(served.key.transfer_id)
        return any(one is not served and one.parked and not one.superseded for one in others)

    def check_idle(self, transfer_id: TransferId) -> None:
        """Let the source go where nothing reads its blocks any more (B1)."""
        source = self.sources.get(transfer_id)
        attempts = self.attempts.of_transfer(transfer_id)
        if source is not None and not any(self._side(one).reads(one) for one in attempts):
            self._fire(source, SourceEvent.IDLE, source.reason)

    def _side(self, served: AnyServed) -> ServingMoves:
        return self.lenders if isinstance(served, Loan) else self.senders

    # --- the source ---

    def _fire(self, source: Source, event: SourceEvent, reason: Reason) -> None:
        before = source.state
        cell = SOURCE.fire(before, event)
        source.state = cell.target
        if event is SourceEvent.CONSUMER_CAME and before is SourceState.UNWANTED:
            source.reason = Reason.NONE
        elif source.reason is Reason.NONE and before is not cell.target:
            offered = event in (SourceEvent.OFFER, SourceEvent.STREAM)
            source.reason = Reason.NONE if offered else reason
        for action in cell.actions:
            match action:
                case SourceAction.MATCH:
                    self._match_all(source)
                case SourceAction.STOP_SENDS:
                    self._stop_all(source.transfer_id, source.reason)
                case SourceAction.CHECK_IDLE:
                    self.check_idle(source.transfer_id)
                case SourceAction.TELL_END:
                    self._tell_end(source, reason)
                case SourceAction.FORGET:
                    self._bury(source)
                case _:
                    assert_never(action)

    def _tell_end(self, source: Source, reason: Reason) -> None:
        sent = source.all_served()
        self.ctx.counters["sent" if sent else "unsent"] += 1
        why = source.reason if source.reason is not Reason.NONE else reason
        trace_key = AttemptKey(source.transfer_id, Attempt(0))
        if sent:
            self.ctx.trace(trace_key, "sent")
            self.ctx.emit(TellSent(transfer_id=source.transfer_id, tag=source.tag))
        else:
            self.ctx.trace(trace_key, "unsent", reason=why)
            self.ctx.counters[f"unsent_{why.name.lower()}"] += 1
            self.ctx.emit(TellUnsent(transfer_id=source.transfer_id, tag=source.tag, reason=why))
        self._bury(source)

    def _bury(self, source: Source) -> None:
        del self.sources[source.transfer_id]
        self.ctx.timers.clear(OfferTimer(source.transfer_id))
        reason = source.reason if source.reason is not Reason.NONE else Reason.UNKNOWN_TRANSFER
        self.memory.note_ended(source.transfer_id, reason)

    # --- views ---

    def holds(self, transfer_id: TransferId, tag: str) -> bool:
        """True while the offer with this tag has not ended."""
        source = self.sources.get(transfer_id)
        return source is not None and source.tag == tag

    @property
    def sends(self) -> dict[tuple[Peer, AttemptKey], AnyServed]:
        """Every attempt that is held."""
        return self.attempts.live
