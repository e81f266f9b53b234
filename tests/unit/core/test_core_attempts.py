"""Attempts that overlap: an old one draining or in quarantine beside a new one.

Each test is a fault that a review of the machines found; see `test_core_transfers`
for the rig's words.
"""

from __future__ import annotations

import attrs

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.ids import Attempt, Incarnation, LinkId, Reason, Role, TransferId
from kvxfer.core.messages import Bye, Describe, Grant, Header, Hello, Welcome
from kvxfer.limits import Limits
from kvxfer.testing.between import Cable
from kvxfer.testing.duet import P_KEY, Duet

LONG_MS = 10_000_000


def linked(**settings: object) -> tuple[Duet, Cable]:
    duet = Duet(**settings)
    return duet, duet.link_up()


def told(duet: Duet, tag: str) -> list[str]:
    return [type(e).__name__.removeprefix("Tell") for e in duet.told if e.tag == tag]


def quarantine_one(duet: Duet, cable: Cable) -> str:
    """A transfer whose write failed unproven, and whose fence is refused."""
    tag = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.offer("t")
    op = next(iter(duet.queued))
    duet.post(op)
    duet.finish(op, done=False, quiet=False)
    duet.cut(cable, consumer=True, producer=True)
    while duet.fences:
        duet.fence(fenced=False)
    assert duet.consumer.consumer.quarantined() == 1
    return tag


def test_an_answer_goes_to_the_attempt_that_asked() -> None:
    """The engine cancels and registers again before the driver has resolved the first attempt."""
    duet, _ = linked()
    consumer = duet.consumer
    tid = TransferId("t")
    for tag in ("one", "two"):
        consumer.handle(
            ev.Register(
                transfer_id=tid,
                producers=(cable_peer(duet),),
                digest=b"",
                deadline_ms=LONG_MS,
                tag=tag,
            ),
            0,
        )
        if tag == "one":
            consumer.handle(
                ev.CancelRegistration(
                    transfer_id=tid, reason=Reason.CANCELLED_BY_CONSUMER, tag="one"
                ),
                0,
            )
    asked = [e for e in consumer.poll() if isinstance(e, fx.Resolve) and not e.silent]
    assert [a.tag for a in asked] == ["one", "two"]
    plan = ev.EdgePlan(peer=cable_peer(duet), parts=duet.parts(), tables=())
    consumer.handle(ev.Resolved(transfer_id=tid, attempt=asked[0].attempt, edges=(plan,)), 0)
    assert not [e for e in consumer.poll() if isinstance(e, fx.Send)]
    consumer.handle(ev.Resolved(transfer_id=tid, attempt=asked[1].attempt, edges=(plan,)), 0)
    grants = [e.message for e in consumer.poll() if isinstance(e, fx.Send)]
    assert [g.header.attempt for g in grants if isinstance(g, Grant)] == [asked[1].attempt]


def cable_peer(duet: Duet):
    return next(iter(duet.consumer.ctx.links.values())).peer.key


def test_a_quarantine_does_not_take_the_next_transfers_with_it() -> None:
    """[I-06, I-08, I2] A retry of the fence leaves the link that came after alone."""
    duet, cable = linked()
    first = quarantine_one(duet, cable)
    opened = 0
    later = ""
    for _ in range(120):
        while duet.fences:
            duet.fence(fenced=False)
        if duet.dials:
            duet.connect()
            opened += 1
        for each in list(duet.cables.values()):
            duet.deliver_all(each)
        if not later and duet.consumer.ctx.links:
            later = duet.register("u", deadline_ms=LONG_MS)
            duet.offer("u")
        duet.advance(100)
        if duet.queued and later:
            for op in list(duet.queued):
                if duet.post(op):
                    duet.finish(op, done=True)
        for each in duet.cables.values():
            while each.notices:
                duet.notice(each)
    assert opened == 1
    assert told(duet, later) == ["Landed", "LetGo"]
    assert told(duet, first) == ["Lost"]
    duet.quiesce()


def test_a_quarantined_attempts_number_stays_taken() -> None:
    """Its tombstone may go, its memory of who may still write must not."""
    duet, cable = linked(limits=Limits(tombstones_max=1))
    quarantine_one(duet, cable)
    second = duet.register("t")
    duet.cancel("t", second)
    duet.register("x")
    duet.register("t")
    attempts = sorted(
        k.attempt for k in duet.consumer.consumer.registrations if k.transfer_id == "t"
    )
    assert attempts[0] == 1
    assert len(attempts) == 2
    duet.quiesce()


