"""A link that is up: messages sent again, changed, left out, reflected, and notices of others.

The link under attack ends at worst; no byte is ever wrong, and the next transfer is whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs
import pytest
from attacker import QUICK, RING, SECRET, Attacker, Relay, Side, fetch, fetch_through, through
from driver_rig import Start, offer, register, until

from kvxfer.core.ids import Attempt, Incarnation, Part, Reason, Role, TransferId
from kvxfer.core.messages import (
    BlockRuns,
    Cancel,
    Column,
    Describe,
    Done,
    Gone,
    Grant,
    GrantAck,
    Header,
    Release,
    Renew,
)
from kvxfer.driver import Key, KeyRing, Landed, LetGo, Lost
from kvxfer.layout.plain import shard_to_plain
from kvxfer.transport.loopback import OPS
from kvxfer.wire.cbor import encode_plain
from kvxfer.wire.codec import encode
from kvxfer.wire.seal import Notices

Pair = tuple[Side, Side]
MakeRelay = Callable[..., Relay]
GRANT_FRAME = 3
"""Behind HELLO, PROOF and DESCRIBE."""


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


CHANGES: dict[str, Callable[[bytes], list[bytes]]] = {
    "sent-twice": lambda payload: [payload, payload],
    "one-bit-of-the-message": lambda payload: [flipped(payload, 20)],
    "one-bit-of-the-seal": lambda payload: [flipped(payload, -1)],
    "without-its-seal": lambda payload: [payload[:-16]],
    "cut": lambda payload: [payload[:-1]],
    "left-out": lambda _payload: [],
    "something-in-front": lambda payload: [encode(NOBODY), payload],
}
NOBODY = Cancel(
    header=Header(
        transfer_id=TransferId("x"),
        attempt=Attempt(1),
        sender=Incarnation(1),
        receiver=Incarnation(1),
    ),
    reason=Reason.NONE,
)


@pytest.mark.parametrize("name", CHANGES)
def test_a_grant_that_is_meddled_with_ends_its_link_and_nothing_else(
    start: Start, relay: MakeRelay, name: str
) -> None:
    quick = attrs.evolve(QUICK, renew_ms=50)
    p, d = start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER, timings=quick)
    beside = start("E", Role.CONSUMER)
    fetch(p, beside, "beside", 1)

    def meddle(way: str, number: int, payload: bytes) -> list[bytes]:
        if (way, number) == ("out", GRANT_FRAME):
            return CHANGES[name](payload)
        return [payload]

    middle = relay(p, meddle)
    register(d, p, "t", 2, producers=through(p, middle))
    lost, let_go = d.collect(2)
    assert isinstance(lost, Lost)
    assert isinstance(let_go, LetGo)
    assert not d.memory.any()
    assert p.agent.counters()["protocol_faults"] == 1
    fetch(p, beside, "beside again", 3)
    fetch(p, d, "direct", 4)


def test_messages_of_the_producer_are_sealed_too(pair: Pair, relay: MakeRelay) -> None:
    """A GRANT_ACK that comes twice: D ends the link; it cannot know what else was changed."""
    p, d = pair
    middle = relay(p, lambda way, number, payload: [payload] * (1 + ((way, number) == ("back", 3))))
    register(d, p, "t", 1, producers=through(p, middle))
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    fetch(p, d, "direct", 2)


def test_a_frame_that_comes_back_to_its_sender_is_none_of_the_other_sides(
    pair: Pair, relay: MakeRelay
) -> None:
    p, d = pair
    sent: list[bytes] = []

    def mirror(way: str, number: int, payload: bytes) -> list[bytes]:
        if way == "out" and number >= GRANT_FRAME:
            sent.append(payload)
        return [sent[0]] if (way, number) == ("back", 3) and sent else [payload]

    middle = relay(p, mirror)
    register(d, p, "t", 1, producers=through(p, middle))
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    assert d.agent.counters()["protocol_faults"] == 1
    fetch(p, d, "direct", 2)


def test_frames_of_another_link_are_good_on_that_one_only(pair: Pair, relay: MakeRelay) -> None:
    """A GRANT recorded on a link of the same two peers, put into their next one."""
    p, d = pair
    recorder = relay(p, lambda _way, _number, payload: [payload])
    fetch_through(p, d, recorder, "recorded", 1)
    old = recorder.seen["out"][GRANT_FRAME]
    recorder.close()
    until(lambda: p.agent.counters()["links"] == 0)

    def replay(way: str, number: int, payload: bytes) -> list[bytes]:
        return [old, payload] if (way, number) == ("out", GRANT_FRAME) else [payload]

    register(d, p, "t", 2, producers=through(p, relay(p, replay)))
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    fetch(p, d, "direct", 3)


# --- notices ---


@attrs.define
class Forger:
    """Puts notifications into an agent's transport, in the name of the peer at a link."""

    side: Side
    waiting: deque[bytes] = attrs.field(factory=deque)

    def __attrs_post_init__(self) -> None:
        pump = self.side.agent._pump
        inner = pump.ops.poll_notifications

        def poll(session: int, count_max: int) -> tuple[int, list[tuple[int, bytes]]]:
            status, found = inner(session, count_max)
            while self.waiting and pump.peers.by_link:
                handle = next(iter(pump.peers.by_link.values())).handle
                found = [(handle, self.waiting.popleft()), *found]
            return status, found

        pump.ops = attrs.evolve(pump.ops, poll_notifications=poll)

    def done(self, p: Side, tid: str, attempt: int = 1) -> bytes:
        header = Header(
            transfer_id=TransferId(tid),
            attempt=Attempt(attempt),
            sender=p.agent.incarnation,
            receiver=self.side.agent.incarnation,
        )
        return encode(Done(header=header, part=Part(0, 0, 0, 4)))


