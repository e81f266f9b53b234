"""Transfers, one failure of the field after the other, on the real machines.

Names in brackets are the entries of failures collected from public systems that
each test answers. `Duet` checks the invariants at every step; the tests here
say what must come out besides.
"""

import attrs
import pytest
from core_rig import linked, told

from kvxfer.core import effects as fx
from kvxfer.core.ids import Attempt, Incarnation, LinkId, Part, PeerKey, Reason, TransferId
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Done,
    Gone,
    Grant,
    GrantAck,
    Header,
    NeverPosted,
    Renew,
)
from kvxfer.limits import Limits, Timings
from kvxfer.testing.between import Cable
from kvxfer.testing.duet import Duet


def post_all(duet: Duet) -> list[int]:
    ops = list(duet.queued)
    for op in ops:
        duet.post(op)
    return ops


@pytest.mark.parametrize("prefill_first", [True, False])
def test_either_order_lands(prefill_first: bool) -> None:
    duet = Duet()
    if prefill_first:
        p, d = duet.offer("t"), duet.register("t")
    else:
        d, p = duet.register("t"), duet.offer("t")
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_cancel_waits_for_the_operation_in_flight() -> None:
    """[A-02, A-06] D must not get its blocks back while P's write runs."""
    duet, cable = linked()
    d, p = duet.register("t"), duet.offer("t")
    duet.deliver_all(cable)
    first, second = post_all(duet)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:CANCELLED_BY_CONSUMER"]
    assert told(duet, p) == []
    duet.finish(first, done=True)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:CANCELLED_BY_CONSUMER"]
    duet.finish(second, done=True)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]


def test_cancel_before_posting_posts_nothing() -> None:
    """[B-01] What was queued under a live attempt is checked again when it is posted."""
    duet, cable = linked()
    d = duet.register("t")
    duet.offer("t")
    duet.deliver_all(cable)
    queued = list(duet.queued)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"
    assert not any(duet.post(op) for op in queued)


def test_a_success_after_the_cancel_changes_nothing() -> None:
    """[C-18, C3] Failure is sticky."""
    duet, cable = linked()
    d = duet.register("t")
    duet.offer("t")
    duet.deliver_all(cable)
    for op in post_all(duet):
        duet.finish(op, done=True)
    duet.cancel("t", d)
    while cable.notices:
        duet.notice(cable)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:CANCELLED_BY_CONSUMER", "LetGo"]


def test_producer_abort_before_the_offer_is_told_within_one_message() -> None:
    """[C-06, a3] D is not left waiting for its deadline."""
    duet, cable = linked()
    duet.expect("t")
    d = duet.register("t")
    duet.deliver_all(cable)
    duet.withdraw("t")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:PRODUCER_ABORTED", "LetGo"]
    assert duet.now_ms == 0


def test_registration_after_the_lease_is_told_at_once() -> None:
    """[C3 of the vLLM contract, probe c] The offer has expired; nobody waits for ever."""
    duet, cable = linked()
    p = duet.offer("t")
    duet.advance(duet.timings.offer_lease_ms)
    assert told(duet, p) == ["Unsent:OFFER_EXPIRED"]
    d = duet.register("t")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:OFFER_EXPIRED", "LetGo"]


