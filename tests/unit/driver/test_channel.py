"""A link's bytes: both ends of a channel against each other, without sockets."""

from __future__ import annotations

import pytest

from kvxfer.core.handshake import Handshake, Identity
from kvxfer.core.ids import Incarnation, PeerKey, Reason, Role
from kvxfer.core.messages import Bye, Describe, Hello, Message
from kvxfer.core.tables import LinkState
from kvxfer.driver import Key, KeyRing, Limits
from kvxfer.driver.channel import Channel
from kvxfer.driver.pump import draw_nonce
from kvxfer.errors import RemoteFault
from kvxfer.wire.codec import decode

RING = KeyRing((Key("k", b"k" * 32),))
BIG = Describe(transport="x", blob=b"b" * 100_000, shard=b"s")
SMALL = Limits(describe_bytes_max=150_000, message_bytes_max=200_000)


class Side:
    """A handshake and its channel, as the pump joins them."""

    def __init__(self, *, dials: bool, keys: KeyRing | None = RING, limits: Limits = SMALL) -> None:
        self.channel = Channel(limits=limits, dialled=dials, keys=keys)
        role, engine = (Role.CONSUMER, "d") if dials else (Role.PRODUCER, "p")
        self.shake = Handshake(
            me=Identity(engine_id=engine, rank=0, incarnation=Incarnation(1 + dials), role=role),
            dialled=PeerKey("p", 0) if dials else None,
            describe=lambda _peer: BIG,
            accept=lambda _peer, _theirs: (0,),
            credentials=self.channel.credentials(draw_nonce(), required=keys is not None),
        )
        self.limits = limits

    def start(self) -> bytes:
        return self._out(self.shake.start().messages)

    def feed(self, data: bytes) -> bytes:
        """What this side answers."""
        answer = b""
        for payload in self.channel.incoming(data):
            message = decode(payload, self.limits)
            self.channel.took(message, payload)
            answer += self._out(self.shake.receive(message).messages)
        return answer

    def _out(self, messages: tuple[Message, ...]) -> bytes:
        return b"".join(self.channel.outgoing(message) for message in messages)


def joined(keys: KeyRing | None = RING) -> tuple[Side, Side]:
    d, p = Side(dials=True, keys=keys), Side(dials=False, keys=keys)
    data, towards, other = d.start(), p, d
    while data:
        data, towards, other = towards.feed(data), other, towards
    assert (d.shake.state, p.shake.state) == (LinkState.UP, LinkState.UP)
    return d, p


@pytest.mark.parametrize("keys", [RING, None])
def test_messages_go_both_ways(keys: KeyRing | None) -> None:
    d, p = joined(keys)
    for here, there in ((d, p), (p, d)):
        for reason in (Reason.NONE, Reason.SHUTDOWN, Reason.NONE):
            data = here.channel.outgoing(Bye(reason=reason))
            (payload,) = there.channel.incoming(data)
            assert decode(payload, SMALL) == Bye(reason=reason)


def test_a_sealed_message_is_sixteen_bytes_longer() -> None:
    bye = Bye(reason=Reason.NONE)
    sealed, plain = joined(RING)[0].channel, joined(None)[0].channel
    assert len(sealed.outgoing(bye)) == len(plain.outgoing(bye)) + 16


@pytest.mark.parametrize("keys", [RING, None])
def test_notices_are_the_peers_or_none(keys: KeyRing | None) -> None:
    (d, p), (_, other) = joined(keys), joined(RING)
    bye = Bye(reason=Reason.NONE)
    opened = d.channel.opened_notice(p.channel.notice(bye))
    assert opened is not None
    assert decode(opened, SMALL) == bye
    if keys is not None:
        assert d.channel.opened_notice(other.channel.notice(bye)) is None
        assert d.channel.opened_notice(b"") is None


def test_every_link_draws_a_nonce_of_its_own() -> None:
    drawn = {Side(dials=True).shake.start().messages[0].nonce for _ in range(50)}
    assert len(drawn) == 50
    assert {len(nonce) for nonce in drawn} == {32}


def test_a_hello_whose_bytes_are_not_ours_proves_as_well() -> None:
    """A newer dialler says more in HELLO; both prove what went over the wire."""
    import cbor2

    d, p = Side(dials=True), Side(dials=False)
    (hello,) = d.shake.start().messages
    number, fields = cbor2.loads(d.channel._hello)
    d.channel._hello = cbor2.dumps([number, {**fields, 99: "of a newer version"}])
    data = len(d.channel._hello).to_bytes(4, "big") + d.channel._hello
    answer = d.feed(p.feed(data))
    assert p.feed(answer)
    assert p.shake.state is LinkState.UP
    assert isinstance(hello, Hello)


def length(count: int) -> bytes:
    return count.to_bytes(4, "big")


def refuses(side: Side, count: int) -> bool:
    """Is a message of that many bytes one too long for it now?"""
    try:
        list(side.channel.incoming(length(count)))
    except RemoteFault:
        return True
    return False


def test_the_bound_of_a_message_grows_with_what_is_known_of_its_sender() -> None:
    """4096 bytes for a stranger, room for DESCRIBE behind the proof, and then for anything."""
    for keys, stranger_max in ((RING, 4096), (None, 150_000)):
        hello = Side(dials=True, keys=keys).start()
        for count, too_long in ((4096, False), (4097, True)):
            assert refuses(Side(dials=False, keys=keys), count) is too_long
        for extra in (0, 1):
            p = Side(dials=False, keys=keys)
            p.feed(hello)
            assert refuses(p, stranger_max + extra) is bool(extra)
            d = Side(dials=True, keys=keys)
            d.start()
            assert refuses(d, 4096 + extra) is bool(extra)
            assert refuses(joined(keys)[1], 200_016 + extra) is bool(extra)


def test_behind_the_proof_there_is_room_for_a_description() -> None:
    for extra in (0, 1):
        d, p = Side(dials=True), Side(dials=False)
        answer = d.feed(p.feed(d.start()))
        proof = answer[: 4 + int.from_bytes(answer[:4], "big")]
        p.feed(proof)
        assert refuses(p, 150_000 + extra) is bool(extra)
