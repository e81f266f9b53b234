"""Pull: the consumer reads, the producer lends. Names in brackets: failures of public systems."""

from __future__ import annotations

import attrs
import pytest
from core_rig import LONG_MS, linked, told

from kvxfer.core import events as ev
from kvxfer.core.ids import Feature, Part, Reason, TransferId
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Done,
    Gone,
    GrantAck,
    Offer,
    Release,
    Renew,
)
from kvxfer.core.tables import LoanState, ReaderState
from kvxfer.limits import Timings
from kvxfer.testing.between import Cable, Violation
from kvxfer.testing.duet import D_KEY, P_KEY, Duet


def lent(duet: Duet, cable: Cable) -> tuple[str, str, list[int]]:
    """A transfer whose READs are all posted."""
    d = duet.register("t", deadline_ms=LONG_MS, pull=True)
    p = duet.offer("t")
    duet.deliver_all(cable)
    ops = list(duet.reading.queued)
    for op in ops:
        assert duet.reading.post(op)
    return d, p, ops


def reader(duet: Duet):
    (reg,) = duet.consumer.consumer.registrations.values()
    return reg.edges[P_KEY]


@pytest.mark.parametrize("prefill_first", [True, False])
def test_either_order_lands(prefill_first: bool) -> None:
    duet = Duet()
    if prefill_first:
        p, d = duet.offer("t"), duet.register("t", pull=True)
    else:
        d, p = duet.register("t", pull=True), duet.offer("t")
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]
    assert not duet.queued
    assert not duet.posted


def test_a_grant_to_read_names_no_block_of_the_consumer() -> None:
    duet, cable = linked()
    duet.register("t", pull=True)
    (grant,) = cable.to_producer
    assert grant.tables == ()
    assert grant.parts == duet.parts()


def test_the_source_is_held_until_the_release() -> None:
    """[B-02] P must not free while D reads."""
    duet, cable = linked()
    _, p, (first, second) = lent(duet, cable)
    duet.reading.finish(first, done=True)
    duet.deliver_all(cable)
    assert told(duet, p) == []
    duet.reading.finish(second, done=True)
    assert told(duet, p) == []
    assert isinstance(cable.to_producer[-1], Release)
    duet.deliver_all(cable)
    assert told(duet, p) == ["Sent"]


def test_a_withdrawn_source_is_held_until_the_reader_has_stopped() -> None:
    """[B1] Taking the offer back does not take back what D has posted."""
    duet, cable = linked()
    d, p, (first, second) = lent(duet, cable)
    duet.withdraw("t")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:PRODUCER_ABORTED"]
    assert told(duet, p) == []
    assert duet.reading.posted[first].stopped
    duet.reading.finish(first, done=True)
    duet.reading.finish(second, done=False)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"
    assert told(duet, p) == ["Unsent:PRODUCER_ABORTED"]


def test_cancel_waits_for_the_own_reads() -> None:
    duet, cable = linked()
    d, p, (first, second) = lent(duet, cable)
    duet.cancel("t", d)
    assert told(duet, d) == ["Lost:CANCELLED_BY_CONSUMER"]
    assert not any(isinstance(m, Cancel | Release) for m in cable.to_producer)
    duet.reading.finish(first, done=True)
    duet.reading.finish(second, done=False)
    assert told(duet, d)[-1] == "LetGo"
    duet.deliver_all(cable)
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]


def test_cancel_before_the_offer_releases_at_once() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.cancel("t", d)
    assert told(duet, d) == ["Lost:CANCELLED_BY_CONSUMER", "LetGo"]
    duet.deliver_all(cable)
    p = duet.offer("t")
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]


def test_an_offer_that_comes_after_the_cancel_is_not_read() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.offer("t")
    while cable.to_producer:
        duet.to_producer(cable)
    duet.cancel("t", d)
    late = duet.consumer.ctx.counters["late_messages"]
    duet.deliver_all(cable)
    assert not duet.reading.queued
    # GRANT_ACK and OFFER
    assert duet.consumer.ctx.counters["late_messages"] == late + 2
    assert duet.producer.live() == 0