def test_a_tag_is_free_after_its_let_go_only() -> None:
    duet, cable = linked()
    tag = quarantine_one(duet, cable)
    duet.consumer.handle(
        ev.Register(
            transfer_id=TransferId("t"),
            producers=(),
            digest=b"",
            deadline_ms=LONG_MS,
            tag=tag,
        ),
        duet.now_ms,
    )
    lost = [e for e in duet.consumer.poll() if isinstance(e, fx.TellLost)]
    assert [(e.reason, e.attempt) for e in lost] == [(Reason.ALREADY_IN_USE, 0)]


def test_a_second_life_of_the_consumer_does_not_touch_the_first_ones_send() -> None:
    """[I1] Both lives begin at attempt 1; an operation of the old one has not ended yet."""
    duet, cable = linked()
    duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.offer("t")
    producer = duet.producer
    op = next(iter(duet.queued))
    assert producer.claim(op, 0)
    producer.close_link(cable.id, Reason.PEER_LOST, 0)
    (fence,) = [e for e in producer.poll() if isinstance(e, fx.Fence)]
    producer.handle(ev.FenceResult(peer=fence.peer, fenced=True), 0)
    link = LinkId(50)
    producer.open_link(link, None, 1)
    hello = Hello(
        version_min=1,
        version_max=1,
        engine_id="eng-D",
        rank=0,
        incarnation=Incarnation(1001),
        role=Role.CONSUMER,
        features=0,
        expected_engine_id="eng-P",
        expected_rank=0,
    )
    producer.receive(link, hello, 1)
    producer.receive(link, Describe(transport="duet", blob=b"", shard=b""), 1)
    header = Header(
        transfer_id=TransferId("u"),
        attempt=Attempt(1),
        sender=Incarnation(1001),
        receiver=producer.me.incarnation,
    )
    same = Header(
        transfer_id=TransferId("t"),
        attempt=Attempt(1),
        sender=Incarnation(1001),
        receiver=producer.me.incarnation,
    )
    for each in (header, same):
        grant = Grant(header=each, digest=b"", lease_ms=30_000, parts=duet.parts(), tables=())
        producer.receive(link, grant, 1)
    ended = ev.OpEnded(op=op, done=False, quiet=False, reason=Reason.TRANSPORT_FAILED)
    producer.handle(ended, 2)
    producer.close_link(link, Reason.PEER_LOST, 3)
    producer.advance(LONG_MS)
    producer.poll()
    assert producer.live() == 0


