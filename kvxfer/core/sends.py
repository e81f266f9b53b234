"""What a producer keeps of each transfer: records, no behaviour.

Owns Source (one transfer whose prefill runs or ran here) and what one consumer's
attempt at it is: Send where this side writes, Loan where the consumer reads.
`producer.py`, `senders.py` and `lenders.py` move them.
"""

from __future__ import annotations

import attrs

from kvxfer.core.context import Link
from kvxfer.core.ids import AttemptKey, OpId, Part, Peer, PeerKey, Reason, TransferId
from kvxfer.core.messages import BlockRuns, Grant
from kvxfer.core.tables import LoanState, SendState, SourceState


@attrs.define(kw_only=True, eq=False)
class Served:
    """One consumer's attempt: what Send and Loan share."""

    key: AttemptKey
    link: Link
    grant: Grant
    waiting: tuple[Part, ...]
    """Granted parts whose tokens are not final yet."""
    superseded: bool = False
    reason: Reason = Reason.NONE
    lease_until_ms: int = 0

    @property
    def peer(self) -> Peer:
        return self.link.peer

    def note_failure(self, reason: Reason) -> None:
        """The first reason stays."""
        if self.reason is Reason.NONE:
            self.reason = reason


@attrs.define(kw_only=True, eq=False)
class Send(Served):
    """Push: parts are written to the consumer."""

    state: SendState = SendState.PARKED
    ops: set[OpId] = attrs.field(factory=set)
    parts_done: frozenset[Part] = frozenset()
    cancelled: bool = False

    @property
    def parked(self) -> bool:
        return self.state is SendState.PARKED

    @property
    def served(self) -> bool:
        return self.parts_done == frozenset(self.grant.parts)


@attrs.define(kw_only=True, eq=False)
class Loan(Served):
    """Pull: the consumer reads."""

    state: LoanState = LoanState.PARKED
    served: bool = False
    """The consumer says that it has read every part."""

    @property
    def parked(self) -> bool:
        return self.state is LoanState.PARKED

    @property
    def reads(self) -> bool:
        """True while the consumer may read the source blocks and count on what it reads."""
        return self.state in (LoanState.LENT, LoanState.RECALLED)


AnyServed = Send | Loan


@attrs.define(kw_only=True)
class Source:
    """One transfer whose prefill runs or ran here."""

    transfer_id: TransferId
    tag: str = ""
    state: SourceState = SourceState.EXPECTED
    token_count: int = 0
    token_ahead: int = 0
    layers_final: int = 0
    sealed: bool = False
    lease_ms: int = 0
    digest: bytes = b""
    tables: tuple[BlockRuns, ...] = ()
    consumers: frozenset[PeerKey] | None = None
    """Whom this transfer serves; fixed by the first attempt that matches (D3, D-07)."""
    came: frozenset[PeerKey] = frozenset()
    served: frozenset[PeerKey] = frozenset()
    reason: Reason = Reason.NONE

    @property
    def open(self) -> bool:
        """True while operations on the blocks may be begun."""
        return self.state in (SourceState.STREAMING, SourceState.OFFERED)

    def is_final(self, part: Part) -> bool:
        """True where every byte of the part is computed."""
        if part.token_stop <= self.token_count:
            return True
        ahead = part.token_stop <= self.token_ahead
        return ahead and 0 < part.layer_stop <= self.layers_final

    def note_came(self, consumer: PeerKey) -> None:
        came = self.came | {consumer}
        # Once all are there, the set that the link has serves: a thousand transfers share it.
        self.came = self.consumers if came == self.consumers else came

    def all_came(self) -> bool:
        return self.consumers is not None and self.came >= self.consumers

    def all_served(self) -> bool:
        return self.consumers is not None and self.served >= self.consumers

    def mismatch(self, served: AnyServed, *, check_digest: bool) -> Reason:
        """Why this source cannot serve that attempt, or NONE."""
        grant = served.grant
        both = check_digest and grant.digest and self.digest
        if both and grant.digest != self.digest:
            return Reason.DIGEST_MISMATCH
        if self.sealed and not all(self.is_final(part) for part in grant.parts):
            return Reason.TOKENS_MISSING
        if self.consumers is not None and served.peer.key not in self.consumers:
            return Reason.ALREADY_IN_USE
        return Reason.NONE