def test_a_read_that_fails_quietly_loses_the_request() -> None:
    duet, cable = linked()
    d, p, (first, second) = lent(duet, cable)
    duet.reading.finish(first, done=False)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED"]
    duet.reading.finish(second, done=True)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED", "LetGo"]
    assert told(duet, p)[0].startswith("Unsent")


def test_an_unproven_read_is_fenced_before_its_blocks_go() -> None:
    """[A-07] The own operation may still write: only a fence says that it does not."""
    duet, cable = linked()
    d, _, (first, second) = lent(duet, cable)
    duet.reading.finish(first, done=False, quiet=False)
    assert reader(duet).state is ReaderState.FENCING
    duet.reading.finish(second, done=True)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED"]
    duet.fence(fenced=False)
    assert duet.consumer.consumer.quarantined() == 1
    assert duet.consumer.needs_fence(next(iter(duet.consumer.consumer.fencing.by_peer)))
    duet.advance(duet.timings.fence_retry_ms)
    duet.fence(fenced=True)
    assert told(duet, d)[-1] == "LetGo"
    assert duet.consumer.consumer.quarantined() == 0
    duet.quiesce()


def test_a_quarantine_waits_for_its_own_fence_whatever_links_come_and_go() -> None:
    """Time passes before the fence is answered; another link comes, and goes again."""
    duet, cable = linked()
    d, _, (first, second) = lent(duet, cable)
    duet.reading.finish(first, done=False, quiet=False)
    duet.reading.finish(second, done=False)
    duet.advance(duet.timings.grant_lease_ms)
    assert reader(duet).state is ReaderState.FENCING
    duet.fence(fenced=False)
    other = duet.link_up()
    duet.cut(other, consumer=True, producer=True)
    assert reader(duet).state is ReaderState.QUARANTINED
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED"]
    duet.quiesce()
    assert told(duet, d)[-1] == "LetGo"


def test_a_proven_fence_still_waits_for_reads_that_have_not_ended() -> None:
    duet, cable = linked()
    d, _, (first, second) = lent(duet, cable)
    duet.reading.finish(first, done=False, quiet=False)
    duet.fence(fenced=True)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED"]
    duet.reading.finish(second, done=False)
    assert told(duet, d)[-1] == "LetGo"


def test_a_lost_link_stops_the_reads_and_ends_those_that_hang() -> None:
    duet, cable = linked()
    d, p, (first, second) = lent(duet, cable)
    duet.cut(cable, consumer=True, producer=True)
    assert told(duet, d) == ["Lost:PEER_LOST"]
    assert len(duet.fences) == 1
    assert told(duet, p) == []
    duet.fence(fenced=True)
    for op in (first, second):
        duet.reading.finish(op, done=False)
    assert told(duet, d)[-1] == "LetGo"
    duet.advance(duet.timings.grant_lease_ms)
    assert told(duet, p) == ["Unsent:PEER_LOST"]


def test_a_lost_link_with_nothing_posted_needs_no_fence() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True, deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.cut(cable, consumer=True, producer=True)
    assert told(duet, d) == ["Lost:PEER_LOST", "LetGo"]
    assert not duet.fences


def test_a_read_that_never_ends_is_fenced() -> None:
    """[C2] The peer answers, the operation does not end."""
    duet, cable = linked()
    d, _, (first, second) = lent(duet, cable)
    duet.reading.finish(second, done=True)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    duet.advance(duet.timings.grant_lease_ms)
    assert len(duet.fences) == 1
    assert not cable.open_at_consumer
    duet.fence(fenced=False)
    duet.advance(duet.timings.fence_retry_ms)
    duet.fence(fenced=True)
    duet.reading.finish(first, done=False)
    assert told(duet, d)[-1] == "LetGo"


def test_a_silent_producer_ends_the_reads() -> None:
    duet, cable = linked()
    d, _, ops = lent(duet, cable)
    cable.to_producer.clear()
    for _ in range(duet.timings.renew_misses_max):
        duet.consumer.advance(duet.now_ms + duet.timings.renew_ms)
        duet.now_ms += duet.timings.renew_ms
    duet.settle()
    assert told(duet, d) == ["Lost:PEER_SILENT"]
    duet.fence(fenced=True)
    for op in ops:
        duet.reading.finish(op, done=False)
    assert told(duet, d)[-1] == "LetGo"


