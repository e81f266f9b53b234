"""What the engine tells the agent: frozen records for the mailbox.

Owns the engine-facing commands. A command is checked where the agent takes it
from the mailbox; a bad one ends that transfer with a reason, nothing else.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import Initiator, Reason, TransferId
from kvxfer.layout.geometry import BlockTable


@attrs.frozen(kw_only=True)
class ProducerAddress:
    """Where one producer rank listens for control connections."""

    engine_id: str
    rank: int
    host: str
    port: int


@attrs.frozen(kw_only=True)
class Register:
    """Consumer: have the tokens of a transfer put into `tables`.

    Tokens [token_start, token_stop) are wanted; `tables` name the blocks for
    them. `producers` are all ranks of the producing engine. `initiator`: they
    write (push), or this agent reads (pull).
    """

    transfer_id: TransferId
    producers: tuple[ProducerAddress, ...]
    tables: tuple[BlockTable, ...]
    token_start: int
    token_stop: int
    digest: bytes = b""
    deadline_ms: int | None = None
    tag: str = ""
    """The engine's own name for the request; comes back in every result about it."""
    initiator: Initiator = Initiator.PRODUCER
    traceparent: str = ""
    """W3C trace context of the request; never on the wire, comes back in steps only."""


@attrs.frozen(kw_only=True)
class Cancel:
    """Consumer: the request has ended. The blocks stay untouched until LetGo."""

    transfer_id: TransferId
    tag: str = ""
    reason: Reason = Reason.CANCELLED_BY_CONSUMER


@attrs.frozen(kw_only=True)
class Decline:
    """Consumer: nothing is needed of this transfer (full prefix hit, early abort). No results."""

    transfer_id: TransferId
    producers: tuple[ProducerAddress, ...]


@attrs.frozen(kw_only=True)
class Expect:
    """Producer: a prefill for this transfer has started here; optional, sharpens cancels."""

    transfer_id: TransferId
    tag: str = ""


@attrs.frozen(kw_only=True)
class Offer:
    """Producer: tokens [0, token_count) are final in `tables`; hold them until Sent or Unsent.

    Where `sealed` is False, `Grow` follows; the blocks of the whole prefill, those not yet
    named included, must be held from now on.
    """

    transfer_id: TransferId
    tables: tuple[BlockTable, ...]
    token_count: int
    digest: bytes = b""
    lease_ms: int | None = None
    tag: str = ""
    sealed: bool = True
    traceparent: str = ""
    """As in Register."""


@attrs.frozen(kw_only=True)
class Grow:
    """Producer: more of an offer that is not sealed is final.

    `tables` name all blocks so far. Of tokens [token_count, token_ahead) the first
    `layers_final` layers of every group are final, too, in this rank's own order: all of a
    group that has fewer. States are not cut by layers and not meant. Ignored where the
    offer has ended meanwhile: Unsent is or was on its way.
    """

    transfer_id: TransferId
    tables: tuple[BlockTable, ...]
    token_count: int
    sealed: bool = False
    tag: str = ""
    token_ahead: int = 0
    layers_final: int = 0


@attrs.frozen(kw_only=True)
class Withdraw:
    """Producer: the request was aborted. Ends in Unsent where it was offered before."""

    transfer_id: TransferId
    tag: str = ""
    reason: Reason = Reason.PRODUCER_ABORTED


@attrs.frozen(kw_only=True)
class Drain:
    """Take nothing new, finish what is there."""


@attrs.frozen(kw_only=True)
class Evict:
    """End everything with one engine, or with one rank of it. It may come again."""

    engine_id: str
    rank: int | None = None


TransferCommand = Register | Cancel | Decline | Expect | Offer | Grow | Withdraw
Command = TransferCommand | Drain | Evict