def test_a_source_whose_consumer_wants_something_else_ends() -> None:
    """[C2] Attempt 1 is in flight; D cancels it and comes again with another prompt."""
    duet, cable = linked()
    first = duet.register("t", digest=b"one", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    p = duet.offer("t", digest=b"one")
    duet.post(next(iter(duet.queued)))
    duet.cancel("t", first)
    duet.register("t", digest=b"two", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.quiesce()
    assert told(duet, p) == ["Unsent"]


def test_a_duplicates_abort_leaves_the_holder_alone() -> None:
    """[E-07] Two requests under one client-chosen name."""
    duet, _ = linked()
    producer = duet.producer
    producer.handle(ev.Expect(transfer_id=TransferId("t"), tag="holder"), 0)
    producer.handle(ev.Expect(transfer_id=TransferId("t"), tag="other"), 0)
    back = ev.Withdraw(transfer_id=TransferId("t"), reason=Reason.PRODUCER_ABORTED, tag="other")
    producer.handle(back, 0)
    assert producer.live() == 1
    producer.handle(
        ev.Withdraw(transfer_id=TransferId("t"), reason=Reason.PRODUCER_ABORTED, tag="holder"), 0
    )
    assert producer.live() == 0


def test_a_cancel_before_the_link_is_up_still_frees_the_producer() -> None:
    """[L-05] No grant has left, so no CANCEL does; P must not hold its offer for a lease."""
    duet = Duet()
    p = duet.offer("t")
    tag = duet.register("t")
    duet.cancel("t", tag)
    assert told(duet, tag) == ["Lost", "LetGo"]
    duet.connect()
    while duet.cables[LinkId(1)].to_producer or duet.cables[LinkId(1)].to_consumer:
        duet.deliver_all(duet.cables[LinkId(1)])
    assert told(duet, p) == ["Sent"]
    assert duet.now_ms == 0


def test_a_decline_is_kept_however_long_the_prefill_takes() -> None:
    duet, cable = linked()
    duet.expect("t")
    duet.decline("t")
    duet.deliver_all(cable)
    duet.advance(duet.timings.grant_lease_ms)
    duet.deliver_all(cable)
    p = duet.offer("t")
    assert told(duet, p) == ["Unsent"]


def test_an_answer_without_any_edge_is_never_landed() -> None:
    """[C3] Nothing to wait for is not the same as everything has come."""
    duet, _ = linked()
    consumer = duet.consumer
    register = ev.Register(
        transfer_id=TransferId("t"),
        producers=(cable_peer(duet),),
        digest=b"",
        deadline_ms=LONG_MS,
        tag="d",
    )
    consumer.handle(register, 0)
    consumer.poll()
    consumer.handle(ev.Resolved(transfer_id=TransferId("t"), attempt=Attempt(1), edges=()), 0)
    told_now = [
        type(e).__name__ for e in consumer.poll() if isinstance(e, fx.TellLost | fx.TellLanded)
    ]
    assert told_now == ["TellLost"]


def test_what_comes_while_shutting_down_is_refused() -> None:
    """[P1]"""
    duet, cable = linked()
    duet.producer.shut_down(0)
    duet.consumer.shut_down(0)
    p, d = duet.offer("t"), duet.register("t")
    assert told(duet, p) == ["Unsent"]
    assert told(duet, d) == ["Lost", "LetGo"]
    assert (duet.producer.live(), duet.consumer.live()) == (0, 0)
    assert not cable.to_producer


def test_a_link_that_keeps_breaking_is_dialled_with_a_pause() -> None:
    """[K1] Another producer of the same registration is slow; this one loses each link."""
    duet = Duet()
    other = attrs.evolve(P_KEY, rank=1)
    consumer = duet.consumer
    consumer.handle(
        ev.Register(
            transfer_id=TransferId("t"),
            producers=(P_KEY, other),
            digest=b"",
            deadline_ms=LONG_MS,
            tag="d",
        ),
        0,
    )
    assert [e.peer for e in consumer.poll() if isinstance(e, fx.Dial)] == [P_KEY, other]
    link = LinkId(7)
    consumer.open_link(link, P_KEY, 0)
    welcome = Welcome(
        version=1,
        engine_id="eng-P",
        rank=0,
        incarnation=Incarnation(5),
        role=Role.PRODUCER,
        features=0,
    )
    consumer.receive(link, welcome, 0)
    consumer.receive(link, Describe(transport="duet", blob=b"", shard=b""), 0)
    consumer.close_link(link, Reason.PEER_LOST, 0)
    assert not [e for e in consumer.poll() if isinstance(e, fx.Dial)]
    consumer.advance(duet.timings.fence_retry_ms)
    assert [e.peer for e in consumer.poll() if isinstance(e, fx.Dial)] == [P_KEY]


def test_bye_before_the_handshake_is_over_closes_the_connection() -> None:
    """[M2] Else a stranger keeps a place that no timer ends."""
    duet = Duet()
    producer = duet.producer
    producer.open_link(LinkId(9), None, 0)
    producer.receive(LinkId(9), Bye(reason=Reason.SHUTDOWN), 0)
    assert [type(e) for e in producer.poll()] == [fx.DropLink]


def test_a_number_is_never_given_twice_although_the_attempt_is_forgotten() -> None:
    """A DONE that is sent again after the memory of its attempt is gone names nothing."""
    duet, cable = linked(limits=Limits(tombstones_max=1))
    given: dict[str, list[int]] = {}
    for tid in "tutvutt":
        tag = duet.register(tid)
        duet.deliver_all(cable)
        (registration,) = duet.consumer.consumer.registrations.values()
        given.setdefault(tid, []).append(registration.key.attempt)
        duet.cancel(tid, tag)
        duet.deliver_all(cable)
    for attempts in given.values():
        assert attempts == sorted(set(attempts))
