"""What the scheduler side tells the workers in a step: frozen records that pickle.

Owns the orders and their container. Knows no vLLM type. Invariant: every step's
container is fresh (with the in-process executor it is handed over by reference)
and numbered, so that a worker carries each out once whichever hook sees it first.
"""

from __future__ import annotations

import attrs

from kvxfer.driver import TransferId
from kvxfer.driver.commands import Grow, Offer, ProducerAddress, Register


@attrs.frozen(kw_only=True)
class Receive:
    """Consumer: the scheduler parked `request_id` until this registration has ended."""

    request_id: str
    register: Register


@attrs.frozen(kw_only=True)
class Refuse:
    """Consumer: the scheduler parked `request_id`, but nothing can be loaded: report a failure."""

    request_id: str
    blocks: tuple[tuple[int, ...], ...]
    """Those that were to be filled, by cache group."""
    why: str


@attrs.frozen(kw_only=True)
class Drop:
    """Consumer: a parked request has ended; its blocks stay held until the worker reports it."""

    request_id: str
    transfer_id: TransferId


@attrs.frozen(kw_only=True)
class Decline:
    """Consumer: no registration will come for this transfer; its producers need not wait."""

    transfer_id: TransferId
    producers: tuple[ProducerAddress, ...]


@attrs.frozen(kw_only=True)
class Expect:
    """Producer: a prefill for this transfer has been queued here."""

    request_id: str
    transfer_id: TransferId


@attrs.frozen(kw_only=True)
class Send:
    """Producer: the prefill is finished; its blocks are held until `request_id` is reported."""

    request_id: str
    offer: Offer


@attrs.frozen(kw_only=True)
class Stream:
    """Producer: the first tokens are final, the prefill goes on. Nothing is to be reported yet."""

    request_id: str
    offer: Offer


@attrs.frozen(kw_only=True)
class Extend:
    """Producer: more of a stream is final."""

    request_id: str
    grow: Grow


@attrs.frozen(kw_only=True)
class LastChunk:
    """Producer: this step computes the end of a streamed prefill, and no later step writes to it.

    Its layers may leave one by one while the step computes. A Seal follows in any case, or
    an end without a result.
    """

    request_id: str
    tokens_before: int
    """Tokens that are final in all layers when the step begins."""
    grow: Grow
    """The end of the offer: true when every layer has been computed."""


@attrs.frozen(kw_only=True)
class Seal:
    """Producer: a streamed prefill is finished; its blocks are held as by Send."""

    request_id: str
    grow: Grow


@attrs.frozen(kw_only=True)
class Halt:
    """Producer: a streamed prefill was preempted; this step may write to its blocks.

    Nothing may read them any more when the step begins to compute.
    """

    request_id: str
    transfer_id: TransferId
    tag: str


@attrs.frozen(kw_only=True)
class Abort:
    """Producer: the prefill ended without a result.

    `held`: it was streamed, and its blocks are held until `request_id` is reported.
    """

    request_id: str
    transfer_id: TransferId
    held: bool = False


ProducerOrder = Expect | Send | Stream | Extend | LastChunk | Seal | Halt | Abort
Order = Receive | Refuse | Drop | Decline | ProducerOrder


@attrs.frozen(kw_only=True)
class StepOrders:
    """The connector metadata of one engine step."""

    step: int
    orders: tuple[Order, ...]
