"""Streamed offers: parts follow a prefill chunk by chunk, and the seal cannot be lost."""

from __future__ import annotations

import attrs
import pytest
from core_rig import LONG_MS, linked, told

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.ids import Part, Reason, TransferId
from kvxfer.core.messages import NeverPosted, Offer
from kvxfer.core.sends import Source
from kvxfer.testing.between import Cable
from kvxfer.testing.duet import Duet


def granted(*, pull: bool = False) -> tuple[Duet, Cable, str, str]:
    """Three parts of ten tokens each are granted; nothing is final yet."""
    duet, cable = linked(parts_per_transfer=3)
    d = duet.register("t", deadline_ms=LONG_MS, pull=pull)
    p = duet.offer("t", token_count=0, sealed=False)
    duet.deliver_all(cable)
    return duet, cable, d, p


def begun(duet: Duet) -> list[Part]:
    queued = duet.queued or duet.reading.queued
    return [post.part for post in queued.values()]


@pytest.mark.parametrize("pull", [False, True])
def test_a_part_is_queued_as_soon_as_its_tokens_are_final(pull: bool) -> None:
    duet, cable, d, p = granted(pull=pull)
    parts = duet.parts()
    assert begun(duet) == []
    duet.grow("t", p, token_count=9)
    duet.deliver_all(cable)
    assert begun(duet) == []
    duet.grow("t", p, token_count=20)
    duet.deliver_all(cable)
    assert begun(duet) == list(parts[:2])
    duet.grow("t", p, token_count=30, sealed=True)
    duet.deliver_all(cable)
    assert begun(duet) == list(parts)
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


@pytest.mark.parametrize("pull", [False, True])
def test_parts_move_while_the_prefill_runs(pull: bool) -> None:
    """At the seal, only the last part is left to move."""
    duet, cable, d, p = granted(pull=pull)
    for count in (10, 20):
        duet.grow("t", p, token_count=count)
        duet.deliver_all(cable)
        move_all(duet)
    assert told(duet, d) == []
    duet.grow("t", p, token_count=30, sealed=True)
    duet.deliver_all(cable)
    assert len(begun(duet)) == 1
    move_all(duet)
    while cable.notices:
        duet.notice(cable)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


def move_all(duet: Duet) -> None:
    for op in list(duet.queued):
        duet.post(op)
        duet.finish(op, done=True)
    for op in list(duet.reading.queued):
        duet.reading.post(op)
        duet.reading.finish(op, done=True)


def test_landed_needs_the_last_part_however_early_the_others_came() -> None:
    """[D3] The set is known from the grant; no message says how many there are."""
    duet, cable, d, p = granted()
    duet.grow("t", p, token_count=20)
    move_all(duet)
    while cable.notices:
        duet.notice(cable)
    assert told(duet, d) == []
    duet.grow("t", p, token_count=30)
    move_all(duet)
    while cable.notices:
        duet.notice(cable)
    # Not sealed yet, and nothing is missing: the seal is no matter of the wire.
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]


@pytest.mark.parametrize("pull", [False, True])
def test_a_seal_short_of_a_part_is_told(pull: bool) -> None:
    """[G2] Tokens without a source: never posted, at once."""
    duet, cable, d, p = granted(pull=pull)
    duet.grow("t", p, token_count=10)
    duet.deliver_all(cable)
    duet.grow("t", p, token_count=15, sealed=True)
    missing = [m.part for m in cable.to_consumer if isinstance(m, NeverPosted)]
    assert missing == list(duet.parts()[1:])
    duet.deliver_all(cable)
    assert told(duet, d)[0] == "Lost:TOKENS_MISSING"
    duet.quiesce()
    assert told(duet, p)[0].startswith("Unsent")


@pytest.mark.parametrize("pull", [False, True])
def test_withdraw_in_mid_stream_keeps_the_pin_until_all_ended(pull: bool) -> None:
    duet, cable, d, p = granted(pull=pull)
    duet.grow("t", p, token_count=20)
    duet.deliver_all(cable)
    side = duet.reading if pull else duet
    first, second = list(side.queued)
    side.post(first)
    duet.withdraw("t")
    duet.deliver_all(cable)
    assert told(duet, p) == []
    assert not side.post(second) if second in side.queued else True
    side.finish(first, done=True)
    duet.deliver_all(cable)
    assert told(duet, p) == ["Unsent:PRODUCER_ABORTED"]
    assert told(duet, d) == ["Lost:PRODUCER_ABORTED", "LetGo"]


def test_a_consumer_that_leaves_in_mid_stream_ends_the_offer_and_growth_revives_nothing() -> None:
    """[F2] The engine hears Unsent while its prefill goes on."""
    duet, cable, d, p = granted()
    duet.cancel("t", d)
    duet.deliver_all(cable)
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]
    late = ev.Grow(transfer_id=TransferId("t"), token_count=30, sealed=True, tag=p)
    duet.producer.handle(late, duet.now_ms)
    duet.settle()
    assert duet.producer.live() == 0
    assert duet.producer.ctx.counters["late_offers"] == 1


def test_growth_under_another_name_is_not_this_offers() -> None:
    duet, _, _, _ = granted()
    duet.producer.handle(
        ev.Grow(transfer_id=TransferId("t"), token_count=30, sealed=True, tag="other"), 0
    )
    duet.settle()
    assert begun(duet) == []


