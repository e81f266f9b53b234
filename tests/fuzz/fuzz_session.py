"""Frame reader, codec and session without a driver: fast enough for a coverage-guided fuzzer.

What the driver does with the bytes of a link, in ten lines. The slower `fuzz_rig`
has the driver itself and looks at memory.
"""

from __future__ import annotations

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import Incarnation, LinkId, Part, Peer, PeerKey, Reason, Role, TransferId
from kvxfer.core.messages import BlockRuns, Column, Describe, Done, Header, Hello, Message, Welcome
from kvxfer.core.session import Session
from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits, Timings
from kvxfer.wire.codec import UnknownMessage, decode, encode
from kvxfer.wire.framing import FrameReader

LIMITS = Limits(transfers_max=8, grants_parked_max=8, tombstones_max=16, message_bytes_max=1 << 16)
GOOD, UP, STRANGER = LinkId(1), LinkId(2), LinkId(3)
PART = Part(0, 0, 0, 8)
RUNS = BlockRuns(
    group=0, first_token=0, starts=Column(4, b"\1\0\0\0"), lengths=Column(4, b"\1\0\0\0")
)


def _identity(name: str, incarnation: int) -> Identity:
    return Identity(engine_id=name, rank=0, incarnation=Incarnation(incarnation), role=Role.BOTH)


def _describe(_link: LinkId, _peer: Peer) -> Describe:
    return Describe(transport="fuzz", blob=b"", shard=b"")


def make_session() -> Session:
    """Agent 1: a registration that the good peer serves, one that the hostile one could."""
    session = Session(
        me=_identity("A", 1),
        limits=LIMITS,
        timings=Timings(),
        describe=_describe,
        accept=lambda _link, _peer, _theirs: (0,),
    )
    for link, name, incarnation in ((GOOD, "good", 2), (UP, "M", 3)):
        session.open_link(link, PeerKey(name, 0), 0)
        session.receive(link, _welcome(name, incarnation), 0)
        session.receive(link, _describe(link, Peer(PeerKey(name, 0), Incarnation(3))), 0)
        register = ev.Register(
            transfer_id=TransferId(f"from {name}"),
            producers=(PeerKey(name, 0),),
            digest=b"",
            deadline_ms=1000,
            tag=name,
        )
        session.handle(register, 0)
        _answer(session, 0)
    return session


def _welcome(name: str, incarnation: int) -> Welcome:
    return Welcome(
        version=1,
        engine_id=name,
        rank=0,
        incarnation=Incarnation(incarnation),
        role=Role.BOTH,
        features=15,
    )


def _answer(session: Session, now_ms: int) -> list[fx.Effect]:
    """Carry out what needs an answer; gives everything that came out."""
    seen: list[fx.Effect] = []
    while batch := session.poll():
        seen += batch
        for effect in batch:
            match effect:
                case fx.Resolve():
                    name = effect.tag or "M"
                    plan = ev.EdgePlan(peer=PeerKey(name, 0), parts=(PART,), tables=(RUNS,))
                    session.handle(
                        ev.Resolved(
                            transfer_id=effect.transfer_id, attempt=effect.attempt, edges=(plan,)
                        ),
                        now_ms,
                    )
                case fx.Fence():
                    session.handle(ev.FenceResult(peer=effect.peer, fenced=True), now_ms)
                case fx.Post() if session.claim(effect.op, now_ms):
                    ended = ev.OpEnded(op=effect.op, done=True, quiet=True, reason=Reason.NONE)
                    session.handle(ended, now_ms)
                case fx.Dial():
                    lost = ev.Unreachable(peer=effect.peer, reason=Reason.UNREACHABLE)
                    session.handle(lost, now_ms)
                case fx.Send():
                    encode(effect.message)
    return seen


def feed(session: Session, link: LinkId, reader: FrameReader, data: bytes) -> None:
    """As the pump does: whatever the bytes are, only this link can suffer."""
    try:
        for payload in reader.feed(data):
            try:
                message: Message = decode(payload, LIMITS)
            except UnknownMessage:
                continue
            session.receive(link, message, 1)
        reader.feed(b"")
    except RemoteFault as fault:
        if not (fault.field and fault.bound):
            raise AssertionError("a fault without a reason") from fault
        session.fault(link, str(fault), 1)


def run(whole: bytes) -> None:
    """Raises where an input does more than end its own link."""
    head = whole[:2].ljust(2, b"\0")
    link = (UP, STRANGER)[head[0] % 2]
    session = make_session()
    if link == STRANGER:
        session.open_link(STRANGER, None, 0)
    size = head[1] % 64 or max(1, len(whole))
    reader = FrameReader(LIMITS)
    for at in range(2, len(whole), size):
        feed(session, link, reader, whole[at : at + size])
        _answer(session, 1)
    assert len(session.consumer.registrations) <= LIMITS.transfers_max
    assert len(session.producer.sends) <= LIMITS.grants_parked_max
    (key,) = (k for k in session.consumer.registrations if k.transfer_id == "from good")
    header = Header(
        transfer_id=key.transfer_id,
        attempt=key.attempt,
        sender=Incarnation(2),
        receiver=Incarnation(1),
    )
    session.receive(GOOD, Done(header=header, part=PART), 2)
    told = [e.tag for e in _answer(session, 2) if isinstance(e, fx.TellLanded)]
    assert told == ["good"]


def hello(name: str, incarnation: int) -> Hello:
    return Hello(
        version_min=1,
        version_max=1,
        engine_id=name,
        rank=0,
        incarnation=Incarnation(incarnation),
        role=Role.BOTH,
        features=15,
        expected_engine_id="",
        expected_rank=0,
    )
