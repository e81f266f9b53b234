"""Two sessions, face to face, with nothing between them: what the core costs by itself.

Owns the pair and the carrying of messages from one to the other. No codec, no
layout, no transport. Invariant: every call into a session is one event and is
counted.
"""

from __future__ import annotations

from collections import deque

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.events import EdgePlan, Event, Offer, OpEnded, Register, Resolved
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import Incarnation, LinkId, Part, PeerKey, Reason, Role, TransferId
from kvxfer.core.messages import BlockRuns, Column, Describe, Done, Message
from kvxfer.core.session import Session
from kvxfer.limits import Limits, Timings

P_KEY, D_KEY = PeerKey("eng-P", 0), PeerKey("eng-D", 0)
LINK = LinkId(1)
TOKENS = 4096
BLOCKS = 256
_COLUMN = Column(4, b"".join((7 * n).to_bytes(4, "little") for n in range(BLOCKS)))
_ONES = Column(4, (1).to_bytes(4, "little") * BLOCKS)
PART = Part(0, 0, 0, TOKENS)
MANY = 1 << 20
LIMITS = Limits(transfers_max=MANY, grants_parked_max=MANY)


def tables() -> tuple[BlockRuns, ...]:
    """A block table of 4,096 tokens in 256 blocks, none next to another."""
    return (BlockRuns(group=0, first_token=0, starts=_COLUMN, lengths=_ONES),)


def _describe(_link: LinkId, _peer: object) -> Describe:
    return Describe(transport="bench", blob=b"", shard=b"")


def _accept(_link: LinkId, _peer: object, _theirs: Describe) -> tuple[int, ...]:
    return (0,)


def session(key: PeerKey, role: Role, timings: Timings) -> Session:
    return Session(
        me=Identity(engine_id=key.engine_id, rank=0, incarnation=Incarnation(int(role)), role=role),
        limits=LIMITS,
        timings=timings,
        describe=_describe,
        accept=_accept,
    )


@attrs.define(eq=False)
class Pair:
    """One consumer, one producer, one link."""

    timings: Timings = attrs.field(factory=Timings)
    now_ms: int = 0
    events: int = 0
    consumer: Session = attrs.field(init=False)
    producer: Session = attrs.field(init=False)
    tells: int = 0
    """Ends that either engine was told of, let-go included."""
    _ways: deque[tuple[Session, Message]] = attrs.field(factory=deque)
    _posts: deque[fx.Post] = attrs.field(factory=deque)

    def __attrs_post_init__(self) -> None:
        self.consumer = session(D_KEY, Role.CONSUMER, self.timings)
        self.producer = session(P_KEY, Role.PRODUCER, self.timings)
        self.producer.open_link(LINK, None, 0)
        self.consumer.open_link(LINK, P_KEY, 0)
        self.settle()

    def register(self, name: str) -> None:
        """D wants a transfer; the grant goes out and is parked and acknowledged."""
        self.feed(
            self.consumer,
            Register(
                transfer_id=TransferId(name),
                producers=(P_KEY,),
                digest=b"",
                deadline_ms=self.timings.transfer_deadline_ms,
                tag=name,
            ),
        )
        self.settle()

    def serve(self, name: str) -> None:
        """P offers; the part is posted, ends, and its notice lands."""
        self.feed(
            self.producer,
            Offer(
                transfer_id=TransferId(name),
                token_count=TOKENS,
                digest=b"",
                lease_ms=self.timings.offer_lease_ms,
                tag=name,
            ),
        )
        self.settle()
        while self._posts:
            self._post(self._posts.popleft())
        self.settle()

    def _post(self, post: fx.Post) -> None:
        self.events += 1
        if self.producer.claim(post.op, self.now_ms):
            header = self.producer.ctx.header(post.grant.header.key, post.peer)
            self._ways.append((self.consumer, Done(header=header, part=post.part)))
            ended = OpEnded(op=post.op, done=True, quiet=True, reason=Reason.NONE)
            self.feed(self.producer, ended)

    def feed(self, to: Session, event: Event) -> None:
        self.events += 1
        to.handle(event, self.now_ms)

    def advance(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for one in (self.consumer, self.producer):
            one.advance(now_ms)
        self.settle()

    def settle(self) -> None:
        """Carry out effects and deliver messages until nothing moves."""
        sessions = ((self.consumer, self.producer), (self.producer, self.consumer))
        moved = True
        while moved:
            moved = False
            for one, other in sessions:
                for effect in one.poll():
                    moved = True
                    self._effect(one, other, effect)
            while self._ways:
                moved = True
                to, message = self._ways.popleft()
                self.events += 1
                to.receive(LINK, message, self.now_ms)

    def _effect(self, one: Session, other: Session, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send):
            self._ways.append((other, effect.message))
        elif isinstance(effect, fx.Resolve):
            plan = EdgePlan(peer=P_KEY, parts=(PART,), tables=tables())
            event = Resolved(transfer_id=effect.transfer_id, attempt=effect.attempt, edges=(plan,))
            self.feed(one, event)
        elif isinstance(effect, fx.Post):
            self._posts.append(effect)
        elif not isinstance(effect, fx.Trace):
            self.tells += isinstance(
                effect, fx.TellLanded | fx.TellLost | fx.TellLetGo | fx.TellSent | fx.TellUnsent
            )
