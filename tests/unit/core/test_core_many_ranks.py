"""Corners that no pair of one consumer and one producer turns: several ranks, hostile order."""

from __future__ import annotations

import attrs
import pytest

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import (
    FEATURES,
    Attempt,
    AttemptKey,
    Incarnation,
    Initiator,
    LinkId,
    OpId,
    Part,
    Peer,
    PeerKey,
    Reason,
    Role,
    TransferId,
)
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Column,
    Describe,
    Done,
    Drain,
    Gone,
    Grant,
    GrantAck,
    Header,
    Hello,
    Offer,
    Renew,
    Welcome,
)
from kvxfer.core.session import Session
from kvxfer.limits import Limits, Timings
from kvxfer.testing.duet import Duet
from kvxfer.testing.walk import walk

LONG_MS = 10_000_000
P0, P1 = PeerKey("P", 0), PeerKey("P", 1)
D0, D1 = PeerKey("D", 0), PeerKey("D", 1)
T = TransferId("t")
PARTS = (Part(0, 0, 0, 10),)


def session(key: PeerKey, role: Role, ranks: tuple[int, ...] = (0,), **limits: int) -> Session:
    return Session(
        me=Identity(engine_id=key.engine_id, rank=key.rank, incarnation=Incarnation(1), role=role),
        limits=Limits(**limits),
        timings=Timings(),
        describe=lambda _link, _peer: Describe(transport="x", blob=b"", shard=b""),
        accept=lambda _link, _peer, _theirs: ranks,
    )


def dialled(consumer: Session, link: int, key: PeerKey, life: int = 7) -> LinkId:
    """A link to a producer comes up."""
    name = LinkId(link)
    consumer.open_link(name, key, 0)
    welcome = Welcome(
        version=1,
        engine_id=key.engine_id,
        rank=key.rank,
        incarnation=Incarnation(life),
        role=Role.PRODUCER,
        features=int(FEATURES),
    )
    consumer.receive(name, welcome, 0)
    consumer.receive(name, Describe(transport="x", blob=b"", shard=b""), 0)
    return name


def called(producer: Session, link: int, key: PeerKey, life: int = 7) -> LinkId:
    """A link from a consumer comes up."""
    name = LinkId(link)
    producer.open_link(name, None, 0)
    hello = Hello(
        version_min=1,
        version_max=1,
        engine_id=key.engine_id,
        rank=key.rank,
        incarnation=Incarnation(life),
        role=Role.CONSUMER,
        features=int(FEATURES),
        expected_engine_id="P",
        expected_rank=0,
    )
    producer.receive(name, hello, 0)
    producer.receive(name, Describe(transport="x", blob=b"", shard=b""), 0)
    return name


def header(attempt: int = 1, *, sender: int = 7, receiver: int = 1, tid: str = "t") -> Header:
    return Header(
        transfer_id=TransferId(tid),
        attempt=Attempt(attempt),
        sender=Incarnation(sender),
        receiver=Incarnation(receiver),
    )


def grant(attempt: int = 1, *, pull: bool = False, life: int = 7, tid: str = "t") -> Grant:
    return Grant(
        header=header(attempt, sender=life, tid=tid),
        digest=b"",
        lease_ms=30_000,
        parts=PARTS,
        tables=(),
        initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
    )


def register(*producers: PeerKey, pull: bool = False, tag: str = "d") -> ev.Register:
    return ev.Register(
        transfer_id=T,
        producers=producers,
        digest=b"",
        deadline_ms=LONG_MS,
        tag=tag,
        initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
    )


def offer(tid: str = "t", **changes: object) -> ev.Offer:
    values = {"transfer_id": TransferId(tid), "token_count": 10, "digest": b"", "lease_ms": 1_000}
    return ev.Offer(**(values | {"tag": "p"} | changes))


def resolved(*peers: PeerKey, attempt: int = 1) -> ev.Resolved:
    plans = tuple(ev.EdgePlan(peer=peer, parts=PARTS, tables=()) for peer in peers)
    return ev.Resolved(transfer_id=T, attempt=Attempt(attempt), edges=plans)


