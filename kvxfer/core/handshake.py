"""The handshake of one link, both sides (spec section 4).

Owns version negotiation, identity, and the order of the messages. Knows no layout,
no transport and no secret: `describe` and `accept` are given by the driver and may
raise `Refusal`, proofs come from the prover of `credentials`. Invariant: nothing of
phase 2 is looked at before phase 1 has been accepted and, where a key was agreed,
proven; a refusal always carries a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import attrs

from kvxfer.core.credentials import NONCE_BYTES, Credentials
from kvxfer.core.ids import (
    FEATURES,
    NO_FEATURES,
    Feature,
    Incarnation,
    Peer,
    PeerKey,
    Reason,
    Role,
)
from kvxfer.core.messages import (
    VERSION_MAX,
    VERSION_MIN,
    Bye,
    Describe,
    HandshakeMessage,
    Hello,
    Message,
    Proof,
    Refuse,
    Welcome,
)
from kvxfer.core.tables import LINK, LinkAction, LinkEvent, LinkState


class Refusal(Exception):
    """Raised by `describe` and `accept`: the peer cannot be served."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@attrs.frozen(kw_only=True)
class Identity:
    """Who this side is."""

    engine_id: str
    rank: int
    incarnation: Incarnation
    role: Role
    features: Feature = FEATURES
    """What this side takes part in beyond the base."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What one input led to, to be carried out in order."""

    messages: tuple[HandshakeMessage, ...] = ()
    up: bool = False
    lost: bool = False
    unreachable: bool = False
    close: bool = False


