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


class Tagger:
    """Makes tags under one key. The key is put in once: that is most of the cost of a short tag."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def tag(self, *parts: bytes) -> bytes:
        made = self._keyed.copy()
        for part in parts:
            made.update(part)
        return made.digest()[:TAG_BYTES]

    def is_of(self, tag: bytes, *parts: bytes) -> bool:
        """Is it the tag of these? In a time that does not depend on its content."""
        return hmac.compare_digest(tag, self.tag(*parts))


class Sealer:
    """Seals what leaves in one direction: each message with its number, from 0."""

    def __init__(self, key: bytes) -> None:
        self._tagger = Tagger(key)
        self.count = 0

    def seal(self, payload: bytes) -> bytes:
        tag = self._tagger.tag(_number(self.count), payload)
        self.count += 1
        return payload + tag


class Opener:
    """Opens what comes in one direction, in the order in which it was sealed."""

    def __init__(self, key: bytes) -> None:
        self._tagger = Tagger(key)
        self.count = 0

    def open(self, data: bytes) -> bytes:
        """The message. RemoteFault where it is not the next one that the other side sealed."""
        payload, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
        if not self._tagger.is_of(tag, _number(self.count), payload):
            raise RemoteFault("seal", f"message {self.count}", "the other side's seal")
        self.count += 1
        return payload


def _number(count: int) -> bytes:
    return count.to_bytes(COUNT_BYTES, "big")


class Notices:
    """Tags the notifications of one link. They have no order, so they have no number."""

    def __init__(self, key: bytes) -> None:
        self._tagger = Tagger(key)

    def seal(self, payload: bytes) -> bytes:
        return payload + self._tagger.tag(payload)

    def open(self, data: bytes) -> bytes | None:
        """The notification; None where its tag is not of this link."""
        payload, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
        return payload if self._tagger.is_of(tag, payload) else None


def same_proof(one: bytes, other: bytes) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(one, other)