def tells(one: Session) -> list[str]:
    found = []
    for effect in one.poll():
        name = type(effect).__name__
        if name.startswith("Tell"):
            reason = getattr(effect, "reason", None)
            found.append(name[4:] + (f":{reason.name}" if reason is not None else ""))
    return found


def sent(one: Session) -> list[object]:
    return [effect.message for effect in one.poll() if isinstance(effect, fx.Send)]


# --- consumer ---


def test_a_registration_with_a_plan_for_one_rank_only_lands_by_that_rank() -> None:
    consumer = session(D0, Role.CONSUMER)
    first, second = dialled(consumer, 1, P0), dialled(consumer, 2, P1, life=8)
    consumer.handle(register(P0, P1), 0)
    consumer.poll()
    consumer.handle(resolved(P0), 0)
    granted = [e.link for e in consumer.poll() if isinstance(e, fx.Send)]
    assert granted == [first]
    done = Done(header=header(sender=7, receiver=1), part=PARTS[0])
    consumer.receive(second, attrs.evolve(done, header=header(sender=8)), 0)
    assert consumer.ctx.counters["protocol_faults"] == 1
    assert tells(consumer)[0] == "Lost:PARTS_MISMATCH"


@pytest.mark.parametrize("pull", [False, True])
def test_a_link_that_dies_before_the_answer_is_dialled_again(pull: bool) -> None:
    consumer = session(D0, Role.CONSUMER)
    link = dialled(consumer, 1, P0)
    consumer.handle(register(P0, pull=pull), 0)
    consumer.poll()
    consumer.close_link(link, Reason.PEER_LOST, 0)
    consumer.handle(resolved(P0), 0)
    assert [e.peer for e in consumer.poll() if isinstance(e, fx.Dial)] == [P0]
    consumer.advance(Timings().fence_retry_ms)
    dialled(consumer, 2, P0)
    assert [e for e in consumer.poll() if isinstance(e, fx.Resolve)]


@pytest.mark.parametrize("pull", [False, True])
def test_a_waiting_edge_is_dialled_again_after_a_pause(pull: bool) -> None:
    consumer = session(D0, Role.CONSUMER)
    consumer.handle(register(P0, P1, pull=pull), 0)
    consumer.poll()
    link = dialled(consumer, 1, P0)
    consumer.close_link(link, Reason.PEER_LOST, 0)
    consumer.poll()
    consumer.advance(Timings().fence_retry_ms)
    assert [e.peer for e in consumer.poll() if isinstance(e, fx.Dial)] == [P0]


def test_what_cannot_be_worked_out_is_lost() -> None:
    consumer = session(D0, Role.CONSUMER)
    dialled(consumer, 1, P0)
    consumer.handle(register(P0), 0)
    consumer.poll()
    no = ev.Unresolvable(
        transfer_id=T, attempt=Attempt(1), reason=Reason.OUT_OF_BOUNDS, detail="block 9"
    )
    consumer.handle(no, 0)
    consumer.handle(no, 0)
    assert tells(consumer) == ["Lost:OUT_OF_BOUNDS", "LetGo"]


def test_a_drain_ends_those_that_wait_for_another_ranks_link() -> None:
    consumer = session(D0, Role.CONSUMER)
    link = dialled(consumer, 1, P0)
    consumer.handle(register(P0, P1), 0)
    consumer.poll()
    consumer.receive(link, Drain(reason=Reason.DRAINING), 0)
    assert tells(consumer) == ["Lost:DRAINING", "LetGo"]