@attrs.define(kw_only=True)
class Handshake:
    """State of one link from its first byte to its last."""

    me: Identity
    dialled: PeerKey | None
    """Whom this side dialled; None where the other side did."""
    describe: Callable[[Peer], Describe]
    accept: Callable[[Peer, Describe], tuple[int, ...]]
    credentials: Credentials = attrs.field(factory=Credentials)
    state: LinkState = LinkState.CALLED
    peer: Peer | None = None
    version: int = 0
    ranks: tuple[int, ...] = ()
    features: Feature = NO_FEATURES
    """What both sides have; bits that this side does not know are nothing to it."""
    key_id: str = ""
    """The key that both sides prove; empty where the link is not authenticated."""
    reason: Reason = Reason.NONE
    detail: str = ""

    def start(self) -> Outcome:
        """Connection is open. The dialler speaks first."""
        if self.dialled is None:
            return Outcome()
        return self._fire(LinkEvent.DIALLED)

    def receive(self, message: Message) -> Outcome:
        """A handshake message or BYE came in."""
        try:
            match message:
                case Hello():
                    self._check_hello(message)
                    event = LinkEvent.HELLO_KEYED if self.key_id else LinkEvent.HELLO
                case Welcome():
                    self._check_welcome(message)
                    event = LinkEvent.WELCOME_KEYED if self.key_id else LinkEvent.WELCOME
                case Proof():
                    self._check_proof(message)
                    event = LinkEvent.PROOF
                case Describe():
                    self._take_description(message)
                    event = LinkEvent.DESCRIBE
                case Refuse():
                    self.reason, self.detail = message.reason, message.detail
                    event = LinkEvent.REFUSED
                case Bye():
                    self.reason = message.reason
                    event = LinkEvent.LOST
                case _:
                    return self.fail(Reason.PROTOCOL_ERROR, "transfer message before the handshake")
            return self._fire(event)
        except Refusal as refusal:
            return self.fail(refusal.reason, refusal.detail)

    def fail(self, reason: Reason, detail: str) -> Outcome:
        """Refuse the peer: tell it why, then close."""
        self.reason, self.detail = reason, detail
        outcome = self._fire(LinkEvent.REFUSED)
        if not outcome.close:
            return outcome
        refuse = Refuse(reason=reason, detail=detail)
        return attrs.evolve(outcome, messages=(*outcome.messages, refuse))

    def timeout(self) -> Outcome:
        self.reason, self.detail = Reason.UNREACHABLE, "no answer within the handshake deadline"
        return self._fire(LinkEvent.TIMEOUT)

    def lost(self, reason: Reason) -> Outcome:
        if self.reason is Reason.NONE:
            self.reason, self.detail = reason, "connection lost"
        return self._fire(LinkEvent.LOST)

    def _fire(self, event: LinkEvent) -> Outcome:
        cell = LINK.fire(self.state, event)
        messages: list[HandshakeMessage] = []
        up = lost = unreachable = close = False
        for action in cell.actions:
            match action:
                case LinkAction.SEND_HELLO:
                    messages.append(self._hello())
                case LinkAction.SEND_WELCOME:
                    messages.append(self._welcome())
                case LinkAction.SEND_PROOF:
                    messages.append(Proof(mac=self.credentials.prover.proof(self.key_id)))
                case LinkAction.SEND_DESCRIBE:
                    assert self.peer is not None
                    messages.append(self.describe(self.peer))
                case LinkAction.REPORT_UP:
                    up = True
                case LinkAction.REPORT_LOST:
                    lost = True
                case LinkAction.REPORT_UNREACHABLE:
                    unreachable = True
                case LinkAction.CLOSE:
                    close = True
                case _:
                    assert_never(action)
        # Only now: where `describe` refuses, the state is still the one to refuse from.
        self.state = cell.target
        return Outcome(
            messages=tuple(messages), up=up, lost=lost, unreachable=unreachable, close=close
        )

    def _hello(self) -> Hello:
        assert self.dialled is not None
        hello = Hello(
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
            engine_id=self.me.engine_id,
            rank=self.me.rank,
            incarnation=self.me.incarnation,
            role=self.me.role,
            features=int(self.me.features),
            expected_engine_id=self.dialled.engine_id,
            expected_rank=self.dialled.rank,
            nonce=self.credentials.nonce,
            key_ids=self.credentials.key_ids,
        )
        self.credentials.prover.sent(hello)
        return hello

    def _welcome(self) -> Welcome:
        welcome = Welcome(
            version=self.version,
            engine_id=self.me.engine_id,
            rank=self.me.rank,
            incarnation=self.me.incarnation,
            role=self.me.role,
            features=int(self.me.features),
            nonce=self.credentials.nonce if self.key_id else b"",
            key_id=self.key_id,
        )
        self.credentials.prover.sent(welcome)
        return welcome

    def _check_hello(self, hello: Hello) -> None:
        version = min(hello.version_max, VERSION_MAX)
        if version < max(hello.version_min, VERSION_MIN):
            raise Refusal(
                Reason.VERSION_MISMATCH,
                f"peer speaks {hello.version_min} to {hello.version_max}, "
                f"this side {VERSION_MIN} to {VERSION_MAX}",
            )
        mine = (self.me.engine_id, self.me.rank)
        wanted = (hello.expected_engine_id or self.me.engine_id, hello.expected_rank)
        if wanted != mine:
            raise Refusal(Reason.WRONG_PEER, f"dialled for {wanted}, this is {mine}")
        if not (self.me.role & Role.PRODUCER and hello.role & Role.CONSUMER):
            raise Refusal(Reason.ROLE_MISMATCH, "a consumer dials a producer")
        if hello.incarnation == self.me.incarnation:
            raise Refusal(Reason.WRONG_PEER, "dialled itself")
        self._choose_key(hello)
        self.version = version
        self.features = self.me.features & Feature(hello.features & int(FEATURES))
        self.peer = Peer(PeerKey(hello.engine_id, hello.rank), hello.incarnation)

    def _check_welcome(self, welcome: Welcome) -> None:
        if not VERSION_MIN <= welcome.version <= VERSION_MAX:
            raise Refusal(Reason.VERSION_MISMATCH, f"peer chose version {welcome.version}")
        key = PeerKey(welcome.engine_id, welcome.rank)
        if self.dialled is not None and key != self.dialled:
            raise Refusal(Reason.WRONG_PEER, f"dialled {self.dialled}, answered by {key}")
        if not welcome.role & Role.PRODUCER:
            raise Refusal(Reason.ROLE_MISMATCH, "the peer is no producer")
        self._take_key(welcome)
        self.version = welcome.version
        self.features = self.me.features & Feature(welcome.features & int(FEATURES))
        self.peer = Peer(key, welcome.incarnation)

    def _choose_key(self, hello: Hello) -> None:
        """Where both sides have keys they agree on one; there is no link without it then."""
        if not (hello.key_ids and self.credentials.key_ids):
            self._without_key("the dialler offers none")
            return
        key_id = self.credentials.common(hello.key_ids)
        if not key_id:
            raise Refusal(
                Reason.UNAUTHENTICATED, f"no key in common: {', '.join(hello.key_ids)} are unknown"
            )
        self._check_nonce(hello.nonce)
        self.key_id = key_id

    def _take_key(self, welcome: Welcome) -> None:
        if not welcome.key_id:
            self._without_key("the acceptor chose none")
            return
        if welcome.key_id not in self.credentials.key_ids:
            raise Refusal(Reason.UNAUTHENTICATED, f"key {welcome.key_id!r} was not offered")
        self._check_nonce(welcome.nonce)
        self.key_id = welcome.key_id

    def _without_key(self, why: str) -> None:
        if self.credentials.required:
            raise Refusal(Reason.UNAUTHENTICATED, f"authentication is required: {why}")

    def _check_nonce(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise Refusal(
                Reason.PROTOCOL_ERROR, f"nonce of {len(nonce)} bytes, not of {NONCE_BYTES}"
            )

    def _check_proof(self, proof: Proof) -> None:
        if self.state not in (LinkState.CHALLENGED, LinkState.PROVING):
            return  # Out of order: the table closes the link.
        if not self.credentials.prover.check(self.key_id, proof.mac):
            raise Refusal(Reason.AUTHENTICATION_FAILED, f"wrong proof of key {self.key_id!r}")

    def _take_description(self, theirs: Describe) -> None:
        if self.state not in (LinkState.WELCOMED, LinkState.DESCRIBING):
            return  # Out of order: the table closes the link.
        assert self.peer is not None
        self.ranks = self.accept(self.peer, theirs)
