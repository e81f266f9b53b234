"""What a producer does alike for an attempt that it writes and one that is read.

Owns the cut of a grant into what is final and what has to wait for the stream.
Knows neither machine: `senders.py` and `lenders.py` do. Invariant: a granted
part is begun at most once, and what a sealed source lacks is told (C1).
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from kvxfer.core.context import Context
from kvxfer.core.ids import Part, Reason, TransferId
from kvxfer.core.messages import Gone, NeverPosted
from kvxfer.core.sends import AnyServed, Source


class Host(Protocol):
    """The producer, as its attempts see it."""

    def source_of(self, transfer_id: TransferId) -> Source | None: ...

    def forget(self, served: AnyServed) -> None: ...

    def settle(self, served: AnyServed, *, let_down: bool) -> None: ...

    def check_idle(self, transfer_id: TransferId) -> None: ...

    def doubt(self, served: AnyServed) -> None: ...


class ServingMoves(Protocol):
    """What can happen to an attempt of either kind; `served` is of the side's own."""

    def match(self, served: Any) -> None: ...

    def grow(self, served: Any) -> None: ...

    def refuse(self, served: Any, reason: Reason) -> None: ...

    def stop(self, served: Any, reason: Reason) -> None: ...

    def supersede(self, served: Any) -> None: ...

    def link_lost(self, served: Any, reason: Reason) -> None: ...

    def lease_over(self, served: Any) -> None: ...

    def reads(self, served: Any) -> bool: ...


@attrs.define
class ServingSide:
    """Base of `Senders` and `Lenders`."""

    ctx: Context
    host: Host

    def take_final(self, served: AnyServed, source: Source) -> tuple[Part, ...]:
        """Parts that may be begun now; after the seal, the rest is told as never posted."""
        final = tuple(part for part in served.waiting if source.is_final(part))
        left = tuple(part for part in served.waiting if not source.is_final(part))
        if source.sealed and left:
            served.note_failure(Reason.TOKENS_MISSING)
            self.tell_never_posted(served, left, Reason.TOKENS_MISSING)
            left = ()
        served.waiting = left
        return final

    def tell_never_posted(self, served: AnyServed, parts: tuple[Part, ...], reason: Reason) -> None:
        header = self.ctx.header(served.key, served.peer)
        for part in parts:
            self.ctx.send(served.link.id, NeverPosted(header=header, part=part, reason=reason))

    def tell_gone(self, served: AnyServed) -> None:
        header = self.ctx.header(served.key, served.peer)
        self.ctx.send(served.link.id, Gone(header=header, reason=served.reason))
