"""Proofs, seals and tags of an authenticated link (spec section 4.6), from its two halves.

Owns the derivation of a link's keys and what is done with them: HMAC-SHA256 throughout,
from the standard library. Knows no message and no socket; the secret and the two nonces,
which are inside the halves, are given. Invariants: each key has one purpose and one
direction, so nothing that a side sent is ever good when it comes back to it; a seal is
good at one place of one link's stream and nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac

import attrs

from kvxfer.errors import RemoteFault

TAG_BYTES = 16
"""HMAC-SHA256 cut to its first half (RFC 2104 section 5)."""
COUNT_BYTES = 8


def transcript(hello: bytes, welcome: bytes) -> bytes:
    """Digest of both halves as they went over the wire, whatever keys they had."""
    digest = hashlib.sha256(b"kvxfer-1 transcript")
    for half in (hello, welcome):
        digest.update(len(half).to_bytes(4, "big"))
        digest.update(half)
    return digest.digest()


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


@attrs.frozen(kw_only=True)
class LinkKeys:
    """What both ends of one link derive; nothing of it is ever sent but the proofs."""

    dialler_proof: bytes
    acceptor_proof: bytes
    dialler_seal: bytes = attrs.field(repr=False)
    acceptor_seal: bytes = attrs.field(repr=False)
    notice: bytes = attrs.field(repr=False)

    @classmethod
    def derive(cls, secret: bytes, hello: bytes, welcome: bytes) -> LinkKeys:
        """The keys of the link that these two halves opened."""
        session = _mac(secret, b"kvxfer-1 session" + transcript(hello, welcome))
        return cls(
            dialler_proof=_mac(session, b"dialler proof"),
            acceptor_proof=_mac(session, b"acceptor proof"),
            dialler_seal=_mac(session, b"dialler seal"),
            acceptor_seal=_mac(session, b"acceptor seal"),
            notice=_mac(session, b"notice"),
        )


@attrs.define
class Sealer:
    """Seals what leaves in one direction: each message with its number, from 0."""

    key: bytes = attrs.field(repr=False)
    count: int = 0

    def seal(self, payload: bytes) -> bytes:
        tag = _tag(self.key, self.count, payload)
        self.count += 1
        return payload + tag


@attrs.define
class Opener:
    """Opens what comes in one direction, in the order in which it was sealed."""

    key: bytes = attrs.field(repr=False)
    count: int = 0

    def open(self, data: bytes) -> bytes:
        """The message. RemoteFault where it is not the next one that the other side sealed."""
        payload, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self.key, self.count, payload)):
            raise RemoteFault("seal", f"message {self.count}", "the other side's seal")
        self.count += 1
        return payload


def _tag(key: bytes, count: int, payload: bytes) -> bytes:
    return _mac(key, count.to_bytes(COUNT_BYTES, "big") + payload)[:TAG_BYTES]


def seal_notice(key: bytes, payload: bytes) -> bytes:
    """A notification with its tag. Notifications have no order, so they have no number."""
    return payload + _mac(key, payload)[:TAG_BYTES]


def open_notice(key: bytes, data: bytes) -> bytes | None:
    """The notification; None where its tag is not the other side's."""
    payload, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
    return payload if hmac.compare_digest(tag, _mac(key, payload)[:TAG_BYTES]) else None


def same_proof(one: bytes, other: bytes) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(one, other)
