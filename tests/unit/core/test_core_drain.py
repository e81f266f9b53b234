"""Drain: nothing new is taken, what is there finishes, and whoever asks is told at once."""

from __future__ import annotations

import attrs
from core_rig import LONG_MS, linked, told

from kvxfer.core.ids import Feature
from kvxfer.core.messages import Drain
from kvxfer.testing.duet import Duet


def test_an_idle_agent_is_drained_at_once() -> None:
    duet, cable = linked()
    duet.drain("P")
    assert duet.drained == {"P"}
    assert isinstance(cable.to_consumer[-1], Drain)
    duet.drain("D")
    assert duet.drained == {"P", "D"}


def test_a_grant_that_is_held_is_finished() -> None:
    """[P-01] Drain waits for transfers, not for requests."""
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.drain("P")
    duet.deliver_all(cable)
    assert duet.drained == set()
    p = duet.offer("t")
    duet.quiesce()
    assert told(duet, d) == ["Landed", "LetGo"]
    assert told(duet, p) == ["Sent"]
    assert duet.drained == {"P"}


def test_a_registration_towards_a_draining_peer_is_refused_at_once() -> None:
    duet, cable = linked()
    duet.drain("P")
    duet.deliver_all(cable)
    d = duet.register("t")
    assert told(duet, d) == ["Lost:DRAINING", "LetGo"]
    assert duet.now_ms == 0


def test_a_grant_that_crosses_the_announcement_is_refused() -> None:
    duet, cable = linked()
    d = duet.register("t")
    duet.drain("P")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:DRAINING", "LetGo"]


def test_a_registration_that_waits_for_its_link_fails_when_that_comes_up() -> None:
    duet = Duet()
    duet.drain("P")
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.connect()
    for cable in duet.cables.values():
        duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:DRAINING", "LetGo"]
    assert duet.now_ms == 0


def test_an_offer_to_which_nobody_came_ends_at_once() -> None:
    duet, _ = linked()
    early = duet.offer("t")
    stream = duet.offer("u", token_count=0, sealed=False)
    duet.drain("P")
    late = duet.offer("v")
    for tag in (early, stream, late):
        assert told(duet, tag) == ["Unsent:DRAINING"]
    assert duet.drained == {"P"}


def test_a_decline_still_reaches_a_draining_producer() -> None:
    """It needs nothing, and lets the source go."""
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.expect("t")
    duet.deliver_all(cable)
    duet.drain("P")
    duet.deliver_all(cable)
    duet.cancel("t", d)
    duet.decline("t")
    duet.deliver_all(cable)
    p = duet.offer("t")
    assert told(duet, p)[0].startswith(("Sent", "Unsent:CANCELLED"))
    assert duet.drained == {"P"}


def test_a_draining_consumer_registers_nothing_and_finishes_what_it_has() -> None:
    duet, cable = linked()
    first = duet.register("t", pull=True)
    duet.deliver_all(cable)
    duet.drain("D")
    second = duet.register("u")
    assert told(duet, second) == ["Lost:DRAINING", "LetGo"]
    duet.offer("t")
    duet.quiesce()
    assert told(duet, first) == ["Landed", "LetGo"]
    assert duet.drained == {"D"}


def test_nothing_begins_once_an_agent_is_drained() -> None:
    """An engine that has not taken the news yet goes on saying things."""
    duet, _ = linked()
    for side in ("P", "D"):
        duet.drain(side)
    duet.expect("t")
    duet.register("u")
    assert (duet.producer.live(), duet.consumer.live()) == (0, 0)
    p = duet.offer("t")
    assert told(duet, p) == ["Unsent:DRAINING"]


def test_a_prefill_is_announced_while_draining_only_to_who_has_come() -> None:
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.drain("P")
    duet.expect("t")
    duet.expect("u")
    assert set(duet.producer.producer.sources) == {"t"}
    duet.cancel("t", d)
    duet.deliver_all(cable)
    duet.withdraw("t")
    assert duet.drained == {"P"}


def test_drain_twice_is_drain_once() -> None:
    duet, cable = linked()
    duet.drain("P")
    duet.drain("P")
    assert sum(isinstance(m, Drain) for m in cable.to_consumer) == 1
    assert duet.drained == {"P"}


def test_drain_is_announced_only_to_those_who_know_it() -> None:
    duet = Duet()
    duet.consumer.me = attrs.evolve(duet.consumer.me, features=Feature.PULL)
    cable = duet.link_up()
    duet.drain("P")
    assert not any(isinstance(m, Drain) for m in cable.to_consumer)
    d = duet.register("t")
    duet.deliver_all(cable)
    assert told(duet, d) == ["Lost:DRAINING", "LetGo"]


def test_drain_in_the_wrong_direction_ends_the_link() -> None:
    duet, cable = linked()
    duet.producer.receive(cable.id, Drain(reason=0), duet.now_ms)
    duet.settle()
    assert not cable.open_at_producer


def test_shutting_down_a_draining_agent_does_not_hang() -> None:
    duet, cable = linked()
    duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.drain("P")
    duet.producer.shut_down(duet.now_ms)
    duet.settle()
    assert duet.drained == {"P"}
    duet.quiesce()


def test_a_prefill_that_is_announced_while_draining_leaves_no_entry() -> None:
    """Found by the simulator (seed 160): an agent said that it was drained and then was not."""
    duet, _ = linked()
    duet.drain("P")
    duet.expect("t")
    assert duet.drained == {"P"}
    assert duet.producer.live() == 0
    p = duet.offer("t")
    assert told(duet, p) == ["Unsent:DRAINING"]
    assert duet.producer.live() == 0


def test_a_prefill_that_is_announced_while_draining_still_serves_who_was_there() -> None:
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    duet.drain("P")
    duet.expect("t")
    p = duet.offer("t")
    duet.quiesce()
    assert (told(duet, d), told(duet, p)) == (["Landed", "LetGo"], ["Sent"])
