"""Pull, streaming and drain as an engine uses them: real threads, sockets, the loopback."""

from __future__ import annotations

import numpy as np
import pytest
from driver_rig import TOKENS, Side, Start, offer, register, table, until

from kvxfer.core.ids import Reason, Role
from kvxfer.driver import (
    Initiator,
    Landed,
    LetGo,
    Lost,
    Sent,
    Timings,
    TransferId,
    Unsent,
)
from kvxfer.errors import BadValue
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import without
from kvxfer.transport.registry import open_transport

Pair = tuple[Side, Side]
PULL = Initiator.CONSUMER


@pytest.mark.parametrize("prefill_first", [True, False])
def test_pull_brings_the_bytes_in_either_order(pair: Pair, prefill_first: bool) -> None:
    p, d = pair
    legs = [
        lambda: offer(p, "t", 3, 7, 5),
        lambda: register(d, p, "t", 9, 2, 4, initiator=PULL),
    ]
    for leg in legs if prefill_first else reversed(legs):
        leg()
    landed, let_go = d.collect(2)
    assert isinstance(landed, Landed)
    assert isinstance(let_go, LetGo)
    assert landed.bytes_received == 96
    (sent,) = p.collect(1)
    assert isinstance(sent, Sent)
    for source, target in zip((3, 7, 5), (9, 2, 4), strict=True):
        np.testing.assert_array_equal(d.block(target), p.block(source))
    assert not any(d.block(n).any() for n in range(16) if n not in (9, 2, 4))
    until(lambda: d.agent.counters()["bytes_read"] == 96)
    assert p.agent.counters()["bytes_written"] == 0


def test_push_and_pull_side_by_side(pair: Pair) -> None:
    p, d = pair
    for n in range(1, 15):
        register(d, p, f"t{n}", n, initiator=PULL if n % 2 else Initiator.PRODUCER)
        offer(p, f"t{n}", 15 - n)
    assert sum(isinstance(r, Landed) for r in d.collect(28)) == 14
    for n in range(1, 15):
        np.testing.assert_array_equal(d.block(n), p.block(15 - n))


def test_cancel_of_a_pull(pair: Pair) -> None:
    p, d = pair
    register(d, p, "t", 1, initiator=PULL)
    d.agent.cancel(TransferId("t"), "t")
    lost, let_go = d.collect(2)
    assert isinstance(lost, Lost)
    assert isinstance(let_go, LetGo)
    offer(p, "t", 1)
    (ended,) = p.collect(1)
    assert getattr(ended, "bytes_written", 0) == 0
    assert not d.block(1).any()


def test_offered_blocks_that_do_not_cover_the_tokens_fail_that_transfer_only(pair: Pair) -> None:
    """[M1] A producer states tokens that its blocks cannot hold."""
    p, d = pair
    register(d, p, "bad", 1, 2, initiator=PULL)
    offer(p, "bad", 3, token_count=2 * TOKENS)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.OUT_OF_BOUNDS
    register(d, p, "good", 4, initiator=PULL)
    offer(p, "good", 5)
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)


@pytest.mark.parametrize("initiator", [Initiator.PRODUCER, PULL])
def test_a_streamed_prefill_lands_chunk_by_chunk(start: Start, initiator: Initiator) -> None:
    p = start("P", Role.PRODUCER, 1, part_tokens=TOKENS)
    d = start("D", Role.CONSUMER)
    register(d, p, "t", 9, 2, 4, initiator=initiator)
    tid = TransferId("t")
    p.agent.offer(tid, table(3), 0, tag="t", sealed=False)
    for count, blocks in ((1, (3,)), (2, (3, 7))):
        p.agent.grow(tid, table(*blocks), count * TOKENS, tag="t")
        until(lambda n=count: (d.block((9, 2)[n - 1]) == p.block((3, 7)[n - 1])).all())
    assert d.agent.take() == []
    p.agent.grow(tid, table(3, 7, 5), 3 * TOKENS, tag="t", sealed=True)
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)
    np.testing.assert_array_equal(d.block(4), p.block(5))
    assert isinstance(p.collect(1)[0], Sent)


def test_growth_after_the_end_is_harmless(pair: Pair) -> None:
    p, _ = pair
    tid = TransferId("t")
    p.agent.offer(tid, table(3), 0, tag="t", sealed=False)
    p.agent.withdraw(tid, tag="t")
    assert isinstance(p.collect(1)[0], Unsent)
    p.agent.grow(tid, table(3), TOKENS, tag="t", sealed=True)
    offer(p, "u", 5)
    p.agent.withdraw(TransferId("u"), tag="u")
    (unsent,) = p.collect(1)
    assert unsent.tag == "u"
    until(lambda: p.agent.counters()["live"] == 0)
    assert p.agent.counters()["late_offers"] == 1


def test_drain_finishes_what_is_there_and_refuses_the_rest(pair: Pair) -> None:
    p, d = pair
    register(d, p, "held", 1)
    until(lambda: p.agent.counters()["live"] == 1)
    p.agent.drain()
    until(lambda: p.agent._pump.session.ctx.draining)
    register(d, p, "new", 2)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.DRAINING
    assert not p.agent.drained()
    offer(p, "held", 3)
    assert isinstance(d.collect(2)[0], Landed)
    assert p.agent.drained(timeout_s=5.0)


def test_a_transport_that_cannot_read_serves_push_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = without(open_transport("loopback"), Caps.READ)
    monkeypatch.setattr("kvxfer.driver.agent.open_transport", lambda _name: ops)
    p, d = start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)
    register(d, p, "pull", 1, initiator=PULL)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.UNSUPPORTED
    register(d, p, "push", 1)
    offer(p, "push", 3)
    assert isinstance(d.collect(2)[0], Landed)


@pytest.mark.parametrize("role", list(Role))
def test_an_agent_that_is_to_read_does_not_start_on_a_transport_that_cannot(
    start: Start, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    ops = without(open_transport("loopback"), Caps.READ)
    monkeypatch.setattr("kvxfer.driver.agent.open_transport", lambda _name: ops)
    if role is Role.PRODUCER:
        start("P", role, 1, initiator=PULL)
        return
    with pytest.raises(BadValue, match="READ"):
        start("D", role, initiator=PULL)


def test_close_does_not_hang_on_a_loan(start: Start) -> None:
    """[P1] D holds a lease and is gone without a word; P's close is bounded all the same."""
    quick = Timings(grant_lease_ms=60_000)
    p, d = start("P", Role.PRODUCER, 1, timings=quick), start("D", Role.CONSUMER, timings=quick)
    register(d, p, "t", 1, 2, initiator=PULL)
    p.agent.offer(TransferId("t"), table(3), 0, tag="t", sealed=False)
    until(lambda: p.agent.counters()["live"] == 2)
    d.agent.close(timeout_s=0.0)
    p.agent.close(timeout_s=0.5)


@pytest.mark.parametrize("field", ["part_tokens", "part_layers"])
def test_a_grid_out_of_bounds_is_named(start: Start, field: str) -> None:
    with pytest.raises(BadValue, match=field):
        start("P", Role.PRODUCER, 1, **{field: -1})