def test_a_new_life_ends_what_hung_on_the_old_link() -> None:
    consumer = session(D0, Role.CONSUMER)
    dialled(consumer, 1, P0, life=7)
    consumer.handle(register(P0), 0)
    consumer.handle(resolved(P0), 0)
    consumer.poll()
    dialled(consumer, 2, P0, life=9)
    assert tells(consumer) == ["Lost:NEW_INCARNATION"]
    fenced = ev.FenceResult(peer=Peer(P0, Incarnation(9)), fenced=True)
    consumer.handle(fenced, 0)
    assert tells(consumer) == [], "another life's fence proves nothing of this one"
    consumer.handle(ev.FenceResult(peer=Peer(P0, Incarnation(7)), fenced=True), 0)
    assert tells(consumer) == ["LetGo"]


def test_a_silent_edge_whose_link_went_already_is_fenced_all_the_same() -> None:
    """CANCEL is asked again and again; silence ends it."""
    consumer = session(D0, Role.CONSUMER)
    dialled(consumer, 1, P0)
    consumer.handle(register(P0), 0)
    consumer.handle(resolved(P0), 0)
    cancel = ev.CancelRegistration(transfer_id=T, reason=Reason.CANCELLED_BY_CONSUMER, tag="d")
    consumer.handle(cancel, 0)
    consumer.poll()
    consumer.advance(Timings().renew_ms)
    assert [type(m) for m in sent(consumer)] == [Cancel]
    consumer.advance(Timings().drain_ms + Timings().renew_ms)
    assert [e for e in consumer.poll() if isinstance(e, fx.Fence)]


def test_an_offer_after_the_end_of_reading_is_not_begun() -> None:
    consumer = session(D0, Role.CONSUMER)
    first, second = dialled(consumer, 1, P0), dialled(consumer, 2, P1, life=8)
    consumer.handle(register(P0, P1, pull=True), 0)
    consumer.handle(resolved(P0, P1), 0)
    lease = GrantAck(header=header(sender=8), lease_ms=30_000)
    consumer.receive(second, lease, 0)
    lent = Offer(header=header(sender=8), parts=PARTS, tables=())
    consumer.receive(second, lent, 0)
    (post,) = [e for e in consumer.poll() if isinstance(e, fx.Post)]
    assert consumer.claim(post.op, 1)
    consumer.receive(first, Gone(header=header(sender=7), reason=Reason.PRODUCER_ABORTED), 1)
    consumer.receive(second, lent, 1)
    stopped = consumer.poll()
    assert [e.op for e in stopped if isinstance(e, fx.StopOp)] == [post.op]
    assert not [e for e in stopped if isinstance(e, fx.Post)]
    edge = next(iter(consumer.consumer.registrations.values())).edges[P1]
    assert not consumer.consumer.readers.may_post(edge, post.part)


# --- producer ---


def serving(**limits: int) -> Session:
    return session(P0, Role.PRODUCER, (0, 1), **limits)


def test_a_source_serves_every_rank_of_the_engine_and_no_other_engine() -> None:
    producer = serving()
    first, second = called(producer, 1, D0), called(producer, 2, D1, life=8)
    other = called(producer, 3, PeerKey("E", 0), life=9)
    producer.receive(other, grant(life=9), 0)
    producer.receive(first, grant(), 0)
    producer.handle(ev.Withdraw(transfer_id=T, reason=Reason.PRODUCER_ABORTED), 0)
    producer.poll()
    for link, life in ((first, 7), (second, 8), (other, 9)):
        producer.receive(link, grant(2, life=life, tid="u"), 0)
    producer.handle(offer("u"), 0)
    posts = [e for e in producer.poll() if isinstance(e, fx.Post)]
    assert [post.link for post in posts] == [first, second]
    refused = producer.producer.sends
    assert Peer(PeerKey("E", 0), Incarnation(9)) not in {peer for peer, _ in refused}
    producer.receive(other, grant(3, life=9, tid="u"), 0)
    assert [m.reason for m in sent(producer) if isinstance(m, Gone)] == [Reason.ALREADY_IN_USE]
    for post in posts:
        assert tells(producer) == []
        assert producer.claim(post.op, 0)
        ended = ev.OpEnded(op=post.op, done=True, quiet=True, reason=Reason.NONE)
        producer.handle(ended, 0)
    assert tells(producer) == ["Sent"]


