"""Two real sessions and a world that can do anything to what is between them.

Owns a consumer and a producer session, the wires between them, the operations
posted (the consumer's own READs in `reading.py`) and the danger they are to
memory. Nothing moves unless told to. Knows no transport and no layout.
Invariant: `Duet` raises `Violation` at the very step that breaks a rule of its
`Books`, so the last step is the culprit.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

import attrs

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import (
    Incarnation,
    Initiator,
    LinkId,
    OpId,
    Peer,
    PeerKey,
    Reason,
    Role,
    TransferId,
)
from kvxfer.core.messages import Describe, Done, Offer
from kvxfer.core.session import Session
from kvxfer.limits import Limits, Timings
from kvxfer.testing.between import Cable, Posted, Violation
from kvxfer.testing.books import Books
from kvxfer.testing.reading import Reading
from kvxfer.testing.rest import come_to_rest

D_KEY = PeerKey("eng-D", 0)
P_KEY = PeerKey("eng-P", 0)


@attrs.define(eq=False)
class Duet(Books):
    """One consumer, one producer (over its lives), any number of transfers."""

    timings: Timings = attrs.field(factory=Timings)
    limits: Limits = attrs.field(factory=Limits)
    consumer: Session = attrs.field(init=False)
    producer: Session = attrs.field(init=False)
    cables: dict[LinkId, Cable] = attrs.field(factory=dict)
    dials: int = 0
    queued: dict[OpId, fx.Post] = attrs.field(factory=dict)
    reading: Reading = attrs.field(init=False)
    draining: set[str] = attrs.field(factory=set)
    """Sides, "P" and "D", that were told to drain."""
    fences: deque[Peer] = attrs.field(factory=deque)
    restarts: int = 0
    consumer_restarts: int = 0
    cuts: int = 0
    _tags_by: dict[tuple[str, str], list[str]] = attrs.field(factory=dict)
    _last_link: int = 0
    _lives: int = 0
    _tags: int = 0

    def __attrs_post_init__(self) -> None:
        self.reading = Reading(self)
        self.consumer = self._session(D_KEY, Incarnation(1000), Role.CONSUMER)
        self.producer = self._session(P_KEY, Incarnation(1), Role.PRODUCER)
        self._lives = 1

    def _session(self, key: PeerKey, incarnation: Incarnation, role: Role) -> Session:
        other = (P_KEY if key == D_KEY else D_KEY).rank
        return Session(
            me=Identity(engine_id=key.engine_id, rank=key.rank, incarnation=incarnation, role=role),
            limits=self.limits,
            timings=self.timings,
            describe=lambda _link, _peer: Describe(transport="duet", blob=b"", shard=b""),
            accept=lambda _link, _peer, _theirs: (other,),
        )

    def _new_tag(self, side: str, tid: str) -> str:
        self._tags += 1
        tag = f"{side.lower()}{self._tags}"
        self._tags_by.setdefault((side, tid), []).append(tag)
        return tag

    def tags_of(self, side: str, tid: str) -> list[str]:
        """Names of all registrations ("D") or offers ("P") of a transfer so far."""
        return self._tags_by.get((side, tid), [])

    # --- moves of the engines ---

    def register(
        self, tid: str, *, digest: bytes = b"", deadline_ms: int = 1000, pull: bool = False
    ) -> str:
        tag = self._new_tag("D", tid)
        self.registered.add(tag)
        self.say(f"D registers {tid} as {tag}" + (" to read it" if pull else ""))
        event = ev.Register(
            transfer_id=TransferId(tid),
            producers=(P_KEY,),
            digest=digest,
            deadline_ms=deadline_ms,
            tag=tag,
            initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
        )
        self.consumer.handle(event, self.now_ms)
        self.settle()
        return tag

    def cancel(self, tid: str, tag: str) -> None:
        self.say(f"D cancels {tag}")
        event = ev.CancelRegistration(
            transfer_id=TransferId(tid), reason=Reason.CANCELLED_BY_CONSUMER, tag=tag
        )
        self.consumer.handle(event, self.now_ms)
        self.settle()

    def decline(self, tid: str) -> None:
        self.say(f"D declines {tid}")
        event = ev.Register(
            transfer_id=TransferId(tid),
            producers=(P_KEY,),
            digest=b"",
            deadline_ms=1000,
            silent=True,
        )
        self.consumer.handle(event, self.now_ms)
        self.settle()

    def expect(self, tid: str) -> None:
        self.say(f"P expects {tid}")
        self.producer.handle(ev.Expect(transfer_id=TransferId(tid)), self.now_ms)
        self.settle()

    def offer(
        self, tid: str, *, digest: bytes = b"", token_count: int = 100, sealed: bool = True
    ) -> str:
        tag = self._new_tag("P", tid)
        self.offered.add(tag)
        if not sealed:
            self.streams[tag] = token_count
        self.say(f"P offers {token_count} tokens of {tid} as {tag}")
        event = ev.Offer(
            transfer_id=TransferId(tid),
            token_count=token_count,
            digest=digest,
            lease_ms=self.timings.offer_lease_ms,
            tag=tag,
            sealed=sealed,
        )
        self.producer.handle(event, self.now_ms)
        self.settle()
        return tag

    def grow(self, tid: str, tag: str, *, token_count: int, sealed: bool = False) -> None:
        """More of a streamed offer is final; sealed: nothing comes after it."""
        self.streams[tag] = token_count
        if sealed:
            del self.streams[tag]
        self.say(f"P grows {tag} to {token_count} tokens" + (", sealed" if sealed else ""))
        event = ev.Grow(
            transfer_id=TransferId(tid), token_count=token_count, sealed=sealed, tag=tag
        )
        self.producer.handle(event, self.now_ms)
        self.settle()

    def drain(self, side: str) -> None:
        """Side "P" or "D" takes nothing new from now on."""
        self.say(f"{side} drains")
        self.draining.add(side)
        session = self.producer if side == "P" else self.consumer
        session.handle(ev.Drain(), self.now_ms)
        self.settle()

    def withdraw(self, tid: str) -> None:
        self.say(f"P withdraws {tid}")
        event = ev.Withdraw(transfer_id=TransferId(tid), reason=Reason.PRODUCER_ABORTED)
        self.producer.handle(event, self.now_ms)
        self.settle()

    # --- moves of the network ---

    def connect(self) -> None:
        """Answer the oldest dial with an open connection."""
        self.dials -= 1
        self._last_link += 1
        cable = Cable(LinkId(self._last_link), self.producer.me.incarnation)
        self.cables[cable.id] = cable
        self.say(f"link {cable.id} opens")
        self.producer.open_link(cable.id, None, self.now_ms)
        self.consumer.open_link(cable.id, P_KEY, self.now_ms)
        self.settle()

    def refuse_dial(self) -> None:
        self.dials -= 1
        self.say("dial fails")
        event = ev.Unreachable(peer=P_KEY, reason=Reason.UNREACHABLE)
        self.consumer.handle(event, self.now_ms)
        self.settle()

    def to_producer(self, cable: Cable) -> None:
        """Deliver the oldest message of the consumer."""
        message = cable.to_producer.popleft()
        if cable.open_at_producer:
            self.say(f"P receives {type(message).__name__}")
            self.producer.receive(cable.id, message, self.now_ms)
            self.settle()

    def to_consumer(self, cable: Cable) -> None:
        """Deliver the oldest message of the producer."""
        message = cable.to_consumer.popleft()
        if cable.open_at_consumer:
            self.say(f"D receives {type(message).__name__}")
            self.consumer.receive(cable.id, message, self.now_ms)
            self.settle()

    def notice(self, cable: Cable, index: int = 0, *, keep: bool = False) -> None:
        """Deliver one transport notification, out of order or twice as wished."""
        message = cable.notices[index]
        if not keep:
            del cable.notices[index]
        assert isinstance(message, Done)
        self.say(f"D is notified of {message.header.transfer_id} {message.part}")
        self.consumer.receive(cable.id, message, self.now_ms)
        self.settle()

    def lose_notice(self, cable: Cable) -> None:
        cable.notices.popleft()
        self.say("a notice is lost")

    def cut(self, cable: Cable, *, consumer: bool, producer: bool) -> None:
        """The connection breaks; each side learns of it when told to."""
        if cable.open_at_consumer and cable.open_at_producer:
            self.cuts += 1
        if consumer and cable.open_at_consumer:
            cable.open_at_consumer = False
            self.say(f"D loses link {cable.id}")
            self.consumer.close_link(cable.id, Reason.PEER_LOST, self.now_ms)
        if producer and cable.open_at_producer:
            cable.open_at_producer = False
            self.say(f"P loses link {cable.id}")
            self.producer.close_link(cable.id, Reason.PEER_LOST, self.now_ms)
        self.settle()

    def restart_producer(self) -> None:
        """P dies with everything it has posted, and comes back with another incarnation."""
        self._lives += 1
        self.restarts += 1
        self.say(f"P dies and restarts as life {self._lives}")
        self.reading.lose_life(self.producer.me.incarnation)
        self.queued.clear()
        self.posted.clear()
        self.offered.clear()
        self.streams.clear()
        self.draining.discard("P")
        self.drained.discard("P")
        for cable in self.cables.values():
            cable.open_at_producer = False
            cable.to_producer.clear()
        self.producer = self._session(P_KEY, Incarnation(self._lives), Role.PRODUCER)

    def restart_consumer(self) -> None:
        """D dies with its memory, and comes back with another incarnation."""
        self.consumer_restarts += 1
        self.say(f"D dies and restarts, {self.consumer_restarts} times so far")
        self.danger.clear()
        self.reading.clear()
        self.draining.discard("D")
        self.drained.discard("D")
        self.fences.clear()
        self.let_go.clear()
        self.parts_landed.clear()
        self.registered.clear()
        self.dials = 0
        for key in [k for k in self._tags_by if k[0] == "D"]:
            del self._tags_by[key]
        for cable in self.cables.values():
            cable.open_at_consumer = False
            cable.shut_by_consumer = True
            cable.to_consumer.clear()
            cable.notices.clear()
        life = Incarnation(1000 + self.consumer_restarts)
        self.consumer = self._session(D_KEY, life, Role.CONSUMER)

    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        self.say(f"{delta_ms} ms pass")
        self.consumer.advance(self.now_ms)
        self.producer.advance(self.now_ms)
        self.settle()

    def next_deadline_ms(self) -> int | None:
        both = (self.consumer.next_deadline_ms(), self.producer.next_deadline_ms())
        return min((d for d in both if d is not None), default=None)

    # --- moves of the transport ---

    def post(self, op: OpId) -> bool:
        """The driver comes to posting a part."""
        post = self.queued.pop(op)
        if not self.producer.claim(op, self.now_ms):
            self.say(f"P drops op {op}")
            return False
        cable = self.cables[post.link]
        posted = Posted(op, post, cable)
        self.posted[op] = posted
        self.say(f"P posts op {op} of {post.grant.header.transfer_id}")
        if not cable.shut_by_consumer:
            self.enter_danger(self.producer.me.incarnation, posted)
        self.settle()
        return True

    def refuse_post(self, op: OpId) -> None:
        """The transport takes nothing of it."""
        self.queued.pop(op)
        if self.producer.claim(op, self.now_ms):
            self.say(f"op {op} cannot be posted")
            event = ev.OpNotPosted(op=op, reason=Reason.TRANSPORT_FAILED)
            self.producer.handle(event, self.now_ms)
            self.settle()

    def finish(self, op: OpId, *, done: bool, quiet: bool = True) -> None:
        """A posted part ends at the producer."""
        posted = self.posted.pop(op)
        post = posted.post
        if done and not posted.cable.shut_by_consumer:
            header = self.producer.ctx.header(post.grant.header.key, post.peer)
            posted.cable.notices.append(Done(header=header, part=post.part))
            self.parts_landed.add((post.grant.header.key, post.part))
        if done or quiet:
            self.danger.pop((self.producer.me.incarnation, op), None)
        self.say(f"op {op} ends, done={done} quiet={quiet}")
        reason = Reason.NONE if done else Reason.TRANSPORT_FAILED
        event = ev.OpEnded(op=op, done=done, quiet=done or quiet, reason=reason)
        self.producer.handle(event, self.now_ms)
        self.settle()

    def fence(self, *, fenced: bool) -> None:
        """The consumer's transport answers the oldest fence."""
        peer = self.fences.popleft()
        self.say(f"fence of {peer.key.engine_id} life {peer.incarnation}: {fenced}")
        if fenced:
            for cable in self.cables.values():
                if cable.producer_life == peer.incarnation and not cable.open_at_consumer:
                    cable.shut_by_consumer = True
            # A READ of its own is no danger once it has ended, and not before.
            running = self.reading.posted.values()
            for key, posted in list(self.danger.items()):
                if posted.cable.shut_by_consumer and posted not in running:
                    del self.danger[key]
        self.reading.abort(peer.incarnation)
        self.consumer.handle(ev.FenceResult(peer=peer, fenced=fenced), self.now_ms)
        self.settle()

    # --- effects ---

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for effect in self.consumer.poll():
                moved = True
                self._consumer_effect(effect)
            for effect in self.producer.poll():
                moved = True
                self._producer_effect(effect)

    def _consumer_effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send():
                self.cables[effect.link].to_producer.append(effect.message)
            case fx.Dial():
                self.dials = 1
            case fx.DropLink():
                self.cables[effect.link].open_at_consumer = False
            case fx.Resolve():
                parts = () if effect.silent else self.parts()
                plan = ev.EdgePlan(peer=P_KEY, parts=parts, tables=())
                event = ev.Resolved(
                    transfer_id=effect.transfer_id, attempt=effect.attempt, edges=(plan,)
                )
                self.consumer.handle(event, self.now_ms)
            case fx.Fence():
                self.fences.append(effect.peer)
            case fx.Post():
                self.reading.queued[effect.op] = effect
            case fx.StopOp():
                if effect.op in self.reading.posted:
                    self.reading.posted[effect.op].stopped = True
            case fx.TellLanded() | fx.TellLost() | fx.TellLetGo():
                self.told_consumer(effect)
            case fx.TellDrained():
                self.told_drained("D", self.consumer.live())
            case fx.Trace():
                pass
            case fx.TellSent() | fx.TellUnsent():
                raise Violation(f"a consumer has nothing to do with {effect}")
            case _:
                assert_never(effect)

    def _producer_effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send():
                self._note_offer(effect)
                self.cables[effect.link].to_consumer.append(effect.message)
            case fx.DropLink():
                self.cables[effect.link].open_at_producer = False
            case fx.Post():
                self.queued[effect.op] = effect
            case fx.StopOp():
                # It may have ended meanwhile, by a fence in the same batch.
                if effect.op in self.posted:
                    self.posted[effect.op].stopped = True
            case fx.Fence():
                self._fence_by_producer(effect.peer)
            case fx.TellSent() | fx.TellUnsent():
                self.reading.reuse(self.producer.me.incarnation, effect.tag)
                self.told_producer(effect)
            case fx.TellDrained():
                self.told_drained("P", self.producer.live())
            case fx.Trace():
                pass
            case fx.Dial() | fx.Resolve() | fx.TellLanded() | fx.TellLost() | fx.TellLetGo():
                raise Violation(f"a producer has nothing to do with {effect}")
            case _:
                assert_never(effect)

    def _note_offer(self, effect: fx.Send) -> None:
        message = effect.message
        if isinstance(message, Offer):
            source = self.producer.producer.sources[message.header.transfer_id]
            self.reading.lend(self.producer.me.incarnation, message.header.key, source.tag)

    def _fence_by_producer(self, peer: Peer) -> None:
        """Its own operations end locally; what is in the network may still land."""
        self.producer.handle(ev.FenceResult(peer=peer, fenced=True), self.now_ms)
        for op, posted in list(self.posted.items()):
            if posted.post.peer == peer and not posted.cable.open_at_producer:
                self.posted.pop(op)
                event = ev.OpEnded(op=op, done=False, quiet=False, reason=Reason.TRANSPORT_FAILED)
                self.producer.handle(event, self.now_ms)

    # --- to the end ---

    def link_up(self) -> Cable:
        """Bring a link up, as an earlier transfer would have done."""
        self.decline("earlier")
        self.connect()
        cable = self.cables[LinkId(self._last_link)]
        self.deliver_all(cable)
        self.withdraw("earlier")
        self.deliver_all(cable)
        return cable

    def deliver_all(self, cable: Cable) -> None:
        """Deliver every control message, both ways, until none is on the way."""
        while cable.to_producer or cable.to_consumer:
            if cable.to_producer:
                self.to_producer(cable)
            else:
                self.to_consumer(cable)

    def quiesce(self, steps_max: int = 2000) -> None:
        """Let everything pending happen, fences succeed, time pass; then all must be over (L1)."""
        come_to_rest(self, steps_max)