# --- the lease ---


def quick() -> Timings:
    """The lease is over before silence is noticed."""
    return Timings(grant_lease_ms=4_000, renew_ms=3_000, renew_misses_max=9, lease_margin_ms=500)


def test_a_read_that_ends_within_the_lease_counts() -> None:
    duet, cable = linked(timings=quick())
    d, _, ops = lent(duet, cable)
    duet.advance(2_999)
    for op in ops:
        duet.reading.finish(op, done=True)
    assert told(duet, d)[0] == "Landed"


def test_a_read_that_ends_after_the_lease_never_counts() -> None:
    """[B-02, B-03, B-10] By then the blocks may hold somebody else's prompt."""
    duet, cable = linked(timings=quick())
    d, p, (first, second) = lent(duet, cable)
    for _ in range(2):
        duet.advance(2_000)
    assert told(duet, p) == ["Unsent:GRANT_EXPIRED"]
    assert duet.reading.posted[first].tainted
    duet.reading.finish(first, done=True)
    duet.reading.finish(second, done=True)
    assert told(duet, d) == ["Lost:GRANT_EXPIRED", "LetGo"]
    assert duet.consumer.ctx.counters["reads_after_lease"] == 2
    duet.quiesce()


def test_a_consumer_that_trusts_its_lease_too_long_is_caught() -> None:
    """The check itself can fail: with a lease that is not looked at, wrong bytes land."""
    duet, cable = linked(timings=quick())
    _, p, (first, second) = lent(duet, cable)
    for _ in range(2):
        duet.advance(2_000)
    assert told(duet, p) == ["Unsent:GRANT_EXPIRED"]
    reader(duet).lease_until_ms = LONG_MS
    duet.reading.finish(first, done=True)
    with pytest.raises(Violation, match="D1"):
        duet.reading.finish(second, done=True)


def test_the_margin_is_taken_from_the_lease() -> None:
    duet, cable = linked(timings=quick())
    lent(duet, cable)
    assert reader(duet).lease_until_ms == duet.now_ms + 4_000 - 500


def test_the_lease_runs_from_the_moment_at_which_it_was_asked_for() -> None:
    """An answer that was long on its way must not lengthen what the producer holds."""
    duet, cable = linked(timings=quick())
    duet.register("t", pull=True, deadline_ms=LONG_MS)
    duet.offer("t")
    duet.advance(1_500)
    duet.deliver_all(cable)
    assert reader(duet).lease_until_ms == 4_000 - 500


