"""What a producer keeps of each transfer: records, no behaviour.

Owns Source (one transfer whose prefill runs or ran here), Send (one consumer's
attempt at it) and Op (one part on its way). `producer.py` moves them.
"""

from __future__ import annotations

from enum import Enum

import attrs

from kvxfer.core.context import Link
from kvxfer.core.ids import AttemptKey, OpId, Part, Peer, PeerKey, Reason, TransferId
from kvxfer.core.messages import Grant
from kvxfer.core.tables import SendState, SourceState


class OpPhase(Enum):
    QUEUED = "queued"
    CLAIMED = "claimed"


@attrs.define
class Op:
    """One part on its way. Exists until its end is known."""

    send: Send
    part: Part
    phase: OpPhase = OpPhase.QUEUED


@attrs.define(kw_only=True, eq=False)
class Send:
    """One consumer's attempt."""

    key: AttemptKey
    link: Link
    grant: Grant
    state: SendState = SendState.PARKED
    ops: set[OpId] = attrs.field(factory=set)
    parts_done: set[Part] = attrs.field(factory=set)
    cancelled: bool = False
    superseded: bool = False
    reason: Reason = Reason.NONE
    lease_until_ms: int = 0

    @property
    def peer(self) -> Peer:
        return self.link.peer

    @property
    def served(self) -> bool:
        return self.parts_done == set(self.grant.parts)


@attrs.define(kw_only=True)
class Source:
    """One transfer whose prefill runs or ran here."""

    transfer_id: TransferId
    tag: str = ""
    state: SourceState = SourceState.EXPECTED
    token_count: int = 0
    digest: bytes = b""
    consumers: frozenset[PeerKey] | None = None
    """Whom this transfer serves; fixed by the first attempt that matches (D3, D-07)."""
    came: set[PeerKey] = attrs.field(factory=set)
    served: set[PeerKey] = attrs.field(factory=set)
    reason: Reason = Reason.NONE

    def mismatch(self, send: Send, *, check_digest: bool) -> Reason:
        """Why this source cannot serve that attempt, or NONE."""
        grant = send.grant
        both = check_digest and grant.digest and self.digest
        if both and grant.digest != self.digest:
            return Reason.DIGEST_MISMATCH
        if any(part.token_stop > self.token_count for part in grant.parts):
            return Reason.TOKENS_MISSING
        if self.consumers is not None and send.peer.key not in self.consumers:
            return Reason.ALREADY_IN_USE
        return Reason.NONE
