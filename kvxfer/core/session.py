"""One agent's protocol state: composes the machines; feed in, poll one ordered batch out.

Owns the routing of events and the order of their consequences. Knows no I/O.
Invariant: after quiescence every table is empty (L1), and the same inputs at
the same times give the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import attrs

from kvxfer.core.consumer import Consumer
from kvxfer.core.context import Context, Link
from kvxfer.core.credentials import Credentials
from kvxfer.core.effects import DropLink, Effect, Send, TellDrained
from kvxfer.core.events import (
    CancelRegistration,
    Drain,
    Event,
    Evict,
    Expect,
    FenceResult,
    Grow,
    Offer,
    OpEnded,
    OpNotPosted,
    Register,
    Resolved,
    Unreachable,
    Unresolvable,
    Withdraw,
)
from kvxfer.core.handshake import Handshake, Identity, Outcome
from kvxfer.core.ids import Feature, LinkId, OpId, Peer, PeerKey, Reason
from kvxfer.core.messages import (
    Bye,
    Describe,
    Hello,
    Message,
    Proof,
    Refuse,
    ToConsumer,
    ToProducer,
    TransferMessage,
    Welcome,
)
from kvxfer.core.messages import Drain as DrainMessage
from kvxfer.core.messages import Offer as OfferMessage
from kvxfer.core.messages import Release as ReleaseMessage
from kvxfer.core.operations import Operations
from kvxfer.core.producer import Producer
from kvxfer.core.tables import LinkState
from kvxfer.core.timers import DeadlineTimer, EdgeTimer, GrantTimer, HandshakeTimer, OfferTimer
from kvxfer.limits import Limits, Timings


@attrs.define(kw_only=True)
class Session:
    """The protocol of one agent towards all its peers.

    Args:
        me: who this side is; `me.incarnation` is drawn by the caller.
        describe, accept: the driver's half of handshake phase 2.
        check_digest: refuse a pair whose prompt digests differ.
    """

    me: Identity
    limits: Limits
    timings: Timings
    describe: Callable[[LinkId, Peer], Describe]
    accept: Callable[[LinkId, Peer, Describe], tuple[int, ...]]
    check_digest: bool = True
    ctx: Context = attrs.field(init=False)
    operations: Operations = attrs.field(init=False)
    consumer: Consumer = attrs.field(init=False)
    producer: Producer = attrs.field(init=False)
    _handshakes: dict[LinkId, Handshake] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.ctx = Context(
            incarnation=self.me.incarnation,
            limits=self.limits,
            timings=self.timings,
            check_digest=self.check_digest,
        )
        self.operations = Operations(self.ctx)
        self.consumer = Consumer(self.ctx, self.operations)
        self.producer = Producer(self.ctx, self.operations)

    # --- links ---

    def open_link(
        self,
        link: LinkId,
        dialled: PeerKey | None,
        now_ms: int,
        credentials: Credentials | None = None,
    ) -> None:
        """A control connection is open; `dialled` names whom this side called.

        Without `credentials` this side neither proves a key nor asks for one.
        """
        self.ctx.now_ms = now_ms
        handshake = Handshake(
            me=self.me,
            dialled=dialled,
            describe=lambda peer: self.describe(link, peer),
            accept=lambda peer, theirs: self.accept(link, peer, theirs),
            credentials=credentials or Credentials(),
        )
        self._handshakes[link] = handshake
        self.ctx.timers.set(HandshakeTimer(link), now_ms + self.timings.handshake_ms)
        self._carry(link, handshake, handshake.start())

    def close_link(self, link: LinkId, reason: Reason, now_ms: int) -> None:
        """The control connection is gone."""
        self.ctx.now_ms = now_ms
        handshake = self._handshakes.get(link)
        if handshake is not None:
            self._carry(link, handshake, handshake.lost(reason))
            self._drain_lost()

    def receive(self, link: LinkId, message: Message, now_ms: int) -> None:
        """A message came in, over the control connection or the transport of `link`."""
        self.ctx.now_ms = now_ms
        handshake = self._handshakes.get(link)
        if handshake is None:
            self.ctx.counters["late_messages"] += 1
            return
        up = self.ctx.links.get(link)
        if up is None or isinstance(message, Hello | Welcome | Proof | Describe | Refuse | Bye):
            self._carry(link, handshake, handshake.receive(message))
        else:
            up.heard_ms = now_ms
            self._transfer_message(up, message)
        self._drain_lost()

    def drop(self, link: LinkId, reason: Reason, now_ms: int) -> None:
        """The transport cannot use this link any more; the peer dials again."""
        self.ctx.now_ms = now_ms
        self.ctx.drop_link(link, reason)
        self._drain_lost()

    def fault(self, link: LinkId, detail: str, now_ms: int) -> None:
        """The peer sent something that cannot be understood: end the link, nothing else."""
        self.ctx.now_ms = now_ms
        self.ctx.counters["protocol_faults"] += 1
        handshake = self._handshakes.get(link)
        if handshake is not None:
            self._carry(link, handshake, handshake.fail(Reason.PROTOCOL_ERROR, detail))
            self._drain_lost()

    def _carry(self, link: LinkId, handshake: Handshake, outcome: Outcome) -> None:
        for message in outcome.messages:
            self.ctx.emit(Send(link=link, message=message))
        if outcome.up:
            self.ctx.timers.clear(HandshakeTimer(link))
            assert handshake.peer is not None
            self._link_up(
                Link(
                    id=link,
                    peer=handshake.peer,
                    dialled=handshake.dialled is not None,
                    ranks=handshake.ranks,
                    heard_ms=self.ctx.now_ms,
                    features=handshake.features,
                )
            )
        if outcome.close:
            if handshake.reason in (Reason.UNAUTHENTICATED, Reason.AUTHENTICATION_FAILED):
                self.ctx.counters["unauthenticated"] += 1
            self.ctx.emit(DropLink(link=link, reason=handshake.reason))
        if handshake.state is LinkState.CLOSED:
            self._handshakes.pop(link, None)
            self.ctx.timers.clear(HandshakeTimer(link))
        if outcome.lost:
            self.ctx.remove_link(link, handshake.reason)
        if outcome.unreachable and handshake.dialled is not None:
            self.consumer.unreachable(
                Unreachable(
                    peer=handshake.dialled, reason=handshake.reason, detail=handshake.detail
                )
            )

    def _link_up(self, link: Link) -> None:
        old = self.ctx.link_to(link.peer.key, dialled=link.dialled)
        if old is not None:
            # The old connection dies first, with all that hangs on it: a fence that this
            # asks for must not hit the new one.
            same_life = old.peer == link.peer
            reason = Reason.PEER_LOST if same_life else Reason.NEW_INCARNATION
            self.ctx.drop_link(old.id, reason)
            self._drain_lost()
        self.ctx.add_link(link)
        if link.dialled:
            self.consumer.link_up(link)
        else:
            self.producer.link_up(link)
            if self.ctx.draining:
                self._announce_drain(link)

    def _drain_lost(self) -> None:
        while self.ctx.lost:
            link, reason = self.ctx.lost.popleft()
            self._handshakes.pop(link.id, None)
            if link.dialled:
                self.consumer.link_lost(link, reason)
            else:
                self.producer.link_lost(link, reason)

    def _transfer_message(self, link: Link, message: Message) -> None:
        pull_only = isinstance(message, OfferMessage | ReleaseMessage)
        if pull_only and not link.features & Feature.PULL:
            self._end_link(link)
        elif isinstance(message, ToProducer) and not link.dialled:
            if self._current(link, message):
                self.producer.message(link, message)
        elif isinstance(message, ToConsumer) and link.dialled:
            if self._current(link, message):
                self.consumer.message(link, message)
        elif isinstance(message, DrainMessage) and link.dialled:
            self.consumer.peer_drains(link)
        else:
            self._end_link(link)

    def _end_link(self, link: Link) -> None:
        self.ctx.counters["protocol_faults"] += 1
        self.ctx.drop_link(link.id, Reason.PROTOCOL_ERROR)

    def _current(self, link: Link, message: TransferMessage) -> bool:
        """False for a message from or for another life of either side (I1)."""
        header = message.header
        if header.sender == link.peer.incarnation and header.receiver == self.me.incarnation:
            return True
        self.ctx.counters["stale_messages"] += 1
        return False

    # --- everything else ---

    def handle(self, event: Event, now_ms: int) -> None:
        """Feed one event."""
        self.ctx.now_ms = now_ms
        match event:
            case Register():
                self.consumer.register(event)
            case Resolved():
                self.consumer.resolved(event)
            case Unresolvable():
                self.consumer.unresolvable(event)
            case CancelRegistration():
                self.consumer.cancel(event)
            case Unreachable():
                self.consumer.unreachable(event)
            case Expect():
                self.producer.expect(event)
            case Offer():
                self.producer.offer(event)
            case Grow():
                self.producer.grow(event)
            case Withdraw():
                self.producer.withdraw(event)
            case Drain():
                self._drain()
            case Evict():
                self._evict(event)
            case OpEnded():
                self.operations.ended(event)
            case OpNotPosted():
                self.operations.not_posted(event)
            case FenceResult():
                self.ctx.fences.discard(event.peer)
                self.consumer.fence_result(event)
            case _:
                assert_never(event)
        self._drain_lost()

    def needs_fence(self, peer: Peer) -> bool:
        """True while proof is wanted that this life of a peer is shut out."""
        return peer in self.ctx.fences or self.consumer.needs_fence(peer)

    def claim(self, op: OpId, now_ms: int) -> bool:
        """Last check before posting (B2)."""
        self.ctx.now_ms = now_ms
        claimed = self.operations.claim(op)
        self._drain_lost()
        return claimed

    def advance(self, now_ms: int) -> None:
        """Fire every timer whose deadline has come."""
        self.ctx.now_ms = now_ms
        while (key := self.ctx.timers.expired(now_ms)) is not None:
            match key:
                case HandshakeTimer(link):
                    handshake = self._handshakes[link]
                    self._carry(link, handshake, handshake.timeout())
                case DeadlineTimer(attempt):
                    self.consumer.deadline(attempt)
                case EdgeTimer(attempt, peer):
                    self.consumer.tick(attempt, peer)
                case GrantTimer(peer, attempt):
                    self.producer.grant_lease_over(peer, attempt)
                case OfferTimer(transfer_id):
                    self.producer.offer_lease_over(transfer_id)
                case _:
                    assert_never(key)
            self._drain_lost()

    def resumed(self, now_ms: int) -> None:
        """This side did not run for a while, and what came meanwhile has been read by now.

        Its own absence is no silence of a peer's, nor a handshake that takes too long (K-6.9.6).
        Leases and the deadlines of transfers go on: they are promises in real time.
        """
        self.ctx.now_ms = now_ms
        self.ctx.counters["stalls"] += 1
        for link in self.ctx.links.values():
            link.heard_ms = now_ms
        for pending in self._handshakes.keys() - self.ctx.links.keys():
            self.ctx.timers.set(HandshakeTimer(pending), now_ms + self.timings.handshake_ms)

    def next_deadline_ms(self) -> int | None:
        return self.ctx.timers.next_deadline_ms()

    def poll(self) -> list[Effect]:
        """Take the ordered batch of effects since the last call."""
        if self.ctx.draining and not self.ctx.drained and not self.live():
            self.ctx.drained = True
            self.ctx.emit(TellDrained())
        batch, self.ctx.out = self.ctx.out, []
        return batch

    def shut_down(self, now_ms: int) -> None:
        """Refuse what comes, end what is there: cancel registrations, withdraw sources (P1)."""
        self.ctx.now_ms = now_ms
        self.ctx.closing = True
        self.consumer.cancel_all(Reason.SHUTDOWN)
        self.producer.withdraw_all(Reason.SHUTDOWN)
        self._drain_lost()

    def _drain(self) -> None:
        """Take nothing new, let what is there finish (P1)."""
        if self.ctx.draining:
            return
        self.ctx.draining = True
        for link in list(self.ctx.links.values()):
            if not link.dialled:
                self._announce_drain(link)
        self.producer.drain()

    def _evict(self, event: Evict) -> None:
        """As if the peer had gone, found out by us and at once."""
        for link in list(self.ctx.links.values()):
            if event.names(link.peer.key):
                self.ctx.drop_link(link.id, Reason.PEER_LOST)
        self._drain_lost()
        self.consumer.evict(event)

    def _announce_drain(self, link: Link) -> None:
        if link.features & Feature.DRAIN:
            self.ctx.emit(Send(link=link.id, message=DrainMessage(reason=Reason.DRAINING)))

    def say_bye(self, reason: Reason) -> None:
        """Tell every peer that this side goes; links end on their side."""
        for link in list(self.ctx.links.values()):
            self.ctx.emit(Send(link=link.id, message=Bye(reason=reason)))

    def live(self) -> int:
        """Entries in all tables that must be empty after quiescence (L1)."""
        return (
            len(self.consumer.registrations)
            + len(self.producer.sources)
            + len(self.producer.sends)
            + len(self.operations.table)
        )