def test_an_answer_to_an_older_renewal_does_not_lengthen_the_lease() -> None:
    """Two RENEWs under way: the second repeats the first, and one answer counts from the first."""
    duet, cable = linked(timings=quick())
    duet.register("t", pull=True, deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    start_ms = duet.now_ms
    duet.consumer.advance(start_ms + 3_000)
    duet.consumer.advance(start_ms + 6_000)
    duet.settle()
    serials = [m.serial for m in cable.to_producer if isinstance(m, Renew)]
    assert serials == [1, 1]
    edge = reader(duet)
    header = duet.producer.ctx.header(
        edge.attempt, next(iter(duet.producer.ctx.links.values())).peer
    )
    answer = GrantAck(header=header, serial=1, lease_ms=4_000)
    duet.consumer.receive(cable.id, answer, start_ms + 6_001)
    assert edge.lease_until_ms == start_ms + 3_000 + 3_500
    duet.consumer.receive(cable.id, answer, start_ms + 6_002)
    assert edge.lease_until_ms == start_ms + 3_000 + 3_500


def test_nothing_is_posted_once_the_lease_is_over() -> None:
    duet, cable = linked(timings=quick())
    d = duet.register("t", pull=True, deadline_ms=LONG_MS)
    duet.offer("t")
    duet.deliver_all(cable)
    op = next(iter(duet.reading.queued))
    duet.advance(3_500)
    assert not duet.reading.post(op)
    assert told(duet, d) == ["Lost:GRANT_EXPIRED", "LetGo"]


def test_renewals_keep_a_long_read_alive() -> None:
    """[P-03] A READ longer than any lease, from a reader that renews."""
    duet, cable = linked(timings=Timings(grant_lease_ms=4_000, renew_ms=1_000))
    d, p, ops = lent(duet, cable)
    for _ in range(20):
        duet.advance(1_000)
        duet.deliver_all(cable)
    assert told(duet, p) == []
    for op in ops:
        duet.reading.finish(op, done=True)
    duet.deliver_all(cable)
    assert told(duet, d)[0] == "Landed"
    assert told(duet, p) == ["Sent"]


def test_a_recalled_lease_is_not_lengthened() -> None:
    duet, cable = linked()
    lent(duet, cable)
    duet.withdraw("t")
    (loan,) = duet.producer.producer.sends.values()
    assert loan.state is LoanState.RECALLED
    before_ms = loan.lease_until_ms
    duet.now_ms += 1_000
    renew = Renew(
        header=duet.consumer.ctx.header(
            loan.key, next(iter(duet.consumer.ctx.links.values())).peer
        ),
        lease_ms=30_000,
        serial=1,
    )
    duet.producer.receive(cable.id, renew, duet.now_ms)
    duet.settle()
    assert loan.lease_until_ms == before_ms
    assert isinstance(cable.to_consumer[-1], Gone)


# --- what does not belong there ---


def header_of(duet: Duet, *, to_consumer: bool):
    side = duet.producer if to_consumer else duet.consumer
    (link,) = side.ctx.links.values()
    return side.ctx.header(reader(duet).attempt, link.peer)


def test_done_from_the_producer_is_no_progress_in_pull() -> None:
    """[D2] Whoever reads knows himself what has landed."""
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.deliver_all(cable)
    done = Done(header=header_of(duet, to_consumer=True), part=duet.parts()[0])
    duet.consumer.receive(cable.id, done, duet.now_ms)
    duet.settle()
    assert told(duet, d)[0] == "Lost:PROTOCOL_ERROR"


def test_cancelled_is_no_proof_in_pull() -> None:
    duet, cable = linked()
    d, _, _ = lent(duet, cable)
    cancelled = Cancelled(header=header_of(duet, to_consumer=True))
    duet.consumer.receive(cable.id, cancelled, duet.now_ms)
    duet.settle()
    assert told(duet, d) == ["Lost:PROTOCOL_ERROR"]


def test_an_offer_where_the_producer_writes_is_a_fault() -> None:
    duet, cable = linked()
    d = duet.register("t")
    duet.deliver_all(cable)
    offer = Offer(header=header_of(duet, to_consumer=True), parts=duet.parts(), tables=())
    duet.consumer.receive(cable.id, offer, duet.now_ms)
    duet.settle()
    assert told(duet, d) == ["Lost:PROTOCOL_ERROR"]


@pytest.mark.parametrize("pull", [True, False])
def test_the_other_initiators_ending_costs_the_link(pull: bool) -> None:
    duet, cable = linked()
    duet.register("t", pull=pull)
    duet.deliver_all(cable)
    header = header_of(duet, to_consumer=False)
    wrong = (
        Cancel(header=header, reason=Reason.NONE)
        if pull
        else Release(header=header, landed=True, reason=Reason.NONE)
    )
    duet.producer.receive(cable.id, wrong, duet.now_ms)
    duet.settle()
    assert not cable.open_at_producer
    assert duet.producer.ctx.counters["protocol_faults"] == 1


def test_a_part_offered_twice_is_read_once() -> None:
    duet, cable = linked()
    duet.register("t", pull=True)
    duet.offer("t")
    while cable.to_producer:
        duet.to_producer(cable)
    offer = cable.to_consumer[-1]
    assert isinstance(offer, Offer)
    cable.to_consumer.append(offer)
    duet.deliver_all(cable)
    assert len(duet.reading.queued) == 2


def test_a_part_that_nobody_asked_for_is_a_fault() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.deliver_all(cable)
    strange = Offer(header=header_of(duet, to_consumer=True), parts=(Part(0, 7, 0, 10),), tables=())
    duet.consumer.receive(cable.id, strange, duet.now_ms)
    duet.settle()
    assert told(duet, d)[0] == "Lost:PARTS_MISMATCH"


def test_a_release_cannot_claim_what_was_never_offered() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.deliver_all(cable)
    p = duet.offer("t", token_count=10, sealed=False)
    release = Release(header=header_of(duet, to_consumer=False), landed=True, reason=Reason.NONE)
    duet.producer.receive(cable.id, release, duet.now_ms)
    duet.settle()
    assert told(duet, p)[0].startswith("Unsent")
    assert told(duet, d) == []


def test_a_newer_attempt_recalls_the_older() -> None:
    duet, cable = linked()
    d, p, ops = lent(duet, cable)
    duet.cancel("t", d)
    second = duet.register("t", pull=True, deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    states = sorted(s.state.value for s in duet.producer.producer.sends.values())
    assert states == ["lent", "recalled"]
    for op in ops:
        duet.reading.finish(op, done=False)
    duet.deliver_all(cable)
    for op in list(duet.reading.queued):
        duet.reading.post(op)
        duet.reading.finish(op, done=True)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"
    assert told(duet, second) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_a_part_that_cannot_be_posted_is_never_posted() -> None:
    duet, cable = linked(parts_per_transfer=1)
    d = duet.register("t", pull=True)
    duet.offer("t")
    duet.deliver_all(cable)
    duet.reading.refuse(next(iter(duet.reading.queued)))
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED", "LetGo"]


@pytest.mark.parametrize("side", [D_KEY, P_KEY])
def test_pull_needs_the_bit_of_both_sides(side) -> None:
    duet = Duet()
    session = duet.consumer if side == D_KEY else duet.producer
    session.me = attrs.evolve(session.me, features=Feature.STREAMING)
    cable = duet.link_up()
    d = duet.register("t", pull=True)
    assert told(duet, d) == ["Lost:UNSUPPORTED", "LetGo"]
    e = duet.register("t")
    duet.offer("t")
    duet.deliver_all(cable)
    duet.quiesce()
    assert told(duet, e) == ["Landed", "LetGo"]


def test_pull_messages_without_the_bit_cost_the_link() -> None:
    duet = Duet()
    duet.producer.me = attrs.evolve(duet.producer.me, features=Feature(0))
    cable = duet.link_up()
    duet.register("t")
    duet.deliver_all(cable)
    release = Release(header=header_of(duet, to_consumer=False), landed=True, reason=Reason.NONE)
    duet.producer.receive(cable.id, release, duet.now_ms)
    duet.settle()
    assert not cable.open_at_producer


def test_a_grant_to_read_without_the_bit_is_refused() -> None:
    duet = Duet()
    cable = duet.link_up()
    d = duet.register("t", pull=True)
    (link,) = duet.producer.ctx.links.values()
    link.features = Feature(0)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:UNSUPPORTED", "LetGo"]


def test_tokens_that_a_sealed_offer_lacks_are_told() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.offer("t", token_count=10)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:TOKENS_MISSING", "LetGo"]


def test_shutting_down_stops_reads_and_recalls_loans() -> None:
    duet, cable = linked()
    d, p, ops = lent(duet, cable)
    duet.consumer.shut_down(duet.now_ms)
    duet.producer.shut_down(duet.now_ms)
    duet.settle()
    assert told(duet, d) == ["Lost:SHUTDOWN"]
    for op in ops:
        duet.reading.finish(op, done=False)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"
    assert told(duet, p) == ["Unsent:SHUTDOWN"]
    assert (duet.consumer.live(), duet.producer.live()) == (0, 0)


def test_a_wish_for_nothing_is_served_without_a_read() -> None:
    duet, cable = linked(parts_per_transfer=0)
    d = duet.register("t", pull=True)
    p = duet.offer("t")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_withdraw_before_anybody_announced_it_is_told_to_the_reader() -> None:
    duet, cable = linked()
    d = duet.register("t", pull=True)
    duet.deliver_all(cable)
    duet.producer.handle(
        ev.Withdraw(transfer_id=TransferId("t"), reason=Reason.PRODUCER_ABORTED), 0
    )
    duet.settle()
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:PRODUCER_ABORTED", "LetGo"]