def test_the_lease_of_the_offer_runs_from_the_seal() -> None:
    duet, _ = linked()
    p = duet.offer("t", token_count=0, sealed=False)
    duet.advance(10 * duet.timings.offer_lease_ms)
    assert told(duet, p) == []
    duet.grow("t", p, token_count=20, sealed=True)
    duet.advance(duet.timings.offer_lease_ms - 1)
    assert told(duet, p) == []
    duet.advance(1)
    assert told(duet, p) == ["Unsent:OFFER_EXPIRED"]


def test_a_seal_after_everybody_came_starts_no_lease() -> None:
    duet, cable, d, p = granted()
    duet.grow("t", p, token_count=30, sealed=True)
    for _ in range(40):
        duet.advance(1_000)
        duet.deliver_all(cable)
    assert told(duet, p) == []
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]


def test_a_grant_that_comes_in_mid_stream_takes_what_is_final() -> None:
    duet, cable = linked(parts_per_transfer=3)
    p = duet.offer("t", token_count=0, sealed=False)
    duet.grow("t", p, token_count=20)
    duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    assert begun(duet) == list(duet.parts()[:2])
    duet.quiesce()


def test_a_digest_is_checked_at_the_first_piece() -> None:
    duet, cable = linked()
    d = duet.register("t", digest=b"one")
    duet.deliver_all(cable)
    duet.offer("t", digest=b"two", token_count=0, sealed=False)
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:DIGEST_MISMATCH", "LetGo"]
    duet.quiesce()


def test_an_unwanted_stream_ends_with_its_first_piece() -> None:
    duet, cable = linked()
    duet.expect("t")
    d = duet.register("t")
    duet.deliver_all(cable)
    duet.cancel("t", d)
    duet.deliver_all(cable)
    p = duet.offer("t", token_count=0, sealed=False)
    assert told(duet, p) == ["Unsent:CANCELLED_BY_CONSUMER"]


def test_an_offer_of_pull_names_the_parts_that_are_new() -> None:
    duet, cable, _, p = granted(pull=True)
    seen = []
    for count, sealed in ((10, False), (10, False), (20, False), (35, True)):
        duet.grow("t", p, token_count=count, sealed=sealed)
        offers = [m for m in cable.to_consumer if isinstance(m, Offer)]
        seen += [(m.parts, m.token_count) for m in offers]
        duet.deliver_all(cable)
    parts = duet.parts()
    # Of how many tokens the whole is, is known at the seal only.
    assert seen == [(parts[:1], 0), (parts[1:2], 0), (parts[2:], 35)]
    duet.quiesce()


def test_what_was_final_stays_final() -> None:
    duet, _, _, p = granted()
    duet.grow("t", p, token_count=30)
    duet.grow("t", p, token_count=10, sealed=True)
    assert len(begun(duet)) == 3
    assert not [e for e in duet.told if isinstance(e, fx.TellUnsent)]


# --- layer ranges of the last chunk ---


def source(**fields: int) -> Source:
    return Source(transfer_id=TransferId("t"), **fields)


def test_layers_of_the_tokens_ahead_may_be_final_before_the_tokens_are() -> None:
    low, high = Part(0, 0, 20, 30, 0, 4), Part(0, 0, 20, 30, 4, 8)
    whole = Part(0, 0, 20, 30)
    at_work = source(token_count=20, token_ahead=30, layers_final=4)
    assert [at_work.is_final(part) for part in (low, high, whole)] == [True, False, False]
    beyond = Part(0, 0, 30, 40, 0, 4)
    assert not at_work.is_final(beyond)
    done = source(token_count=30)
    assert all(done.is_final(part) for part in (low, high, whole))


class LayerCut(Duet):
    """One chunk of ten tokens, cut every four layers."""

    def parts(self) -> tuple[Part, ...]:
        return tuple(Part(0, 0, 0, 10, layer, layer + 4) for layer in (0, 4))


def test_growth_by_layers_queues_the_parts_that_are_cut_so() -> None:
    duet = LayerCut()
    cable, cells = duet.link_up(), duet.parts()
    d = duet.register("t", deadline_ms=LONG_MS)
    p = duet.offer("t", token_count=0, sealed=False)
    duet.deliver_all(cable)
    ahead = ev.Grow(
        transfer_id=TransferId("t"),
        token_count=0,
        sealed=False,
        tag=p,
        token_ahead=10,
        layers_final=4,
    )
    duet.producer.handle(ahead, duet.now_ms)
    duet.settle()
    assert begun(duet) == [cells[0]]
    # Layers without the tokens that they are of say nothing.
    vague = attrs.evolve(ahead, token_ahead=0, layers_final=8)
    duet.producer.handle(vague, duet.now_ms)
    duet.settle()
    assert begun(duet) == [cells[0]]
    duet.grow("t", p, token_count=10, sealed=True)
    assert begun(duet) == list(cells)
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]


def test_reason_of_a_short_seal_reaches_the_producers_engine() -> None:
    duet, _, _, p = granted()
    duet.grow("t", p, token_count=0, sealed=True)
    assert told(duet, p) == [f"Unsent:{Reason.TOKENS_MISSING.name}"]
