"""Everything that can enter the core, besides links, messages and the time.

Owns the input records. Knows no source of them. Invariant: whatever the world
does to a transfer reaches the core as one of these, so a recorded list of them
replays a run exactly.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import (
    Attempt,
    Initiator,
    OpId,
    Part,
    Peer,
    PeerKey,
    Reason,
    TransferId,
)
from kvxfer.core.messages import BlockRuns


@attrs.frozen(kw_only=True)
class Unreachable:
    """A peer that was asked for by `Dial` cannot be had."""

    peer: PeerKey
    reason: Reason
    detail: str = ""


# --- consumer's engine ---


@attrs.frozen(kw_only=True)
class Register:
    """The engine wants a transfer from all of `producers`.

    `silent`: nobody waits for it; it only tells the producers that nothing is needed.
    `initiator`: who moves the bytes: the producers write, or this side reads.
    """

    transfer_id: TransferId
    producers: tuple[PeerKey, ...]
    digest: bytes
    deadline_ms: int
    tag: str = ""
    """The engine's own name for the request, echoed in every Tell about it."""
    silent: bool = False
    initiator: Initiator = Initiator.PRODUCER


@attrs.frozen(kw_only=True)
class EdgePlan:
    """What must come from one producer for one attempt: the answer to `Resolve`.

    `tables`: the blocks to write into; in pull they stay here and may be empty.
    """

    peer: PeerKey
    parts: tuple[Part, ...]
    tables: tuple[BlockRuns, ...]


@attrs.frozen(kw_only=True)
class Resolved:
    """All links are up and the driver has worked out the parts from the descriptors."""

    transfer_id: TransferId
    attempt: Attempt
    edges: tuple[EdgePlan, ...]


@attrs.frozen(kw_only=True)
class Unresolvable:
    """The driver found that the transfer cannot be granted."""

    transfer_id: TransferId
    attempt: Attempt
    reason: Reason
    detail: str


@attrs.frozen(kw_only=True)
class CancelRegistration:
    """The engine's request has ended. Meant for the registration with this tag."""

    transfer_id: TransferId
    reason: Reason
    tag: str = ""


# --- producer's engine ---


@attrs.frozen(kw_only=True)
class Expect:
    """A prefill for this transfer runs here."""

    transfer_id: TransferId
    tag: str = ""


@attrs.frozen(kw_only=True)
class Offer:
    """Tokens [0, token_count) are final and pinned here.

    `sealed`: no more will come; else `Grow` follows, and the engine keeps all the
    blocks of the prefill pinned from now on. `tables`: this side's blocks, for
    consumers that read. `lease_ms` runs from the seal.
    """

    transfer_id: TransferId
    token_count: int
    digest: bytes
    lease_ms: int
    tag: str = ""
    sealed: bool = True
    tables: tuple[BlockRuns, ...] = ()


@attrs.frozen(kw_only=True)
class Grow:
    """More of an offer that is not sealed is final: tokens [0, token_count).

    Beyond them, of tokens below `token_ahead`, the first `layers_final` layers of
    each group are final, in this peer's own order. A `Grow` of an offer that has
    ended is ignored: it can revive nothing.
    """

    transfer_id: TransferId
    token_count: int
    sealed: bool
    tag: str = ""
    tables: tuple[BlockRuns, ...] = ()
    token_ahead: int = 0
    layers_final: int = 0


@attrs.frozen(kw_only=True)
class Withdraw:
    """The engine takes the transfer back; where a tag is given, only if it holds it."""

    transfer_id: TransferId
    reason: Reason
    tag: str = ""


# --- the whole agent ---


@attrs.frozen(kw_only=True)
class Drain:
    """Take nothing new, finish what is there; `TellDrained` follows once all tables are empty."""

    reason: Reason = Reason.DRAINING


@attrs.frozen(kw_only=True)
class Evict:
    """End everything with one engine, or with one rank of it; it may come again.

    What waits for it fails at once, what it may still write into is fenced.
    """

    engine_id: str
    rank: int | None = None
    """None: all ranks."""

    def names(self, key: PeerKey) -> bool:
        return key.engine_id == self.engine_id and self.rank in (None, key.rank)


# --- transport ---


@attrs.frozen(kw_only=True)
class OpEnded:
    """A posted part has ended: all its operations are terminal on this side.

    `done`: every byte arrived and, in push, the notification went out. `quiet`: no
    operation of it can touch the consumer's memory any more. In pull the time at
    which this is handled must be taken after the transport told of the end: it
    decides whether what was read still counts.
    """

    op: OpId
    done: bool
    quiet: bool
    reason: Reason


@attrs.frozen(kw_only=True)
class OpNotPosted:
    """The part was claimed for posting but nothing of it was posted."""

    op: OpId
    reason: Reason


@attrs.frozen(kw_only=True)
class FenceResult:
    """Answer to `Fence`."""

    peer: Peer
    fenced: bool


Event = (
    Unreachable
    | Register
    | Resolved
    | Unresolvable
    | CancelRegistration
    | Expect
    | Offer
    | Grow
    | Withdraw
    | Drain
    | Evict
    | OpEnded
    | OpNotPosted
    | FenceResult
)
