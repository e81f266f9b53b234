"""How a `Duet` comes to rest: what is pending happens, fences succeed, time passes.

Owns the order in which that is done and the checks at the end (L1, C2). Knows
the duet's moves only. Invariant: a duet that has come to rest has empty tables
and an end for every registration and offer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvxfer.core.tables import SourceState
from kvxfer.testing.between import Violation

if TYPE_CHECKING:
    from kvxfer.testing.duet import Duet


def come_to_rest(duet: Duet, steps_max: int) -> None:
    """Let everything pending happen, fences succeed, time pass; then all must be over (L1)."""
    for _ in range(steps_max):
        if not _step(duet):
            _end_prefills(duet)
            deadline_ms = duet.next_deadline_ms()
            if deadline_ms is None:
                break
            duet.advance(max(1, deadline_ms - duet.now_ms))
    left = (duet.consumer.live(), duet.producer.live())
    if left != (0, 0):
        raise Violation(f"L1: tables not empty after quiescence: {left}")
    if duet.draining != duet.drained:
        raise Violation(f"P1: {duet.draining - duet.drained} never drained")
    for tag in duet.registered:
        if not (duet.outcomes[tag, "end"] and duet.outcomes[tag, "let go"]):
            raise Violation(f"C2: registration {tag} never ended")
    for tag in duet.offered:
        if not duet.outcomes[tag, "end"]:
            raise Violation(f"C2: offer {tag} never ended")


def _end_prefills(duet: Duet) -> None:
    """An engine that announced a prefill ends it: a duty of its adapter."""
    for source in list(duet.producer.producer.sources.values()):
        if source.state in (SourceState.EXPECTED, SourceState.UNWANTED):
            duet.withdraw(source.transfer_id)
        elif source.state is SourceState.STREAMING:
            duet.grow(source.transfer_id, source.tag, token_count=100, sealed=True)


def _step(duet: Duet) -> bool:
    if duet.dials:
        duet.connect()
    elif duet.fences:
        duet.fence(fenced=True)
    elif duet.queued:
        duet.post(next(iter(duet.queued)))
    elif duet.posted:
        posted = next(iter(duet.posted.values()))
        if posted.cable.shut_by_consumer:
            duet.finish(posted.op, done=False, quiet=False)
        else:
            duet.finish(posted.op, done=not posted.stopped)
    elif not _step_reads(duet):
        return _step_cables(duet)
    return True


def _step_reads(duet: Duet) -> bool:
    reading = duet.reading
    if reading.queued:
        reading.post(next(iter(reading.queued)))
    elif reading.posted:
        read = next(iter(reading.posted.values()))
        done = reading.may_end_well(read) and not read.stopped
        quiet = not read.aborted or read.cable.shut_by_consumer
        reading.finish(read.op, done=done, quiet=quiet)
    else:
        return False
    return True


def _step_cables(duet: Duet) -> bool:
    for cable in duet.cables.values():
        if not cable.open_at_producer and cable.open_at_consumer:
            duet.cut(cable, consumer=True, producer=False)
            return True
        if not cable.open_at_consumer and cable.open_at_producer:
            duet.cut(cable, consumer=False, producer=True)
            return True
        if cable.to_producer:
            duet.to_producer(cable)
            return True
        if cable.notices:
            duet.notice(cable)
            return True
        if cable.to_consumer:
            duet.to_consumer(cable)
            return True
    return False