def test_lease_over_while_posted_keeps_the_source() -> None:
    """[B-09, C1 of the vLLM contract] Expiry refuses new operations and does not unpin."""
    duet, cable = linked()
    duet.register("t", deadline_ms=10_000_000)
    p = duet.offer("t")
    duet.deliver_all(cable)
    first, second = post_all(duet)
    for _ in range(duet.timings.offer_lease_ms // duet.timings.renew_ms + 1):
        duet.advance(duet.timings.renew_ms)
        duet.deliver_all(cable)
    assert told(duet, p) == []
    duet.finish(first, done=True)
    duet.finish(second, done=True)
    assert told(duet, p) == ["Sent"]


def test_a_failed_part_fails_the_request_and_tells_it() -> None:
    """[C-05, C-16] One part of two fails: D is told, once, and lets go only after both ended."""
    duet, cable = linked()
    d, p = duet.register("t"), duet.offer("t")
    duet.deliver_all(cable)
    first, second = post_all(duet)
    duet.finish(first, done=False, quiet=True)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED"]
    duet.finish(second, done=True)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED", "LetGo"]
    assert told(duet, p)[-1] != "Sent"


def test_never_posted_is_told() -> None:
    """[vllm 50754] P could not post its write: D is told and gets its blocks back."""
    duet, cable = linked(parts_per_transfer=1)
    d = duet.register("t")
    duet.offer("t")
    duet.deliver_all(cable)
    duet.refuse_post(next(iter(duet.queued)))
    assert isinstance(cable.to_consumer[-1], NeverPosted)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:TRANSPORT_FAILED", "LetGo"]


def test_duplicates_and_reorder_complete_once() -> None:
    """[D-03, D1, D2] Parts are names: twice is once, any order is fine."""
    duet, cable = linked(parts_per_transfer=3)
    d = duet.register("t")
    duet.offer("t")
    duet.deliver_all(cable)
    for op in post_all(duet):
        duet.finish(op, done=True)
    duet.notice(cable, 2, keep=True)
    duet.notice(cable, 2, keep=True)
    duet.notice(cable, 2, keep=True)
    assert told(duet, d) == []
    duet.notice(cable, 1)
    duet.notice(cable, 0, keep=True)
    assert told(duet, d) == ["Landed", "LetGo"]
    duet.notice(cable, 0)
    assert told(duet, d) == ["Landed", "LetGo"]


def test_a_part_that_nobody_granted_is_a_fault() -> None:
    """[D2] It fails the request instead of counting."""
    duet, cable = linked()
    d = duet.register("t")
    duet.deliver_all(cable)
    header = Header(
        transfer_id=TransferId("t"),
        attempt=Attempt(1),
        sender=Incarnation(1),
        receiver=Incarnation(1000),
    )
    duet.consumer.receive(cable.id, Done(header=header, part=Part(0, 9, 0, 10)), 0)
    duet.advance(0)
    assert told(duet, d) == ["Lost:PARTS_MISMATCH"]
    duet.quiesce()


def test_zero_parts_complete_at_once_and_release_the_producer() -> None:
    """[C-11] Full prefix hit at D: nothing to move, P is not left with a lease."""
    duet, cable = linked(parts_per_transfer=0)
    d, p = duet.register("t"), duet.offer("t")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_decline_releases_the_producer_and_tells_nobody() -> None:
    duet, cable = linked()
    p = duet.offer("t")
    duet.decline("t")
    duet.deliver_all(cable)
    assert told(duet, p) == ["Sent"]
    assert len(duet.told) == 1
    counters = duet.consumer.ctx.counters
    # Nobody registered anything: outcomes add up to what was registered (R1).
    assert counters["declined"] == 2
    assert counters["registered"] == counters["landed"] == 0


def test_wrong_digest_is_refused_and_the_right_one_still_served() -> None:
    """[C9, E-09] Legs of two prompts crossed: refused, not served."""
    duet, cable = linked()
    p = duet.offer("t", digest=b"right")
    wrong = duet.register("t", digest=b"wrong")
    duet.deliver_all(cable)
    assert told(duet, wrong) == ["Lost:DIGEST_MISMATCH", "LetGo"]
    assert told(duet, p) == []
    right = duet.register("t", digest=b"right")
    duet.quiesce()
    assert told(duet, right) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_more_tokens_wanted_than_offered_is_refused() -> None:
    """[G2] A destination range without a source is refused before anything is posted."""
    duet, cable = linked(parts_per_transfer=3)
    d = duet.register("t")
    duet.offer("t", token_count=29)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:TOKENS_MISSING", "LetGo"]
    assert not duet.queued


def test_an_id_in_use_is_refused_on_both_sides() -> None:
    """[E-06, E-07] The second request fails, the first is unharmed."""
    duet, _ = linked()
    d, p = duet.register("t"), duet.offer("t")
    d2, p2 = duet.register("t"), duet.offer("t")
    assert told(duet, d2) == ["Lost:ALREADY_IN_USE", "LetGo"]
    assert told(duet, p2) == ["Unsent:ALREADY_IN_USE"]
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_a_reused_id_gets_its_own_attempt_and_its_own_bytes() -> None:
    """[d1] Both legs cut, then the same id with another prompt: no cross pairing."""
    duet, cable = linked()
    duet.expect("t")
    first = duet.register("t", digest=b"one")
    duet.deliver_all(cable)
    duet.withdraw("t")
    duet.cancel("t", first)
    duet.deliver_all(cable)
    second = duet.register("t", digest=b"two")
    duet.deliver_all(cable)
    p = duet.offer("t", digest=b"two")
    duet.quiesce()
    assert told(duet, first)[-1] == "LetGo"
    assert told(duet, second) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]
    landed = next(t for t in duet.told if isinstance(t, fx.TellLanded))
    assert landed.attempt == 2


