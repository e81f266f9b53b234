"""Everything the core asks of the world: one ordered batch per poll.

Owns the output records. The driver carries a batch out in order. Invariant:
`TellLetGo`, `TellSent` and `TellUnsent` are the only effects after which an
engine may reuse memory, and each stands for a positive fact (A2, B1).
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import Attempt, LinkId, OpId, Part, Peer, PeerKey, Reason, TransferId
from kvxfer.core.messages import Grant, Message, Offer


@attrs.frozen(kw_only=True)
class Send:
    """Send a message over the link's control connection."""

    link: LinkId
    message: Message


@attrs.frozen(kw_only=True)
class Dial:
    """Open a link to this peer; answered by LinkUp or Unreachable."""

    peer: PeerKey


@attrs.frozen(kw_only=True)
class DropLink:
    """Close the link; LinkLost has been acted on already."""

    link: LinkId
    reason: Reason


@attrs.frozen(kw_only=True)
class Resolve:
    """Work out parts and tables of a registration; answered by Resolved or Unresolvable."""

    transfer_id: TransferId
    attempt: Attempt
    tag: str
    silent: bool
    links: tuple[LinkId, ...]
    """One for every producer, all of them up."""


@attrs.frozen(kw_only=True)
class Fence:
    """Prove that the peer cannot reach our memory; answered by FenceResult.

    Also ends our own operations towards it: each comes back as OpEnded.
    """

    peer: Peer


@attrs.frozen(kw_only=True)
class Post:
    """A part may be posted. Call `Session.claim(op)` at the moment of posting (B2)."""

    op: OpId
    link: LinkId
    peer: Peer
    grant: Grant
    part: Part
    tag: str
    """The engine's own name for the offer, or in pull for the registration."""
    offer: Offer | None = None
    """Pull: the OFFER whose tables are to be read. None: a write into the tables of `grant`."""


@attrs.frozen(kw_only=True)
class StopOp:
    """Post nothing more of this claimed part; OpEnded follows once its rest is terminal."""

    op: OpId


@attrs.frozen(kw_only=True)
class TellLanded:
    transfer_id: TransferId
    attempt: Attempt
    tag: str


@attrs.frozen(kw_only=True)
class TellLost:
    transfer_id: TransferId
    attempt: Attempt
    tag: str
    reason: Reason
    detail: str


@attrs.frozen(kw_only=True)
class TellLetGo:
    transfer_id: TransferId
    attempt: Attempt
    tag: str


@attrs.frozen(kw_only=True)
class TellSent:
    transfer_id: TransferId
    tag: str


@attrs.frozen(kw_only=True)
class TellUnsent:
    transfer_id: TransferId
    tag: str
    reason: Reason


@attrs.frozen(kw_only=True)
class TellDrained:
    """Every table is empty, and nothing new is taken in."""


@attrs.frozen(kw_only=True)
class Trace:
    """A named step of a transfer, for timelines and transcripts."""

    transfer_id: TransferId
    attempt: int
    step: str
    peer: PeerKey | None = None
    part: Part | None = None
    reason: Reason = Reason.NONE


Effect = (
    Send
    | Dial
    | DropLink
    | Resolve
    | Fence
    | Post
    | StopOp
    | TellLanded
    | TellLost
    | TellLetGo
    | TellSent
    | TellUnsent
    | TellDrained
    | Trace
)
