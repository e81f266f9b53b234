"""Every move that the world can make next in a `Duet`.

Owns the list of enabled moves, so that a random walk, a property test and an
explorer all draw from the same one. Knows no rule of the protocol. Invariant:
the list is a function of the duet's state alone, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from kvxfer.core.effects import TellLetGo, TellSent, TellUnsent
from kvxfer.testing.between import Cable
from kvxfer.testing.duet import Duet

Move = tuple[str, Callable[[], object]]


@attrs.frozen(kw_only=True)
class Script:
    """How often each engine may act, and which faults the world may use."""

    transfers: tuple[str, ...] = ("t",)
    registers_max: int = 2
    offers_max: int = 2
    restarts_max: int = 1
    consumer_restarts_max: int = 0
    cuts_max: int = 2
    faults: bool = True
    pulls: bool = False
    """Registrations may read, too."""
    streams: bool = False
    """Offers may grow, too."""
    drains_max: int = 0


def moves(duet: Duet, script: Script) -> list[Move]:
    """All enabled moves as (name, action)."""
    found = _consumer_engine(duet, script) + _producer_engine(duet, script)
    found += _network(duet, script) + _transport(duet, script)
    if duet.next_deadline_ms() is not None:
        found.append(("time", partial(_to_next_deadline, duet)))
    return found


def _to_next_deadline(duet: Duet) -> None:
    deadline_ms = duet.next_deadline_ms()
    assert deadline_ms is not None
    duet.advance(max(1, deadline_ms - duet.now_ms))


def _consumer_engine(duet: Duet, script: Script) -> list[Move]:
    found: list[Move] = []
    ended = {t.tag for t in duet.told if isinstance(t, TellLetGo)}
    for tid in script.transfers:
        tags = duet.tags_of("D", tid)
        if len(tags) < script.registers_max:
            found.append((f"register {tid}", partial(duet.register, tid)))
            if script.pulls:
                found.append((f"pull {tid}", partial(duet.register, tid, pull=True)))
            found.append((f"decline {tid}", partial(duet.decline, tid)))
        found += [
            (f"cancel {tag}", partial(duet.cancel, tid, tag)) for tag in tags if tag not in ended
        ]
    return found


def _producer_engine(duet: Duet, script: Script) -> list[Move]:
    found: list[Move] = []
    ended = {t.tag for t in duet.told if isinstance(t, TellSent | TellUnsent)}
    for tid in script.transfers:
        tags = duet.tags_of("P", tid)
        if len(tags) < script.offers_max:
            found.append((f"expect {tid}", partial(duet.expect, tid)))
            found.append((f"offer {tid}", partial(duet.offer, tid)))
            if script.streams:
                stream = partial(duet.offer, tid, token_count=0, sealed=False)
                found.append((f"stream {tid}", stream))
        found += [move for tag in tags for move in _stream(duet, tid, tag)]
        if any(tag not in ended for tag in tags) or not tags:
            found.append((f"withdraw {tid}", partial(duet.withdraw, tid)))
    return found


def _stream(duet: Duet, tid: str, tag: str) -> list[Move]:
    """What an engine in mid-prefill does: a part more, or the end, come too early or not."""
    count = duet.streams.get(tag)
    if count is None:
        return []
    found: list[Move] = []
    stops = [p.token_stop for p in duet.parts() if p.token_stop > count]
    if stops:
        found.append((f"grow {tag}", partial(duet.grow, tid, tag, token_count=stops[0])))
        short = partial(duet.grow, tid, tag, token_count=count, sealed=True)
        found.append((f"seal short {tag}", short))
    full = partial(duet.grow, tid, tag, token_count=max(count, *stops, 0), sealed=True)
    found.append((f"seal {tag}", full))
    return found


def _network(duet: Duet, script: Script) -> list[Move]:
    found: list[Move] = []
    if duet.dials:
        found.append(("connect", duet.connect))
        if script.faults:
            found.append(("refuse dial", duet.refuse_dial))
    for cable in duet.cables.values():
        found += _cable(duet, cable, script)
    if script.faults and duet.restarts < script.restarts_max:
        found.append(("restart P", duet.restart_producer))
    if script.faults and duet.consumer_restarts < script.consumer_restarts_max:
        found.append(("restart D", duet.restart_consumer))
    if len(duet.draining) < script.drains_max:
        found += [
            (f"drain {side}", partial(duet.drain, side))
            for side in ("P", "D")
            if side not in duet.draining
        ]
    return found


def _cable(duet: Duet, cable: Cable, script: Script) -> list[Move]:
    found: list[Move] = []
    name = f"link {cable.id}"
    if cable.to_producer:
        found.append((f"{name} to P", partial(duet.to_producer, cable)))
    if cable.to_consumer:
        found.append((f"{name} to D", partial(duet.to_consumer, cable)))
    if cable.notices:
        found.append((f"{name} notice", partial(duet.notice, cable)))
        if script.faults:
            found.append((f"{name} last notice", partial(duet.notice, cable, -1)))
            found.append((f"{name} notice again", partial(duet.notice, cable, keep=True)))
            found.append((f"{name} lose notice", partial(duet.lose_notice, cable)))
    may_cut = script.faults and duet.cuts < script.cuts_max
    half_open = cable.open_at_consumer != cable.open_at_producer
    if cable.open_at_consumer and (may_cut or half_open):
        found.append((f"{name} cut at D", partial(duet.cut, cable, consumer=True, producer=False)))
    if cable.open_at_producer and (may_cut or half_open):
        found.append((f"{name} cut at P", partial(duet.cut, cable, consumer=False, producer=True)))
    return found


def _transport(duet: Duet, script: Script) -> list[Move]:
    found: list[Move] = []
    for op in duet.queued:
        found.append((f"post {op}", partial(duet.post, op)))
        if script.faults:
            found.append((f"refuse post {op}", partial(duet.refuse_post, op)))
    for op, posted in duet.posted.items():
        if not posted.cable.shut_by_consumer:
            found.append((f"done {op}", partial(duet.finish, op, done=True)))
            if script.faults or posted.stopped:
                found.append((f"fail {op}", partial(duet.finish, op, done=False, quiet=True)))
        if script.faults or posted.cable.shut_by_consumer:
            found.append((f"unknown {op}", partial(duet.finish, op, done=False, quiet=False)))
    found += _reads(duet, script)
    if duet.fences:
        found.append(("fence", partial(duet.fence, fenced=True)))
        if script.faults:
            found.append(("no fence", partial(duet.fence, fenced=False)))
    return found


def _reads(duet: Duet, script: Script) -> list[Move]:
    found: list[Move] = []
    reading = duet.reading
    for op in reading.queued:
        found.append((f"post read {op}", partial(reading.post, op)))
        if script.faults:
            found.append((f"refuse read {op}", partial(reading.refuse, op)))
    for op, read in reading.posted.items():
        if reading.may_end_well(read):
            found.append((f"read done {op}", partial(reading.finish, op, done=True)))
        if script.faults or read.stopped or read.aborted:
            found.append((f"read fail {op}", partial(reading.finish, op, done=False)))
        unproven = read.aborted and not read.cable.shut_by_consumer
        if script.faults or unproven:
            unknown = partial(reading.finish, op, done=False, quiet=False)
            found.append((f"read unknown {op}", unknown))
    return found