@pytest.fixture
def forged(pair: Pair) -> Iterator[tuple[Side, Side, Forger]]:
    """A registration of block 1 that P has taken and has nothing to write for yet."""
    p, d = pair
    forger = Forger(d)
    register(d, p, "t", 1)
    until(lambda: p.agent._pump.session.producer.sends)
    yield p, d, forger
    offer(p, "t", 1)
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)
    assert (d.block(1) == p.block(1)).all()
    fetch(p, d, "after", 2)


@pytest.mark.parametrize("kind", ["plain", "zeros", "random-key", "own-key", "longer", "short"])
def test_a_forged_completion_never_counts_and_ends_nothing(
    forged: tuple[Side, Side, Forger], kind: str
) -> None:
    """Whoever forges it knows the transfer, the attempt, both lives and the part."""
    p, d, forger = forged
    plain = forger.done(p, "t")
    forger.waiting.append(
        {
            "plain": plain,
            "zeros": plain + bytes(16),
            "random-key": Notices(b"r" * 32).seal(plain),
            "own-key": Notices(SECRET).seal(plain),
            "longer": plain + bytes(1000),
            "short": b"\x00",
        }[kind]
    )
    until(lambda: d.agent._pump.session.ctx.counters["forged_notices"] == 1)
    assert d.agent.take() == []
    assert d.agent.counters()["links"] == 1


def test_without_keys_such_a_completion_counts(start: Start) -> None:
    """What the tags are for: the same attack on a pair without keys."""
    p = start("P", Role.PRODUCER, 1, keys=None)
    d = start("D", Role.CONSUMER, keys=None)
    forger = Forger(d)
    register(d, p, "t", 1)
    until(lambda: p.agent._pump.session.producer.sends)
    forger.waiting.append(forger.done(p, "t"))
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)
    assert not d.block(1).any()


def test_a_completion_sent_again_is_that_of_its_own_attempt_and_no_other(pair: Pair) -> None:
    """The tag of a DONE stays good on its link; what it names never comes again."""
    p, d = pair
    taken: list[bytes] = []
    pump = d.agent._pump
    inner = pump.ops.poll_notifications

    def poll(session: int, count_max: int) -> tuple[int, list[tuple[int, bytes]]]:
        status, found = inner(session, count_max)
        taken.extend(payload for _, payload in found)
        return status, found

    pump.ops = attrs.evolve(pump.ops, poll_notifications=poll)
    fetch(p, d, "t", 1)
    forger = Forger(d)
    register(d, p, "t", 1)
    until(lambda: p.agent._pump.session.producer.sends)
    late = pump.session.ctx.counters["late_messages"]
    # What is forged is counted behind it, so that it has been looked at by then.
    forger.waiting += [b"a forged one", taken[0]]
    until(lambda: pump.session.ctx.counters["forged_notices"] == 1)
    until(lambda: pump.session.ctx.counters["late_messages"] > late)
    assert d.agent.take() == []
    d.agent.cancel(TransferId("t"), tag="t")
    d.collect(2)


# --- a peer that has a key, and is up to no good ---


