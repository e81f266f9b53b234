"""One step of one transfer, as one agent saw it.

Owns the record that the flight recorder, recordings, timelines and traces are made
of, and the names of the steps that the driver adds to those of the core. Knows no
clock. Invariant: a step is cheap to make: what it names are references, and no text
is put together before somebody reads it.
"""

from __future__ import annotations

from typing import Final

import attrs

from kvxfer.core.ids import Part, PeerKey, Reason, TransferId

ASKED_TO_RECEIVE: Final = "asked to receive"
"""The engine's registration was taken from the mailbox; `traceparent` may be given."""
ASKED_TO_SEND: Final = "asked to send"
"""The engine's offer was taken from the mailbox."""
TOLD: Final = "told "
"""Prefix of what the engine is told: landed, lost, let go, sent, unsent."""


@attrs.frozen(kw_only=True)
class Step:
    """`t_ms` on this agent's monotonic clock. Fields that say nothing keep their default."""

    t_ms: float
    transfer_id: TransferId
    attempt: int
    """0 where the step is of a source, not of a consumer's attempt."""
    step: str
    peer: PeerKey | None = None
    part: Part | None = None
    reason: Reason = Reason.NONE
    tag: str = ""
    detail: str = ""
    size_bytes: int = 0
    descriptors: int = 0
    traceparent: str = ""