def test_consumer_that_left_during_prefill_ends_the_offer_at_once() -> None:
    """[a1, L-05] P is told, and does not hold its blocks for a lease."""
    duet, cable = linked()
    duet.expect("t")
    d = duet.register("t")
    duet.deliver_all(cable)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"
    p = duet.offer("t")
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]


def test_consumer_that_left_before_the_prefill_began_ends_the_offer_at_once() -> None:
    """[a1] The cancel came before P's engine had said a word; the offer need not wait a lease."""
    for announce in (True, False):
        duet, cable = linked()
        d = duet.register("t")
        duet.deliver_all(cable)
        duet.cancel("t", d)
        duet.deliver_all(cable)
        if announce:
            duet.expect("t")
        p = duet.offer("t")
        assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]


@pytest.mark.parametrize("grant_first", [True, False])
def test_a_name_used_again_after_a_cancel_is_served(grant_first: bool) -> None:
    """[d2] Only D's leg was cut and P finished; then the same name, another prompt."""
    duet, cable = linked()
    first = duet.register("t", digest=b"one")
    duet.deliver_all(cable)
    duet.cancel("t", first)
    duet.deliver_all(cable)
    old = duet.offer("t", digest=b"one")
    assert told(duet, old) == ["Unsent:CANCELLED_BY_CONSUMER"]
    if grant_first:
        second, new = duet.register("t", digest=b"two"), duet.offer("t", digest=b"two")
    else:
        new, second = duet.offer("t", digest=b"two"), duet.register("t", digest=b"two")
    duet.quiesce()
    assert told(duet, second) == ["Landed", "LetGo"]
    assert told(duet, new) == ["Sent"]


def test_a_newer_grant_clears_the_mark_of_a_cancelled_one() -> None:
    """P's leg of the first dispatch never came; the second dispatch is whole."""
    duet, cable = linked()
    first = duet.register("t")
    duet.deliver_all(cable)
    duet.cancel("t", first)
    duet.deliver_all(cable)
    second = duet.register("t")
    duet.deliver_all(cable)
    p = duet.offer("t")
    duet.quiesce()
    assert told(duet, second) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_a_repeated_grant_of_an_unproven_attempt_is_not_answered_with_gone() -> None:
    """GONE would let the consumer take blocks back that a lost write may still reach."""
    duet, cable = linked(parts_per_transfer=1)
    duet.register("t")
    grant = grant_of(cable)
    duet.offer("t")
    duet.deliver_all(cable)
    (op,) = post_all(duet)
    duet.finish(op, done=False, quiet=False)
    duet.cut(cable, consumer=True, producer=True)
    duet.fence(fenced=False)
    duet.advance(duet.timings.fence_retry_ms)
    duet.connect()
    again = duet.cables[max(duet.cables)]
    while again.to_producer and not isinstance(again.to_producer[0], Cancel):
        duet.to_producer(again)
        while again.to_consumer:
            duet.to_consumer(again)
    duet.producer.receive(again.id, grant, duet.now_ms)
    duet.advance(0)
    assert not [m for m in again.to_consumer if isinstance(m, Gone | Cancelled)]
    duet.quiesce()


def test_a_renewal_crossing_done_is_not_answered_with_gone() -> None:
    """A served attempt is still known, else D would fail a transfer that has landed."""
    duet, cable = linked(parts_per_transfer=1)
    d = duet.register("t", deadline_ms=10_000_000)
    duet.offer("t")
    duet.deliver_all(cable)
    (op,) = post_all(duet)
    duet.finish(op, done=True)
    duet.advance(duet.timings.renew_ms)
    assert isinstance(cable.to_producer[0], Renew)
    duet.deliver_all(cable)
    assert told(duet, d) == []
    duet.notice(cable)
    assert told(duet, d) == ["Landed", "LetGo"]


def test_a_lost_notice_ends_at_the_deadline_never_as_success() -> None:
    """[C-08, C-09] The bytes are there, the notice is not: fail closed."""
    duet, cable = linked(parts_per_transfer=1)
    d, p = duet.register("t", deadline_ms=500), duet.offer("t")
    duet.deliver_all(cable)
    (op,) = post_all(duet)
    duet.finish(op, done=True)
    duet.lose_notice(cable)
    assert told(duet, p) == ["Sent"]
    duet.advance(500)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:DEADLINE", "LetGo"]


