"""The producer half: sources, and what each consumer may have of them.

Owns what P knows of each transfer it prefills: SOURCE (may the engine reuse the
blocks) and one SEND per consumer attempt. Knows no layout and posts nothing
itself. Invariants: B1 (pinned until every operation ended), B2 (checked at the
moment of posting, `claim`), C1 (every part is told of), A3, E1-E3.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.context import Context, Link
from kvxfer.core.effects import Post, StopOp, TellSent, TellUnsent
from kvxfer.core.events import Expect, Offer, OpEnded, OpNotPosted, Withdraw
from kvxfer.core.ids import (
    Attempt,
    AttemptKey,
    OpId,
    Part,
    Peer,
    PeerKey,
    Reason,
    TransferId,
)
from kvxfer.core.memory import AttemptMemory
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Failed,
    Gone,
    Grant,
    GrantAck,
    NeverPosted,
    Renew,
)
from kvxfer.core.sends import Op, OpPhase, Send, Source
from kvxfer.core.tables import (
    SEND,
    SOURCE,
    SendAction,
    SendEvent,
    SendState,
    SourceAction,
    SourceEvent,
    SourceState,
)
from kvxfer.core.timers import GrantTimer, OfferTimer

ProducerMessage = Grant | Renew | Cancel


@attrs.define
class Producer:
    """All sources and sends of one agent."""

    ctx: Context
    sources: dict[TransferId, Source] = attrs.field(factory=dict)
    sends: dict[tuple[Peer, AttemptKey], Send] = attrs.field(factory=dict)
    ops: dict[OpId, Op] = attrs.field(factory=dict)
    _by_transfer: dict[TransferId, list[Send]] = attrs.field(factory=dict)
    _last_op: int = 0
    memory: AttemptMemory = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = AttemptMemory(self.ctx)

    # --- from the engine ---

    def expect(self, event: Expect) -> None:
        if self.ctx.closing:
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
            self._fire_source(source, SourceEvent.CONSUMER_ENDED, reason)
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
        source.token_count = event.token_count
        source.digest = event.digest
        self.ctx.timers.set(OfferTimer(event.transfer_id), self.ctx.now_ms + event.lease_ms)
        self._trace(event.transfer_id, "offered")
        self._fire_source(source, SourceEvent.OFFER, Reason.CANCELLED_BY_CONSUMER)

    def _refuse(self, event: Offer, reason: Reason) -> None:
        self.ctx.counters["refused"] += 1
        self.ctx.emit(TellUnsent(transfer_id=event.transfer_id, tag=event.tag, reason=reason))

    def withdraw(self, event: Withdraw) -> None:
        source = self.sources.get(event.transfer_id)
        if source is not None:
            if event.tag in ("", source.tag):
                self._fire_source(source, SourceEvent.WITHDRAW, event.reason)
            else:
                # A second request under a name in use was aborted: not the one that holds it.
                self.ctx.counters["refused"] += 1
            return
        # The prefill was aborted before anybody announced it: whoever waits is told.
        self.memory.take_unwanted(event.transfer_id)
        self.memory.note_ended(event.transfer_id, event.reason)
        for send in self._of_transfer(event.transfer_id):
            self._fire_send(send, SendEvent.STOP, event.reason)

    def withdraw_all(self, reason: Reason) -> None:
        for source in list(self.sources.values()):
            self._fire_source(source, SourceEvent.WITHDRAW, reason)
        for send in list(self.sends.values()):
            self._fire_send(send, SendEvent.STOP, reason)

    # --- from the consumer ---

    def message(self, link: Link, message: ProducerMessage) -> None:
        send = self.sends.get((link.peer, message.header.key))
        match message:
            case Grant():
                self._grant(link, message, send)
            case Renew():
                self._renew(link, message, send)
            case Cancel():
                self._cancel(link, message, send)
            case _:
                assert_never(message)

    def _grant(self, link: Link, grant: Grant, live: Send | None) -> None:
        if live is not None:
            self.ctx.send(link.id, GrantAck(header=self.ctx.reply(grant.header)))
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
        for older in self._of_transfer(grant.header.transfer_id):
            if older.peer.key == link.peer.key:
                older.superseded = True
                self._fire_send(older, SendEvent.CANCEL, Reason.STALE_ATTEMPT)
        send = Send(key=grant.header.key, link=link, grant=grant)
        self.sends[link.peer, send.key] = send
        self._by_transfer.setdefault(send.key.transfer_id, []).append(send)
        self.ctx.trace(send.key, "grant parked")
        self.ctx.send(link.id, GrantAck(header=self.ctx.reply(grant.header)))
        self._extend(send, grant.lease_ms)
        source = self.sources.get(send.key.transfer_id)
        if source is not None:
            self._fire_source(source, SourceEvent.CONSUMER_CAME, Reason.NONE)
            self._try_match(source, send)

    def _refusal(self, link: Link, grant: Grant) -> Reason:
        """Why a new grant cannot be taken, or NONE."""
        if self.ctx.closing:
            return Reason.SHUTDOWN
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
        if len(self.sends) >= self.ctx.limits.grants_parked_max:
            return Reason.TABLE_FULL
        return Reason.NONE

    def _renew(self, link: Link, renew: Renew, send: Send | None) -> None:
        header = self.ctx.reply(renew.header)
        if send is not None:
            self._extend(send, renew.lease_ms)
            self.ctx.send(link.id, GrantAck(header=header))
            return
        seen = self.memory.seen(link.peer, renew.header.transfer_id)
        if seen is not None and seen.served and seen.attempt == renew.header.attempt:
            # Its DONE is on the way over the transport; GONE must not overtake it.
            self.ctx.send(link.id, GrantAck(header=header))
        elif self.memory.vouches(link.peer, renew.header.key):
            self.ctx.send(link.id, Gone(header=header, reason=Reason.UNKNOWN_TRANSFER))

    def _cancel(self, link: Link, cancel: Cancel, send: Send | None) -> None:
        header = self.ctx.reply(cancel.header)
        if send is None:
            # Ended already, or it overtook its grant, which is then refused as stale.
            seen = self.memory.seen(link.peer, cancel.header.transfer_id)
            if seen is None or seen.attempt < cancel.header.attempt:
                self.memory.note(link.peer, cancel.header.key)
            if self.memory.vouches(link.peer, cancel.header.key):
                self.ctx.send(link.id, Cancelled(header=header))
            else:
                self.ctx.send(link.id, GrantAck(header=header))
            return
        send.cancelled = True
        self._fire_send(send, SendEvent.CANCEL, cancel.reason)
        if send.state is SendState.DRAINING:
            self.ctx.send(link.id, GrantAck(header=header))

    # --- links and timers ---

    def link_up(self, link: Link) -> None:
        self.memory.new_life(link.peer)

    def link_lost(self, link: Link, reason: Reason) -> None:
        for send in [s for s in self.sends.values() if s.link is link]:
            self._fire_send(send, SendEvent.LINK_LOST, reason)

    def grant_lease_over(self, peer: Peer, key: AttemptKey) -> None:
        send = self.sends.get((peer, key))
        if send is not None:
            self._fire_send(send, SendEvent.LEASE_EXPIRED, Reason.GRANT_EXPIRED)

    def offer_lease_over(self, transfer_id: TransferId) -> None:
        source = self.sources.get(transfer_id)
        if source is not None:
            self._fire_source(source, SourceEvent.LEASE_EXPIRED, Reason.OFFER_EXPIRED)

    def _extend(self, send: Send, lease_ms: int) -> None:
        """Renewal only lengthens (J2), and no peer gets more than our own bound."""
        lease_ms = min(lease_ms, self.ctx.timings.grant_lease_ms)
        send.lease_until_ms = max(send.lease_until_ms, self.ctx.now_ms + lease_ms)
        if send.state in (SendState.PARKED, SendState.SENDING):
            self.ctx.timers.set(GrantTimer(send.peer, send.key), send.lease_until_ms)

    # --- posting ---

    def claim(self, op_id: OpId) -> bool:
        """The last check, at the moment of posting (B2). False: do not post, forget the op."""
        op = self.ops.get(op_id)
        if op is None or op.phase is not OpPhase.QUEUED:
            return False
        source = self.sources.get(op.send.key.transfer_id)
        if op.send.state is not SendState.SENDING or source is None:
            return False
        if source.state is not SourceState.OFFERED:
            return False
        op.phase = OpPhase.CLAIMED
        self.ctx.trace(op.send.key, "posted")
        return True

    def op_ended(self, event: OpEnded) -> None:
        op = self._take_op(event.op)
        if op is None:
            return
        if event.done:
            op.send.parts_done.add(op.part)
            self.ctx.trace(op.send.key, "written")
        else:
            self.ctx.send(
                op.send.link.id,
                Failed(
                    header=self.ctx.header(op.send.key, op.send.peer),
                    part=op.part,
                    reason=event.reason,
                    quiet=event.quiet,
                ),
            )
            self._note_failure(op.send, event.reason)
            if not event.quiet:
                # Nobody can vouch for the bytes: the consumer must fence, so end the link.
                self.memory.doubt(op.send.peer, op.send.key)
                self.ctx.request_fence(op.send.peer, event.reason)
        self._after_op(op.send)

    def op_not_posted(self, event: OpNotPosted) -> None:
        op = self._take_op(event.op)
        if op is None:
            return
        self._tell_never_posted(op.send, op.part, event.reason)
        self._note_failure(op.send, event.reason)
        self._after_op(op.send)

    def _take_op(self, op_id: OpId) -> Op | None:
        op = self.ops.pop(op_id, None)
        if op is None:
            self.ctx.counters["late_operations"] += 1
            return None
        op.send.ops.discard(op_id)
        return op

    def _note_failure(self, send: Send, reason: Reason) -> None:
        if send.reason is Reason.NONE:
            send.reason = reason

    def _after_op(self, send: Send) -> None:
        if not send.ops:
            ended = SendEvent.PARTS_ENDED
            if send.state is SendState.DRAINING:
                ended = SendEvent.DRAINED
            self._fire_send(send, ended, send.reason)
        source = self.sources.get(send.key.transfer_id)
        if source is not None:
            self._check_idle(source)

    # --- matching ---

    def _try_match(self, source: Source, send: Send) -> None:
        if source.state is not SourceState.OFFERED or send.state is not SendState.PARKED:
            return
        reason = source.mismatch(send, check_digest=self.ctx.check_digest)
        if reason is not Reason.NONE:
            self.ctx.counters["pairs_refused"] += 1
            self._fire_send(send, SendEvent.REFUSE, reason)
            if send.peer.key in source.came:
                # It came before for what is offered here, and now wants something else: with
                # the lease over, nothing but this would ever end the source.
                self._fire_source(source, SourceEvent.CONSUMER_ENDED, reason)
            return
        if source.consumers is None:
            engine_id = send.peer.key.engine_id
            source.consumers = frozenset(PeerKey(engine_id, r) for r in send.link.ranks)
        source.came.add(send.peer.key)
        if source.came >= source.consumers:
            self.ctx.timers.clear(OfferTimer(source.transfer_id))
        self.ctx.trace(send.key, "matched")
        self._fire_send(send, SendEvent.MATCH, Reason.NONE)

    # --- machines ---

    def _fire_source(self, source: Source, event: SourceEvent, reason: Reason) -> None:
        before = source.state
        cell = SOURCE.fire(before, event)
        source.state = cell.target
        if event is SourceEvent.CONSUMER_CAME and before is SourceState.UNWANTED:
            source.reason = Reason.NONE
        elif source.reason is Reason.NONE and before is not cell.target:
            source.reason = Reason.NONE if event is SourceEvent.OFFER else reason
        for action in cell.actions:
            match action:
                case SourceAction.MATCH:
                    for send in self._of_transfer(source.transfer_id):
                        self._try_match(source, send)
                case SourceAction.STOP_SENDS:
                    for send in self._of_transfer(source.transfer_id):
                        self._fire_send(send, SendEvent.STOP, source.reason)
                case SourceAction.CHECK_IDLE:
                    self._check_idle(source)
                case SourceAction.TELL_END:
                    self._tell_end(source, reason)
                case SourceAction.FORGET:
                    self._bury(source)
                case _:
                    assert_never(action)

    def _fire_send(self, send: Send, event: SendEvent, reason: Reason) -> None:
        cell = SEND.fire(send.state, event)
        send.state = cell.target
        if event in (SendEvent.REFUSE, SendEvent.STOP, SendEvent.CANCEL, SendEvent.LINK_LOST):
            self._note_failure(send, reason)
        if event is SendEvent.LEASE_EXPIRED:
            self._note_failure(send, Reason.GRANT_EXPIRED)
        if cell.target is SendState.ENDED and cell.actions:
            self._end_send(send)
        for action in cell.actions:
            match action:
                case SendAction.QUEUE_PARTS:
                    self._queue_parts(send)
                case SendAction.STOP_PARTS:
                    self._stop_parts(send)
                case SendAction.FENCE:
                    # Only operations in flight need it; parked or dropped ones touch nothing.
                    if send.ops:
                        self.ctx.request_fence(send.peer, send.reason)
                case SendAction.TELL_NEVER_POSTED:
                    for part in send.grant.parts:
                        self._tell_never_posted(send, part, send.reason)
                case SendAction.TELL_DRAINED:
                    self._tell_drained(send)
                case SendAction.SETTLE:
                    self._settle(send)
                case _:
                    assert_never(action)

    def _end_send(self, send: Send) -> None:
        self.ctx.timers.clear(GrantTimer(send.peer, send.key))
        del self.sends[send.peer, send.key]
        others = self._by_transfer[send.key.transfer_id]
        others.remove(send)
        if not others:
            del self._by_transfer[send.key.transfer_id]
        if send.served:
            self.memory.note(send.peer, send.key, served=True)

    def _queue_parts(self, send: Send) -> None:
        for part in send.grant.parts:
            self._last_op += 1
            op_id = OpId(self._last_op)
            self.ops[op_id] = Op(send, part)
            send.ops.add(op_id)
            self.ctx.emit(
                Post(
                    op=op_id,
                    link=send.link.id,
                    peer=send.peer,
                    grant=send.grant,
                    part=part,
                    tag=self.sources[send.key.transfer_id].tag,
                )
            )
        if not send.ops:
            self._fire_send(send, SendEvent.PARTS_ENDED, Reason.NONE)

    def _stop_parts(self, send: Send) -> None:
        for op_id in sorted(send.ops):
            if self.ops[op_id].phase is OpPhase.CLAIMED:
                self.ctx.emit(StopOp(op=op_id))
            else:
                del self.ops[op_id]
                send.ops.discard(op_id)
        if send.ops:
            # An operation that never ends must not hold the source for ever: fence it.
            deadline_ms = self.ctx.now_ms + self.ctx.timings.grant_lease_ms
            self.ctx.timers.set(GrantTimer(send.peer, send.key), deadline_ms)
        else:
            self._fire_send(send, SendEvent.DRAINED, send.reason)

    def _settle(self, send: Send) -> None:
        """Tell the source how one consumer's attempt ended."""
        if send.superseded:
            return
        source = self.sources.get(send.key.transfer_id)
        if source is None:
            self.memory.note_unwanted(send.key.transfer_id, send.reason)
            return
        # What never met the offer, a declining grant among it, leaves nobody to wait for.
        unmatched = source.consumers is None
        if unmatched or not send.served or (send.cancelled and send.grant.parts):
            self._fire_source(source, SourceEvent.CONSUMER_ENDED, send.reason)
            return
        source.served.add(send.peer.key)
        if source.consumers is not None and source.served >= source.consumers:
            self._fire_source(source, SourceEvent.SERVED, Reason.NONE)

    def _check_idle(self, source: Source) -> None:
        sends = self._of_transfer(source.transfer_id)
        claimed = any(self.ops[op].phase is OpPhase.CLAIMED for send in sends for op in send.ops)
        if not claimed:
            self._fire_source(source, SourceEvent.IDLE, source.reason)

    # --- telling ---

    def _tell_never_posted(self, send: Send, part: Part, reason: Reason) -> None:
        header = self.ctx.header(send.key, send.peer)
        self.ctx.send(send.link.id, NeverPosted(header=header, part=part, reason=reason))

    def _tell_drained(self, send: Send) -> None:
        header = self.ctx.header(send.key, send.peer)
        if send.cancelled:
            self.ctx.send(send.link.id, Cancelled(header=header))
        else:
            self.ctx.send(send.link.id, Gone(header=header, reason=send.reason))

    def _tell_end(self, source: Source, reason: Reason) -> None:
        sent = source.consumers is not None and source.served >= source.consumers
        self.ctx.counters["sent" if sent else "unsent"] += 1
        self._trace(source.transfer_id, "sent" if sent else "unsent")
        if sent:
            self.ctx.emit(TellSent(transfer_id=source.transfer_id, tag=source.tag))
        else:
            why = source.reason if source.reason is not Reason.NONE else reason
            self.ctx.counters[f"unsent_{why.name.lower()}"] += 1
            self.ctx.emit(TellUnsent(transfer_id=source.transfer_id, tag=source.tag, reason=why))
        self._bury(source)

    def _bury(self, source: Source) -> None:
        del self.sources[source.transfer_id]
        self.ctx.timers.clear(OfferTimer(source.transfer_id))
        reason = source.reason if source.reason is not Reason.NONE else Reason.UNKNOWN_TRANSFER
        self.memory.note_ended(source.transfer_id, reason)

    def _trace(self, transfer_id: TransferId, step: str) -> None:
        self.ctx.trace(AttemptKey(transfer_id, Attempt(0)), step)

    # --- views ---

    def holds(self, transfer_id: TransferId, tag: str) -> bool:
        """True while the offer with this tag has not ended."""
        source = self.sources.get(transfer_id)
        return source is not None and source.tag == tag

    def _of_transfer(self, transfer_id: TransferId) -> list[Send]:
        return list(self._by_transfer.get(transfer_id, ()))
