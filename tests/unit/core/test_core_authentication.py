"""Authentication in the handshake: who is refused, the order of proofs, what is not shown."""

from __future__ import annotations

import attrs
import pytest

from kvxfer.core.credentials import Credentials, NoKeys
from kvxfer.core.handshake import Handshake, Identity
from kvxfer.core.ids import Incarnation, LinkId, Peer, PeerKey, Reason, Role
from kvxfer.core.messages import Bye, Describe, Hello, Message, Proof, Refuse, Welcome
from kvxfer.core.session import Session
from kvxfer.core.tables import LinkState
from kvxfer.limits import Limits, Timings

D = Identity(engine_id="d", rank=0, incarnation=Incarnation(11), role=Role.CONSUMER)
P = Identity(engine_id="p", rank=3, incarnation=Incarnation(22), role=Role.PRODUCER)
DESCRIBE = Describe(transport="x", blob=b"b", shard=b"s")
NONCE_D, NONCE_P = b"d" * 32, b"p" * 32


@attrs.define
class Sign:
    """A prover that is easy to read: a proof names the side, the key, and both nonces."""

    side: str
    halves: list[bytes] = attrs.field(factory=list)

    def sent(self, message: Hello | Welcome) -> None:
        self.halves.append(message.nonce)

    def came(self, message: Hello | Welcome) -> None:
        self.halves.append(message.nonce)

    def _mac(self, side: str, key_id: str) -> bytes:
        return b"|".join([side.encode(), key_id.encode(), *self.halves])

    def proof(self, key_id: str) -> bytes:
        return self._mac(self.side, key_id)

    def check(self, key_id: str, mac: bytes) -> bool:
        return mac == self._mac("p" if self.side == "d" else "d", key_id)


@attrs.define
class End:
    """One side, and what it has told its driver."""

    handshake: Handshake
    sign: Sign

    def take(self, message: Message) -> tuple[Message, ...]:
        if isinstance(message, Hello | Welcome):
            self.sign.came(message)
        return self.handshake.receive(message).messages


def end(side: str, key_ids: tuple[str, ...] = ("k2", "k1"), *, required: bool = True) -> End:
    sign = Sign(side)
    nonce = (NONCE_D if side == "d" else NONCE_P) if key_ids else b""
    credentials = Credentials(nonce=nonce, key_ids=key_ids, required=required, prover=sign)
    handshake = Handshake(
        me=D if side == "d" else P,
        dialled=PeerKey("p", 3) if side == "d" else None,
        describe=lambda _peer: DESCRIBE,
        accept=lambda _peer, _theirs: (0,),
        credentials=credentials,
    )
    return End(handshake, sign)


def greeted(d: End, p: End) -> tuple[Message, ...]:
    """What the acceptor answers to the dialler's HELLO."""
    (hello,) = d.handshake.start().messages
    return p.take(hello)


def refused(end: End, messages: tuple[Message, ...], reason: Reason) -> bool:
    (refuse,) = messages
    assert isinstance(refuse, Refuse)
    assert end.handshake.state is LinkState.CLOSED
    return refuse.reason is reason


def test_both_sides_prove_the_key_before_anything_is_described() -> None:
    d, p = end("d"), end("p")
    welcome, proof_p = greeted(d, p)
    assert (welcome.key_id, welcome.nonce) == ("k2", NONCE_P)
    assert d.take(welcome) == ()
    proof_d, describe = d.take(proof_p)
    assert isinstance(proof_d, Proof)
    assert p.take(proof_d) == ()
    assert p.handshake.receive(describe).up
    assert d.handshake.receive(DESCRIBE).up
    assert (d.handshake.key_id, p.handshake.key_id) == ("k2", "k2")


@pytest.mark.parametrize(
    ("dialler", "acceptor", "chosen"),
    [
        (("old", "new"), ("new",), "new"),
        (("old",), ("new", "old"), "old"),
        (("a", "b"), ("b", "a"), "b"),
    ],
)
def test_of_two_live_keys_the_acceptors_preferred_one_is_taken(
    dialler: tuple[str, ...], acceptor: tuple[str, ...], chosen: str
) -> None:
    welcome, _ = greeted(end("d", dialler), end("p", acceptor))
    assert welcome.key_id == chosen


@pytest.mark.parametrize("key_ids", [("old",), ()])
def test_a_side_that_requires_a_key_refuses_a_dialler_without_one_of_its_own(
    key_ids: tuple[str, ...],
) -> None:
    p = end("p", ("new",))
    assert refused(p, greeted(end("d", key_ids, required=False), p), Reason.UNAUTHENTICATED)