def test_dead_producer_is_fenced_before_the_blocks_return() -> None:
    """[b, C-02] The link breaks: the request fails at once, the blocks wait for the proof."""
    duet, cable = linked()
    d = duet.register("t")
    duet.offer("t")
    duet.deliver_all(cable)
    post_all(duet)
    duet.restart_producer()
    duet.cut(cable, consumer=True, producer=False)
    assert told(duet, d) == ["Lost:PEER_LOST"]
    duet.fence(fenced=False)
    assert told(duet, d) == ["Lost:PEER_LOST"]
    assert duet.consumer.consumer.quarantined() == 1
    duet.advance(duet.timings.fence_retry_ms)
    duet.fence(fenced=True)
    assert told(duet, d) == ["Lost:PEER_LOST", "LetGo"]
    assert duet.consumer.consumer.quarantined() == 0


def test_restarted_producer_serves_the_next_request() -> None:
    """[b2, I1] Same engine id, another incarnation, no step on D."""
    duet, cable = linked()
    first = duet.register("t")
    duet.deliver_all(cable)
    duet.restart_producer()
    duet.cut(cable, consumer=True, producer=False)
    duet.fence(fenced=True)
    second = duet.register("u")
    p = duet.offer("u")
    duet.quiesce()
    assert told(duet, first) == ["Lost:PEER_LOST", "LetGo"]
    assert told(duet, second) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def test_silent_producer_is_found_by_its_missing_answers() -> None:
    """[J3, C-03] Every message of P is dropped: D ends by itself."""
    duet, cable = linked()
    d = duet.register("t", deadline_ms=10_000_000)
    cable.to_producer.clear()
    for _ in range(duet.timings.renew_misses_max):
        duet.advance(duet.timings.renew_ms)
        cable.to_producer.clear()
    assert told(duet, d) == ["Lost:PEER_SILENT"]
    assert not cable.open_at_consumer
    duet.fence(fenced=True)
    assert told(duet, d)[-1] == "LetGo"


def test_an_answering_producer_is_never_found_silent() -> None:
    duet, cable = linked()
    d = duet.register("t", deadline_ms=10_000_000)
    duet.deliver_all(cable)
    for _ in range(50):
        duet.advance(duet.timings.renew_ms)
        duet.deliver_all(cable)
    assert told(duet, d) == []
    duet.cancel("t", d)
    duet.deliver_all(cable)
    assert told(duet, d)[-1] == "LetGo"


def test_a_consumer_s_own_absence_is_no_silence_of_its_producer() -> None:
    """[J3] D stood still for an hour, and P too: D asks again before it judges."""
    duet, cable = linked()
    d = duet.register("t", deadline_ms=10_000_000)
    duet.deliver_all(cable)
    now_ms = duet.now_ms = duet.now_ms + 3_600_000
    duet.consumer.resumed(now_ms)
    duet.advance(0)
    assert told(duet, d) == []
    for _ in range(duet.timings.renew_misses_max):
        cable.to_producer.clear()
        duet.advance(duet.timings.renew_ms)
    assert told(duet, d) == ["Lost:PEER_SILENT"]


def test_a_handshake_goes_on_where_this_side_stood_still() -> None:
    duet = Duet()
    key = PeerKey("eng-P", 0)
    duet.consumer.open_link(LinkId(1), key, 0)
    later_ms = duet.timings.handshake_ms * 3
    duet.consumer.resumed(later_ms)
    duet.consumer.advance(later_ms)
    assert not any(isinstance(effect, fx.DropLink) for effect in duet.consumer.poll())
    duet.consumer.advance(later_ms + duet.timings.handshake_ms)
    assert any(isinstance(effect, fx.DropLink) for effect in duet.consumer.poll())


def test_dead_consumer_frees_the_source_by_its_lease() -> None:
    """[J-04] D dies: P drops what is parked when the renewals stop."""
    duet, cable = linked()
    duet.register("t", deadline_ms=10_000_000)
    duet.deliver_all(cable)
    assert duet.producer.live() == 1
    cable.to_consumer.clear()
    for _ in range(2):
        duet.producer.advance(duet.timings.grant_lease_ms)
    assert duet.producer.live() == 0


def test_link_loss_at_the_producer_drains_before_the_source_is_free() -> None:
    duet, cable = linked()
    duet.register("t")
    p = duet.offer("t")
    duet.deliver_all(cable)
    post_all(duet)
    duet.cut(cable, consumer=False, producer=True)
    assert told(duet, p) == ["Unsent:PEER_LOST"]
    assert not duet.posted