def test_a_grant_while_the_source_closes_hears_why() -> None:
    producer = serving()
    link, late = called(producer, 1, D0), called(producer, 2, D1, life=8)
    producer.receive(link, grant(), 0)
    producer.handle(offer(), 0)
    (post,) = [e for e in producer.poll() if isinstance(e, fx.Post)]
    assert producer.claim(post.op, 0)
    producer.handle(ev.Withdraw(transfer_id=T, reason=Reason.SHUTDOWN), 0)
    producer.poll()
    producer.receive(late, grant(life=8), 0)
    assert [m.reason for m in sent(producer)] == [Reason.SHUTDOWN]


def test_tables_that_are_full_refuse() -> None:
    """[M2]"""
    producer = serving(transfers_max=1, parts_parked_max=1)
    link = called(producer, 1, D0)
    producer.handle(offer("one"), 0)
    producer.handle(ev.Expect(transfer_id=TransferId("two")), 0)
    producer.handle(offer("two", tag="second"), 0)
    assert tells(producer) == ["Unsent:TABLE_FULL"]
    producer.receive(link, grant(tid="a"), 0)
    producer.receive(link, grant(tid="b"), 0)
    assert [type(m) for m in sent(producer)] == [GrantAck, Gone]


def test_what_comes_to_a_producer_while_shutting_down_is_refused() -> None:
    """[P1]"""
    producer = serving()
    link = called(producer, 1, D0)
    producer.shut_down(0)
    producer.handle(ev.Expect(transfer_id=T), 0)
    producer.poll()
    producer.receive(link, grant(), 0)
    assert [m.reason for m in sent(producer)] == [Reason.SHUTDOWN]
    assert producer.live() == 0


def test_a_renewal_of_a_served_attempt_is_acknowledged_and_of_an_unknown_one_not() -> None:
    producer = serving()
    link, second = called(producer, 1, D0), called(producer, 2, D1, life=8)
    for at, life in ((link, 7), (second, 8)):
        producer.receive(at, grant(life=life), 0)
    producer.handle(offer(), 0)
    for post in [e for e in producer.poll() if isinstance(e, fx.Post)]:
        producer.claim(post.op, 0)
        producer.handle(ev.OpEnded(op=post.op, done=True, quiet=True, reason=Reason.NONE), 0)
    producer.poll()
    producer.receive(link, Renew(header=header(), lease_ms=1_000, serial=3), 0)
    producer.receive(link, Renew(header=header(2), lease_ms=1_000), 0)
    answers = sent(producer)
    assert [type(m) for m in answers] == [GrantAck, Gone]
    assert answers[0].serial == 3


def test_an_unproven_attempt_is_not_vouched_for_until_another_life_comes() -> None:
    producer = serving()
    link = called(producer, 1, D0)
    producer.receive(link, grant(), 0)
    producer.handle(offer(), 0)
    (post,) = [e for e in producer.poll() if isinstance(e, fx.Post)]
    producer.claim(post.op, 0)
    unproven = ev.OpEnded(op=post.op, done=False, quiet=False, reason=Reason.TRANSPORT_FAILED)
    producer.handle(unproven, 0)
    again = called(producer, 2, D0)
    producer.poll()
    producer.receive(again, Renew(header=header(), lease_ms=1_000), 0)
    producer.receive(again, Cancel(header=header(), reason=Reason.NONE), 0)
    producer.receive(again, grant(), 0)
    assert [type(m) for m in sent(producer)] == [GrantAck]
    assert producer.producer.memory.unproven
    called(producer, 3, D0, life=70)
    assert not producer.producer.memory.unproven


def test_an_older_attempt_does_not_hide_a_newer_one() -> None:
    producer = serving()
    link = called(producer, 1, D0)
    producer.receive(link, grant(5), 0)
    peer = producer.ctx.links[link].peer
    producer.producer.memory.note(peer, AttemptKey(T, Attempt(2)))
    seen = producer.producer.memory.seen(peer, T)
    assert seen is not None
    assert seen.attempt == 5


