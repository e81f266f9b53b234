"""A recording of one push, one pull and one failure, with round times."""

from __future__ import annotations

from kvxfer.core.ids import Part, PeerKey, Reason, Role, TransferId
from kvxfer.record import AgentTrack, Recording, Step
from kvxfer.record.lines import Header

P, D = PeerKey("P", 0), PeerKey("D", 0)
PART = Part(0, 0, 0, 64)


def header(engine_id: str, role: Role, incarnation: int, monotonic_ms: float) -> Header:
    return Header(
        engine_id=engine_id,
        rank=0,
        role=role,
        incarnation=incarnation,
        monotonic_ms=monotonic_ms,
        unix_ms=1_000_000.0,
    )


def step(t_ms: float, tid: str, name: str, attempt: int = 1, **more: object) -> Step:
    return Step(t_ms=t_ms, transfer_id=TransferId(tid), attempt=attempt, step=name, **more)


def recording() -> Recording:
    """P's clock began 500 ms before D's."""
    d = AgentTrack(header("D", Role.CONSUMER, 7, 100.0))
    p = AgentTrack(header("P", Role.PRODUCER, 8, 600.0))
    d.steps = [
        step(100, "push", "asked to receive", 0, tag="r1"),
        step(100, "push", "registered"),
        step(102, "push", "granted", peer=P),
        step(130, "push", "landed"),
        step(130, "push", "told landed", size_bytes=4096),
        step(130, "push", "let go"),
        step(140, "pull", "registered"),
        step(142, "pull", "granted", peer=P),
        step(144, "pull", "posted", peer=P, part=PART),
        step(150, "pull", "read", peer=P, part=PART),
        step(151, "pull", "landed"),
        step(160, "bad", "registered"),
        step(161, "bad", "granted", peer=P),
        step(170, "bad", "lost", reason=Reason.PEER_LOST),
        step(180, "bad", "let go"),
    ]
    p.steps = [
        step(603, "push", "grant parked", peer=D),
        step(620, "push", "offered", 0),
        step(620, "push", "matched", peer=D),
        step(621, "push", "posted", peer=D, part=PART),
        step(628, "push", "written", peer=D, part=PART),
        step(628, "push", "sent", 0),
        step(628, "push", "told sent", 0, size_bytes=4096, descriptors=8),
        step(635, "pull", "offered", 0),
        step(643, "pull", "matched", peer=D),
        step(643, "pull", "lent", peer=D),
        step(652, "pull", "sent", 0),
        step(662, "bad", "grant parked", peer=D),
        step(672, "bad", "offered", 0),
        step(672, "bad", "unsent", 0, reason=Reason.PEER_LOST),
    ]
    return Recording([d, p])