@attrs.define
class Insider:
    """A peer with the right key: it can do what a peer can, to its own transfers."""

    attacker: Attacker
    p: Side

    @classmethod
    def enter(cls, attacker: Attacker, p: Side, d: Side) -> Insider:
        """Through the whole handshake, with D's descriptor as its own."""
        attacker.prove()
        _, session = OPS.open({})
        _, _, blob = OPS.peer_create(session)
        shard = encode_plain(shard_to_plain(d.agent.config.shard))
        attacker.send(Describe(transport="loopback", blob=blob, shard=shard))
        assert isinstance(attacker.receive(), Describe)
        return cls(attacker, p)

    def header(self, tid: str, attempt: int = 1) -> Header:
        return Header(
            transfer_id=TransferId(tid),
            attempt=Attempt(attempt),
            sender=self.attacker.hello.incarnation,
            receiver=self.p.agent.incarnation,
        )


def test_a_peer_cannot_touch_the_transfers_of_another(
    pair: Pair, attack: Callable[..., Attacker]
) -> None:
    """Foreign names: CANCEL, RENEW and GRANT of a transfer that another engine holds."""
    p, d = pair
    register(d, p, "theirs", 1)
    until(lambda: p.agent._pump.session.producer.sends)
    insider = Insider.enter(attack(p), p, d)
    header = insider.header("theirs")
    insider.attacker.send(Renew(header=header, lease_ms=0xFFFFFFFF, serial=1))
    gone = insider.attacker.receive()
    assert isinstance(gone, Gone)
    assert gone.reason is Reason.UNKNOWN_TRANSFER
    insider.attacker.send(Cancel(header=header, reason=Reason.NONE))
    insider.attacker.send(Cancel(header=insider.header("theirs", 2), reason=Reason.NONE))
    insider.attacker.receive()
    insider.attacker.receive()
    offer(p, "theirs", 1)
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)
    assert (d.block(1) == p.block(1)).all()
    p.collect(1)
    fetch(p, d, "after", 2)


def test_a_peer_cannot_speak_for_another_life(pair: Pair, attack: Callable[..., Attacker]) -> None:
    """D's incarnation in the header, the insider's link: dropped and counted."""
    p, d = pair
    register(d, p, "theirs", 1)
    until(lambda: p.agent._pump.session.producer.sends)
    insider = Insider.enter(attack(p), p, d)
    stolen = attrs.evolve(insider.header("theirs"), sender=d.agent.incarnation)
    insider.attacker.send(Cancel(header=stolen, reason=Reason.NONE))
    until(lambda: p.agent.counters().get("stale_messages", 0) == 1)
    offer(p, "theirs", 1)
    assert isinstance(d.collect(2)[0], Landed)
    assert (d.block(1) == p.block(1)).all()


def test_blocks_outside_the_pool_are_never_written(
    pair: Pair, attack: Callable[..., Attacker]
) -> None:
    p, d = pair
    insider = Insider.enter(attack(p), p, d)
    one = Column(4, (1 << 31).to_bytes(4, "little"))
    runs = BlockRuns(group=0, first_token=0, starts=one, lengths=Column(4, b"\x01\0\0\0"))
    insider.attacker.send(
        Grant(
            header=insider.header("wild"),
            digest=b"",
            lease_ms=10_000,
            parts=(Part(0, 0, 0, 4),),
            tables=(runs,),
        )
    )
    assert isinstance(insider.attacker.receive(), GrantAck)
    offer(p, "wild", 1)
    until(lambda: p.agent.take())
    assert p.agent.counters()["bytes_written"] == 0
    fetch(p, d, "after", 2)


def test_a_release_of_nothing_ends_the_link_of_him_who_said_it(
    pair: Pair, attack: Callable[..., Attacker]
) -> None:
    p, d = pair
    fetch(p, d, "before", 1)
    insider = Insider.enter(attack(p), p, d)
    insider.attacker.send(Release(header=insider.header("t"), landed=True, reason=Reason.NONE))
    assert insider.attacker.ended()
    fetch(p, d, "after", 2)


def test_two_rings_with_one_key_in_common_meet(start: Start) -> None:
    p = start("P", Role.PRODUCER, 1, keys=KeyRing((Key("n", b"n" * 32), *RING.keys)))
    d = start("D", Role.CONSUMER, keys=KeyRing((Key("m", b"m" * 32), *RING.keys)))
    fetch(p, d, "t", 1)
