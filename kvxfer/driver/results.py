"""What the agent tells the engine: frozen records, one per fact.

Owns the engine-facing results. Invariant (N2, C1): every registration ends in
exactly one of Landed / Lost and exactly one LetGo; every offer ends in exactly
one Sent / Unsent. Nothing is reported that the engine did not ask for.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import Reason, TransferId


@attrs.frozen(kw_only=True)
class Landed:
    """Consumer: every part is in place and visible; the request may decode."""

    transfer_id: TransferId
    attempt: int
    tag: str = ""
    bytes_received: int = 0
    elapsed_ms: float = 0.0
    """From registration to landed, on this side's clock."""
    bytes_read: int = 0
    descriptors: int = 0
    """What this side read itself, and in how many ranges; 0 where the producers wrote."""
    told_ms: float = 0.0
    """When, on this side's monotonic clock."""


@attrs.frozen(kw_only=True)
class Lost:
    """Consumer: the KV will not come. Do not use the blocks yet: wait for LetGo."""

    transfer_id: TransferId
    attempt: int
    tag: str = ""
    reason: Reason
    detail: str = ""


@attrs.frozen(kw_only=True)
class LetGo:
    """Consumer: proven that no peer writes into the blocks of this attempt any more (A1, A2).

    Comes with Landed at once; after Lost or a cancel as soon as there is proof.
    """

    transfer_id: TransferId
    attempt: int
    tag: str = ""


@attrs.frozen(kw_only=True)
class Sent:
    """Producer: all consumers have their parts; the source blocks may be freed."""

    transfer_id: TransferId
    tag: str = ""
    bytes_written: int = 0
    descriptors: int = 0
    elapsed_ms: float = 0.0
    """From the first post to the end of the last one, on this side's clock."""


@attrs.frozen(kw_only=True)
class Unsent:
    """Producer: the transfer ended otherwise; nothing reads the source blocks any more (B1)."""

    transfer_id: TransferId
    tag: str = ""
    reason: Reason
    detail: str = ""


Result = Landed | Lost | LetGo | Sent | Unsent