def test_two_sides_with_keys_make_no_link_without_them_even_where_none_is_required() -> None:
    p = end("p", ("new",), required=False)
    assert refused(p, greeted(end("d", ("old",), required=False), p), Reason.UNAUTHENTICATED)


@pytest.mark.parametrize(("dialler", "acceptor"), [(("k",), ()), ((), ("k",)), ((), ())])
def test_where_no_key_is_required_a_side_without_one_is_served(
    dialler: tuple[str, ...], acceptor: tuple[str, ...]
) -> None:
    d, p = end("d", dialler, required=False), end("p", acceptor, required=False)
    (welcome,) = greeted(d, p)
    assert (welcome.key_id, welcome.nonce) == ("", b"")
    (describe,) = d.take(welcome)
    assert p.handshake.receive(describe).up


def test_the_dialler_is_not_talked_out_of_its_key() -> None:
    """A WELCOME without a key, or with one that was not offered, is no way down."""
    for changes in ({"key_id": "", "nonce": b""}, {"key_id": "weak"}):
        d, p = end("d"), end("p")
        welcome, _ = greeted(d, p)
        assert refused(d, d.take(attrs.evolve(welcome, **changes)), Reason.UNAUTHENTICATED)


@pytest.mark.parametrize("size", [0, 31])
def test_a_nonce_of_another_length_is_refused(size: int) -> None:
    d, p = end("d"), end("p")
    (hello,) = d.handshake.start().messages
    assert refused(p, p.take(attrs.evolve(hello, nonce=b"x" * size)), Reason.PROTOCOL_ERROR)
    welcome, _ = greeted(end("d"), end("p"))
    d = end("d")
    d.handshake.start()
    assert refused(d, d.take(attrs.evolve(welcome, nonce=b"x" * size)), Reason.PROTOCOL_ERROR)


def test_a_wrong_proof_ends_the_link_on_either_side() -> None:
    d, p = end("d"), end("p")
    welcome, proof_p = greeted(d, p)
    d.take(welcome)
    wrong = Proof(mac=b"x" * 32)
    assert refused(d, d.take(wrong), Reason.AUTHENTICATION_FAILED)
    assert d.handshake.detail == "wrong proof of key 'k2'"
    assert refused(p, p.take(wrong), Reason.AUTHENTICATION_FAILED)
    assert isinstance(proof_p, Proof)


def test_the_acceptors_own_proof_is_none_of_the_diallers() -> None:
    d, p = end("d"), end("p")
    _, proof_p = greeted(d, p)
    assert refused(p, p.take(proof_p), Reason.AUTHENTICATION_FAILED)


def test_nothing_is_described_to_a_side_that_has_proven_nothing() -> None:
    d, p = end("d"), end("p")
    welcome, _ = greeted(d, p)
    assert p.take(DESCRIBE) == ()
    assert p.handshake.state is LinkState.CLOSED
    d.take(welcome)
    assert d.handshake.receive(DESCRIBE).unreachable
    assert d.handshake.state is LinkState.CLOSED


def test_a_proof_where_none_is_awaited_ends_the_link() -> None:
    p = end("p", (), required=False)
    assert p.handshake.receive(Proof(mac=b"x" * 32)).close
    d, p = end("d"), end("p")
    welcome, proof_p = greeted(d, p)
    d.take(welcome)
    d.take(proof_p)
    assert d.handshake.receive(proof_p).unreachable


def test_bye_and_silence_end_a_link_that_waits_for_a_proof() -> None:
    d, p = end("d"), end("p")
    welcome, _ = greeted(d, p)
    d.take(welcome)
    assert d.handshake.timeout().unreachable
    assert p.handshake.receive(Bye(reason=Reason.SHUTDOWN)).close


def test_a_side_without_keys_has_nothing_to_prove() -> None:
    for call in (lambda: NoKeys().proof("k"), lambda: NoKeys().check("k", b"")):
        with pytest.raises(AssertionError, match="no key 'k' was agreed"):
            call()


def test_a_session_counts_who_could_not_prove_a_key() -> None:
    session = Session(
        me=P,
        limits=Limits(),
        timings=Timings(),
        describe=lambda _link, _peer: DESCRIBE,
        accept=lambda _link, _peer, _theirs: (0,),
    )
    link = LinkId(1)
    sign = Sign("p")
    credentials = Credentials(nonce=NONCE_P, key_ids=("k",), required=True, prover=sign)
    session.open_link(link, None, 0, credentials)
    (hello,) = end("d", ("k",)).handshake.start().messages
    session.receive(link, hello, 0)
    session.receive(link, Proof(mac=b"x" * 32), 0)
    assert session.ctx.counters["unauthenticated"] == 1
    assert not session.ctx.links
    assert Peer(PeerKey("d", 0), D.incarnation) not in {u.peer for u in session.ctx.links.values()}
