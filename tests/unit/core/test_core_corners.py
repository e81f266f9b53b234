"""What a driver may do to a session that no engine and no peer asks for."""

from __future__ import annotations

import pytest

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Handshake, Identity
from kvxfer.core.ids import Attempt, Incarnation, LinkId, OpId, PeerKey, Reason, Role, TransferId
from kvxfer.core.messages import Bye, Describe, Grant, Refuse, Welcome
from kvxfer.core.session import Session
from kvxfer.testing.duet import P_KEY, Duet

T = TransferId("t")


def asked(duet: Duet, *producers: PeerKey) -> Session:
    """A registration for which the parts have not been worked out yet."""
    consumer = duet.consumer
    event = ev.Register(
        transfer_id=T,
        producers=producers or (P_KEY,),
        digest=b"",
        deadline_ms=1_000_000,
        tag="d",
    )
    consumer.handle(event, duet.now_ms)
    return consumer


def lost(session: Session) -> list[tuple[Reason, str]]:
    return [(e.reason, e.detail) for e in session.poll() if isinstance(e, fx.TellLost)]


def test_what_cannot_be_granted_is_lost_with_the_reason() -> None:
    duet = Duet()
    duet.link_up()
    consumer = asked(duet)
    consumer.poll()
    wrong = ev.Unresolvable(
        transfer_id=T, attempt=Attempt(1), reason=Reason.OUT_OF_BOUNDS, detail="block 99"
    )
    consumer.handle(wrong, 0)
    assert lost(consumer) == [(Reason.OUT_OF_BOUNDS, "block 99")]
    consumer.handle(wrong, 0)
    assert consumer.poll() == []
    assert consumer.live() == 0


def test_a_link_that_dies_while_the_parts_are_worked_out_is_dialled_again() -> None:
    duet = Duet()
    cable = duet.link_up()
    consumer = asked(duet)
    assert any(isinstance(e, fx.Resolve) for e in consumer.poll())
    consumer.close_link(cable.id, Reason.PEER_LOST, 0)
    plan = ev.EdgePlan(peer=P_KEY, parts=duet.parts(), tables=())
    consumer.handle(ev.Resolved(transfer_id=T, attempt=Attempt(1), edges=(plan,)), 0)
    out = consumer.poll()
    assert [e.peer for e in out if isinstance(e, fx.Dial)] == [P_KEY]
    assert not any(isinstance(e, fx.Send) and isinstance(e.message, Grant) for e in out)
    assert lost(consumer) == []


def test_parts_are_asked_for_once() -> None:
    """A link of the same peer that comes up meanwhile asks for nothing more."""
    duet = Duet()
    duet.link_up()
    consumer = asked(duet)
    assert sum(isinstance(e, fx.Resolve) for e in consumer.poll()) == 1
    duet.dials += 1
    link = LinkId(77)
    consumer.open_link(link, P_KEY, 0)
    welcome = Welcome(
        version=1,
        engine_id=P_KEY.engine_id,
        rank=P_KEY.rank,
        incarnation=Incarnation(1),
        role=Role.PRODUCER,
        features=0,
    )
    consumer.receive(link, welcome, 0)
    consumer.receive(link, Describe(transport="duet", blob=b"", shard=b""), 0)
    assert link in consumer.ctx.links
    assert not any(isinstance(e, fx.Resolve) for e in consumer.poll())


def test_links_that_are_not_there_can_be_dropped_and_be_faulty() -> None:
    duet = Duet()
    producer = duet.producer
    producer.drop(LinkId(99), Reason.TRANSPORT_FAILED, 0)
    producer.fault(LinkId(99), "late nonsense", 0)
    producer.close_link(LinkId(99), Reason.PEER_LOST, 0)
    assert producer.poll() == []
    assert producer.ctx.counters["protocol_faults"] == 1


def test_a_link_that_the_transport_gives_up_is_dropped_with_all_that_hangs_on_it() -> None:
    duet = Duet()
    cable = duet.link_up()
    tag = duet.register("t")
    duet.consumer.drop(cable.id, Reason.TRANSPORT_FAILED, 0)
    duet.settle()
    assert not cable.open_at_consumer
    told = [e for e in duet.told if e.tag == tag]
    assert [e.reason for e in told if isinstance(e, fx.TellLost)] == [Reason.TRANSPORT_FAILED]
    duet.quiesce()


@pytest.mark.parametrize(
    "event",
    [
        ev.OpNotPosted(op=OpId(99), reason=Reason.NONE),
        ev.OpEnded(op=OpId(99), done=True, quiet=True, reason=Reason.NONE),
    ],
)
def test_an_operation_that_nobody_knows_ends_nothing(event: ev.Event) -> None:
    duet = Duet()
    duet.producer.handle(event, 0)
    assert duet.producer.poll() == []
    assert duet.producer.ctx.counters["late_operations"] == 1


def test_who_holds_what_can_be_asked() -> None:
    duet = Duet()
    cable = duet.link_up()
    d, p = duet.register("t"), duet.offer("t")
    assert duet.consumer.consumer.holds(T, d)
    assert not duet.consumer.consumer.holds(T, "another")
    assert duet.producer.producer.holds(T, p)
    assert not duet.producer.producer.holds(T, "another")
    duet.deliver_all(cable)
    duet.quiesce()
    assert not duet.consumer.consumer.holds(T, d)
    assert not duet.producer.producer.holds(T, p)


def test_bye_goes_to_every_link() -> None:
    duet = Duet()
    cable = duet.link_up()
    duet.producer.say_bye(Reason.SHUTDOWN)
    (send,) = duet.producer.poll()
    assert send == fx.Send(link=cable.id, message=Bye(reason=Reason.SHUTDOWN))


def test_a_handshake_that_has_ended_says_nothing_more_and_keeps_its_reason() -> None:
    shake = Handshake(
        me=Identity(engine_id="p", rank=0, incarnation=Incarnation(1), role=Role.PRODUCER),
        dialled=None,
        describe=lambda _peer: Describe(transport="x", blob=b"", shard=b""),
        accept=lambda _peer, _theirs: (),
    )
    first = shake.fail(Reason.PROTOCOL_ERROR, "no message")
    assert first.messages == (Refuse(reason=Reason.PROTOCOL_ERROR, detail="no message"),)
    assert shake.fail(Reason.WRONG_PEER, "late").messages == ()
    shake.reason = Reason.PROTOCOL_ERROR
    assert not shake.lost(Reason.PEER_LOST).close
    assert shake.reason is Reason.PROTOCOL_ERROR
