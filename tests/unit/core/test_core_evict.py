"""Eviction: a peer ends as if it had gone, and is served when it comes again."""

from __future__ import annotations

import pytest
from core_rig import LONG_MS, linked, told

from kvxfer.core import events as ev
from kvxfer.testing.duet import Duet


def evict(duet: Duet, side: str, engine_id: str, rank: int | None = None) -> None:
    session = duet.consumer if side == "D" else duet.producer
    session.handle(ev.Evict(engine_id=engine_id, rank=rank), duet.now_ms)
    duet.settle()


def at_rest(duet: Duet) -> bool:
    duet.quiesce()
    return not (duet.consumer.live() or duet.producer.live())


def test_another_peer_is_none_of_its_business() -> None:
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    evict(duet, "D", "eng-X")
    evict(duet, "D", "eng-P", rank=7)
    assert duet.consumer.ctx.links
    assert told(duet, d) == []
    duet.offer("t")
    assert at_rest(duet)
    assert told(duet, d) == ["Landed", "LetGo"]


@pytest.mark.parametrize("rank", [None, 0])
def test_what_was_granted_is_lost_and_fenced(rank: int | None) -> None:
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    p = duet.offer("t")
    evict(duet, "D", "eng-P", rank)
    assert told(duet, d)[0] == "Lost:PEER_LOST"
    assert not duet.consumer.ctx.links
    assert at_rest(duet)
    assert told(duet, d)[-1] == "LetGo"
    assert told(duet, p)


def test_who_still_dials_is_told_at_once() -> None:
    duet = Duet()
    d = duet.register("t", deadline_ms=LONG_MS)
    evict(duet, "D", "eng-P")
    assert told(duet, d) == ["Lost:PEER_LOST", "LetGo"]
    assert duet.now_ms == 0
    assert not duet.consumer.live()


def test_a_producer_that_evicts_stops_serving_and_may_be_dialled_again() -> None:
    duet, cable = linked()
    d = duet.register("t", deadline_ms=LONG_MS)
    duet.deliver_all(cable)
    evict(duet, "P", "eng-D")
    assert not duet.producer.ctx.links
    assert at_rest(duet)
    assert told(duet, d)[0] == "Lost:PEER_LOST"
    duet.link_up()
    again = duet.register("u", deadline_ms=LONG_MS)
    duet.offer("u")
    assert at_rest(duet)
    assert told(duet, again) == ["Landed", "LetGo"]