def test_messages_for_another_life_are_dropped() -> None:
    """[I1, A3]"""
    duet, cable = linked()
    d = duet.register("t")
    duet.deliver_all(cable)
    stale = Header(
        transfer_id=TransferId("t"),
        attempt=Attempt(1),
        sender=Incarnation(99),
        receiver=Incarnation(1000),
    )
    for message in (Cancelled(header=stale), Gone(header=stale, reason=Reason.NONE)):
        duet.consumer.receive(cable.id, message, 0)
    duet.advance(0)
    assert told(duet, d) == []
    assert duet.consumer.ctx.counters["stale_messages"] == 2
    duet.quiesce()


def grant_of(cable: Cable) -> Grant:
    return next(m for m in cable.to_producer if isinstance(m, Grant))


def test_a_repeated_grant_is_acknowledged_once_more_and_parks_once() -> None:
    duet, cable = linked()
    duet.register("t")
    grant = grant_of(cable)
    duet.deliver_all(cable)
    duet.producer.receive(cable.id, grant, 0)
    duet.advance(0)
    assert isinstance(cable.to_consumer[-1], GrantAck)
    assert len(duet.producer.producer.sends) == 1
    duet.quiesce()


def test_an_old_attempt_cannot_come_back() -> None:
    """[A3, F2] A late grant of a cancelled attempt creates nothing."""
    duet, cable = linked()
    d = duet.register("t")
    grant = grant_of(cable)
    duet.deliver_all(cable)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    duet.producer.receive(cable.id, grant, 0)
    duet.advance(0)
    assert isinstance(cable.to_consumer[-1], Gone)
    assert duet.producer.live() == 0


def test_a_cancel_that_overtakes_its_grant_wins() -> None:
    """[F1] Either order reaches the same end."""
    duet, cable = linked()
    d = duet.register("t")
    grant = grant_of(cable)
    cable.to_producer.clear()
    duet.cancel("t", d)
    cancel = cable.to_producer.pop()
    assert isinstance(cancel, Cancel)
    for message in (cancel, grant):
        duet.producer.receive(cable.id, message, 0)
    duet.advance(0)
    duet.deliver_all(cable)
    assert duet.producer.live() == 0
    assert told(duet, d)[-1] == "LetGo"


def test_tables_are_bounded() -> None:
    """[L-03, M2] A flood of grants nobody prefills for is refused at the bound."""
    duet, cable = linked(limits=Limits(grants_parked_max=5))
    duet.register("t0")
    grant = grant_of(cable)
    duet.deliver_all(cable)
    for n in range(100):
        header = attrs.evolve(grant.header, transfer_id=TransferId(f"x{n}"))
        duet.producer.receive(cable.id, attrs.evolve(grant, header=header), 0)
    duet.advance(0)
    assert len(duet.producer.producer.sends) == 5
    full = [m for m in cable.to_consumer if isinstance(m, Gone)]
    assert {m.reason for m in full} == {Reason.TABLE_FULL}


def test_registrations_are_bounded() -> None:
    duet, _ = linked(limits=Limits(transfers_max=2))
    tags = [duet.register(f"t{n}") for n in range(4)]
    assert told(duet, tags[3]) == ["Lost:TABLE_FULL", "LetGo"]
    assert told(duet, tags[0]) == []


def test_stuck_operation_is_fenced_by_its_own_side() -> None:
    """[C2] A cancelled write that never ends must not hold the source for ever."""
    duet, cable = linked(timings=Timings(grant_lease_ms=1000))
    d = duet.register("t", deadline_ms=10_000_000)
    p = duet.offer("t")
    duet.deliver_all(cable)
    post_all(duet)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    duet.advance(1000)
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]
    assert told(duet, d) == ["Lost:CANCELLED_BY_CONSUMER"]
    duet.quiesce()
    assert told(duet, d)[-1] == "LetGo"


def test_shutdown_tells_everybody() -> None:
    """[P-01] Withdrawn on one side, lost with a reason on the other."""
    duet, cable = linked()
    d = duet.register("t")
    duet.deliver_all(cable)
    duet.producer.shut_down(0)
    duet.advance(0)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:SHUTDOWN", "LetGo"]


def test_consumer_message_to_a_consumer_ends_the_link() -> None:
    duet, cable = linked()
    duet.register("t")
    grant = grant_of(cable)
    duet.consumer.receive(cable.id, grant, 0)
    duet.advance(0)
    assert not cable.open_at_consumer
    assert duet.consumer.ctx.counters["protocol_faults"] == 1
    duet.quiesce()