def test_a_lease_renewed_while_draining_does_not_put_the_fence_off() -> None:
    """[C2] A consumer that goes on renewing what it has cancelled must not hold the source."""
    producer = serving()
    link = called(producer, 1, D0)
    producer.receive(link, grant(), 0)
    producer.handle(offer(), 0)
    (post,) = [e for e in producer.poll() if isinstance(e, fx.Post)]
    producer.claim(post.op, 0)
    producer.receive(link, Cancel(header=header(), reason=Reason.NONE), 0)
    lease_ms = Timings().grant_lease_ms
    producer.receive(link, Renew(header=header(), lease_ms=lease_ms), lease_ms - 1)
    producer.advance(lease_ms)
    assert [e for e in producer.poll() if isinstance(e, fx.Fence)]


def test_a_send_that_stopped_may_not_post() -> None:
    """[B2] What the queue forgot to drop is caught by the last look."""
    producer = serving()
    link = called(producer, 1, D0)
    producer.receive(link, grant(), 0)
    producer.handle(offer(), 0)
    (post,) = [e for e in producer.poll() if isinstance(e, fx.Post)]
    (send,) = producer.producer.sends.values()
    producer.claim(post.op, 0)
    producer.receive(link, Cancel(header=header(), reason=Reason.NONE), 0)
    assert not producer.producer.senders.may_post(send, post.part)
    ended = ev.OpEnded(op=post.op, done=False, quiet=True, reason=Reason.NONE)
    producer.handle(ended, 0)
    assert isinstance(sent(producer)[-1], Cancelled)


# --- both ---


@pytest.mark.parametrize(
    "event",
    [
        ev.OpEnded(op=OpId(99), done=True, quiet=True, reason=Reason.NONE),
        ev.OpNotPosted(op=OpId(99), reason=Reason.NONE),
    ],
)
def test_an_operation_that_nobody_knows_is_counted(event: ev.Event) -> None:
    producer = serving()
    producer.handle(event, 0)
    assert producer.ctx.counters["late_operations"] == 1


def test_a_link_that_is_gone_is_dropped_once() -> None:
    consumer = session(D0, Role.CONSUMER)
    link = dialled(consumer, 1, P0)
    consumer.poll()
    for _ in range(2):
        consumer.drop(link, Reason.TRANSPORT_FAILED, 0)
        consumer.fault(link, "late", 0)
        consumer.close_link(link, Reason.PEER_LOST, 0)
    dropped = [e for e in consumer.poll() if isinstance(e, fx.DropLink)]
    assert [e.reason for e in dropped] == [Reason.TRANSPORT_FAILED]


def test_what_cannot_be_understood_ends_the_link_with_a_reason() -> None:
    consumer = session(D0, Role.CONSUMER)
    link = dialled(consumer, 1, P0)
    consumer.handle(register(P0), 0)
    consumer.handle(resolved(P0), 0)
    consumer.poll()
    consumer.fault(link, "no CBOR", 0)
    assert tells(consumer) == ["Lost:PROTOCOL_ERROR"]


def test_a_transfer_message_before_the_handshake_is_refused() -> None:
    producer = serving()
    producer.open_link(LinkId(4), None, 0)
    producer.receive(LinkId(4), grant(), 0)
    effects = producer.poll()
    assert [type(e) for e in effects] == [fx.Send, fx.DropLink]
    assert effects[0].message.reason is Reason.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 9}, Reason.VERSION_MISMATCH),
        ({"engine_id": "Q"}, Reason.WRONG_PEER),
        ({"role": Role.CONSUMER}, Reason.ROLE_MISMATCH),
    ],
)
def test_a_welcome_that_does_not_fit(changes: dict[str, object], reason: Reason) -> None:
    consumer = session(D0, Role.CONSUMER)
    consumer.handle(register(P0), 0)
    consumer.open_link(LinkId(1), P0, 0)
    welcome = Welcome(
        version=1,
        engine_id="P",
        rank=0,
        incarnation=Incarnation(7),
        role=Role.PRODUCER,
        features=0,
    )
    consumer.receive(LinkId(1), attrs.evolve(welcome, **changes), 0)
    assert tells(consumer)[0] == f"Lost:{reason.name}"


