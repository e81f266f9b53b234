"""Authentication of one link, as far as the core takes part (spec section 4.6).

Owns the choice of a key and the refusal of a peer without one. Knows no secret and
no byte of a message: the driver has both, and gives the nonce. Invariant: a side
that requires authentication never agrees on a link without it.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from kvxfer.core.messages import Hello, Welcome

NONCE_BYTES = 32
"""Drawn anew for each link, by each side."""
MAC_BYTES = 32
"""A proof: the whole output of HMAC-SHA256."""


class Prover(Protocol):
    """The driver's half: it has the secrets, and the bytes of HELLO and WELCOME."""

    def sent(self, message: Hello | Welcome) -> None:
        """This side's own half of what is proven is about to leave."""
        ...

    def proof(self, key_id: str) -> bytes:
        """This side's proof that it has the key, over both halves."""
        ...

    def check(self, key_id: str, mac: bytes) -> bool:
        """Is this the other side's proof? Compared in constant time."""
        ...


@attrs.frozen
class NoKeys:
    """The prover of a side without keys: there is never anything to prove."""

    def sent(self, message: Hello | Welcome) -> None:
        """Nothing hangs on it."""

    def proof(self, key_id: str) -> bytes:
        raise AssertionError(f"no key {key_id!r} was agreed")

    def check(self, key_id: str, mac: bytes) -> bool:
        raise AssertionError(f"no key {key_id!r} was agreed, {len(mac)} bytes came")


@attrs.frozen(kw_only=True)
class Credentials:
    """What this side brings to one link.

    Args:
        nonce: NONCE_BYTES, drawn for this link alone; empty where there are no keys.
        key_ids: names of the live keys, the preferred one first.
        required: refuse a peer that proves none of them.
    """

    nonce: bytes = b""
    key_ids: tuple[str, ...] = ()
    required: bool = False
    prover: Prover = attrs.field(factory=NoKeys)

    def common(self, offered: tuple[str, ...]) -> str:
        """Our most preferred key among those that are offered; empty where there is none."""
        return next((key_id for key_id in self.key_ids if key_id in offered), "")
