"""Two agents that are both at once: push one way, read-back the other, on one request.

The second turn of a conversation: P prefilled and pushed to D, D decoded, and now
P reads D's cache back, while the first turn's bookkeeping may still be open.
"""

from __future__ import annotations

from collections import deque

import attrs

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import (
    Incarnation,
    Initiator,
    LinkId,
    Part,
    PeerKey,
    Reason,
    Role,
    TransferId,
)
from kvxfer.core.messages import Describe, Done
from kvxfer.core.session import Session
from kvxfer.limits import Limits, Timings

A, B = PeerKey("eng-A", 0), PeerKey("eng-B", 0)
PARTS = (Part(0, 0, 0, 10), Part(0, 1, 0, 10))
T = TransferId("t")


@attrs.define(eq=False)
class Side:
    """One agent that is producer and consumer."""

    session: Session
    posts: deque[fx.Post] = attrs.field(factory=deque)
    told: list[str] = attrs.field(factory=list)


def side(key: PeerKey, incarnation: int) -> Side:
    return Side(
        Session(
            me=Identity(
                engine_id=key.engine_id,
                rank=0,
                incarnation=Incarnation(incarnation),
                role=Role.BOTH,
            ),
            limits=Limits(),
            timings=Timings(),
            describe=lambda _link, _peer: Describe(transport="pair", blob=b"", shard=b""),
            accept=lambda _link, _peer, _theirs: (0,),
        )
    )


@attrs.define(eq=False)
class Pair:
    """Messages arrive at once; operations are held until told."""

    a: Side
    b: Side
    links: int = 0

    def other(self, one: Side) -> Side:
        return self.b if one is self.a else self.a

    def tell(self, one: Side, event: ev.Event) -> None:
        one.session.handle(event, 0)
        self.run()

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for one in (self.a, self.b):
                for effect in one.session.poll():
                    moved = True
                    self._carry(one, effect)

    def _carry(self, one: Side, effect: fx.Effect) -> None:
        other = self.other(one)
        match effect:
            case fx.Send():
                other.session.receive(effect.link, effect.message, 0)
            case fx.Dial():
                self.links += 1
                link = LinkId(self.links)
                other.session.open_link(link, None, 0)
                one.session.open_link(link, effect.peer, 0)
            case fx.DropLink():
                other.session.close_link(effect.link, Reason.PEER_LOST, 0)
            case fx.Resolve():
                peer = B if one is self.a else A
                plan = ev.EdgePlan(peer=peer, parts=PARTS, tables=())
                one.session.handle(
                    ev.Resolved(
                        transfer_id=effect.transfer_id, attempt=effect.attempt, edges=(plan,)
                    ),
                    0,
                )
            case fx.Post():
                one.posts.append(effect)
            case fx.Fence():
                one.session.handle(ev.FenceResult(peer=effect.peer, fenced=True), 0)
            case fx.Trace():
                pass
            case _:
                one.told.append(type(effect).__name__.removeprefix("Tell"))

    def move_one(self, one: Side) -> None:
        post = one.posts.popleft()
        assert one.session.claim(post.op, 0)
        if post.offer is None:
            header = one.session.ctx.header(post.grant.header.key, post.peer)
            self.other(one).session.receive(post.link, Done(header=header, part=post.part), 0)
        self.tell(one, ev.OpEnded(op=post.op, done=True, quiet=True, reason=Reason.NONE))


def pair() -> Pair:
    return Pair(side(A, 1), side(B, 2))


def register(peer: PeerKey, *, pull: bool, tag: str) -> ev.Register:
    return ev.Register(
        transfer_id=T,
        producers=(peer,),
        digest=b"",
        deadline_ms=1_000,
        tag=tag,
        initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
    )


def offer(tag: str) -> ev.Offer:
    return ev.Offer(transfer_id=T, token_count=10, digest=b"", lease_ms=1_000, tag=tag)


def test_read_back_is_a_pull_with_the_engines_exchanged() -> None:
    both = pair()
    both.tell(both.b, offer("cache"))
    both.tell(both.a, register(B, pull=True, tag="again"))
    assert len(both.a.posts) == 2
    assert not both.b.posts
    both.move_one(both.a)
    both.move_one(both.a)
    assert both.a.told == ["Landed", "LetGo"]
    assert both.b.told == ["Sent"]
    assert both.a.session.live() == both.b.session.live() == 0


def test_two_directions_under_one_name_do_not_meet() -> None:
    """[N1] A pushes to B and reads B's cache back, both for the same request."""
    both = pair()
    both.tell(both.b, register(A, pull=False, tag="b-wants"))
    both.tell(both.a, register(B, pull=True, tag="a-wants"))
    both.tell(both.a, offer("a-has"))
    both.tell(both.b, offer("b-has"))
    # A writes two parts to B and reads two parts from B.
    kinds = [post.offer is None for post in both.a.posts]
    assert sorted(kinds) == [False, False, True, True]
    while both.a.posts:
        both.move_one(both.a)
    assert sorted(both.a.told) == ["Landed", "LetGo", "Sent"]
    assert sorted(both.b.told) == ["Landed", "LetGo", "Sent"]
    assert both.links == 2
    assert both.a.session.live() == both.b.session.live() == 0


def test_one_direction_fails_and_the_other_goes_on() -> None:
    both = pair()
    both.tell(both.b, register(A, pull=False, tag="b-wants"))
    both.tell(both.a, register(B, pull=True, tag="a-wants"))
    both.tell(both.b, offer("b-has"))
    both.tell(
        both.a,
        ev.Withdraw(transfer_id=T, reason=Reason.PRODUCER_ABORTED),
    )
    assert both.b.told == ["Lost", "LetGo"]
    while both.a.posts:
        both.move_one(both.a)
    assert both.a.told == ["Landed", "LetGo"]
    assert both.b.told == ["Lost", "LetGo", "Sent"]
    assert both.a.session.live() == both.b.session.live() == 0


def test_an_unproven_write_ends_both_links_of_that_peer() -> None:
    """The fence shuts out a life of a peer, not one direction of it."""
    both = pair()
    both.tell(both.b, register(A, pull=False, tag="b-wants"))
    both.tell(both.a, register(B, pull=True, tag="a-wants"))
    both.tell(both.a, offer("a-has"))
    post = both.a.posts.popleft()
    assert both.a.session.claim(post.op, 0)
    ended = ev.OpEnded(op=post.op, done=False, quiet=False, reason=Reason.TRANSPORT_FAILED)
    both.tell(both.a, ended)
    assert not both.a.session.ctx.links
    assert "Lost" in both.a.told
    assert "Lost" in both.b.told