def test_a_stale_message_to_a_producer_has_no_effect() -> None:
    producer = serving()
    link = called(producer, 1, D0)
    stale = attrs.evolve(grant(), header=header(receiver=2))
    producer.receive(link, stale, 0)
    assert producer.ctx.counters["stale_messages"] == 1
    assert producer.live() == 0


def test_the_length_of_a_column_is_its_entries() -> None:
    assert len(Column(8, bytes(24))) == 3


def test_bits_that_nobody_knows_are_nothing() -> None:
    duet = Duet()
    cable = duet.link_up()
    (link,) = duet.consumer.ctx.links.values()
    assert link.features == FEATURES
    assert cable.open_at_producer


@pytest.mark.parametrize("seeds", [range(150), range(9_000, 9_150)])
def test_every_index_is_empty_when_the_tables_are(seeds: range) -> None:
    """[L1] What finds transfers by peer, link or name ends with them."""
    for seed in seeds:
        duet = walk(seed)
        for one in (duet.consumer, duet.producer):
            consumer, producer = one.consumer, one.producer
            left = (
                consumer._by_peer,
                consumer._by_transfer,
                consumer.fencing.by_peer,
                consumer.fencing.quarantined,
                producer.attempts._by_link,
                producer.attempts._by_transfer,
                producer.attempts.parts_held,
                producer.lenders.lent,
                one.operations.table,
                len(one.ctx.timers),
            )
            assert not any(left), (seed, left)


def test_what_hangs_on_one_peer_is_found_without_the_others() -> None:
    consumer = session(D0, Role.CONSUMER)
    dialled(consumer, 1, P0)
    dialled(consumer, 2, P1, life=8)
    for n in range(50):
        one = attrs.evolve(register(P1, tag=f"d{n}"), transfer_id=TransferId(f"u{n}"))
        consumer.handle(one, 0)
    consumer.handle(register(P0), 0)
    assert len(consumer.consumer._at(P0)) == 1
    assert len(consumer.consumer._at(P1)) == 50


@pytest.mark.parametrize("expected", [False, True])
def test_a_consumer_that_leaves_does_not_take_the_offer_from_another_that_waits(
    expected: bool,
) -> None:
    """A router sent the request to one engine, gave up on it, and sent it to another."""
    producer = session(P0, Role.PRODUCER)
    first = called(producer, 1, PeerKey("E", 0), life=7)
    second = called(producer, 2, D0, life=8)
    if expected:
        producer.handle(ev.Expect(transfer_id=T, tag="p"), 0)
    producer.receive(first, grant(life=7), 0)
    producer.receive(second, grant(life=8), 0)
    cancel = Cancel(header=header(sender=7, receiver=1), reason=Reason.CANCELLED_BY_CONSUMER)
    producer.receive(first, cancel, 0)
    producer.poll()
    producer.handle(offer(), 0)
    effects = producer.poll()
    assert not [e for e in effects if isinstance(e, fx.TellUnsent)]
    (posted,) = [e for e in effects if isinstance(e, fx.Post)]
    assert posted.link == second


def test_the_last_consumer_that_leaves_takes_the_offer() -> None:
    producer = session(P0, Role.PRODUCER)
    links = [called(producer, n, PeerKey("E", n), life=6 + n) for n in (1, 2)]
    for n, link in enumerate(links, 1):
        producer.receive(link, grant(life=6 + n), 0)
    for n, link in enumerate(links, 1):
        head = header(sender=6 + n, receiver=1)
        producer.receive(link, Cancel(header=head, reason=Reason.CANCELLED_BY_CONSUMER), 0)
    producer.poll()
    producer.handle(offer(), 0)
    assert tells(producer) == ["Unsent:CANCELLED_BY_CONSUMER"]
