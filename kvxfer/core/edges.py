"""What the two kinds of edges do alike: grant, renew, keep the lease, notice silence.

Owns the count of edges that wait for a fence. Knows neither machine: `writers.py`
and `readers.py` do. Invariant: the lease that this side believes in ends before
the one that the producer keeps, whatever the network delays (J1): it runs from
the moment at which the answered GRANT or RENEW was sent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import attrs

from kvxfer.core.context import Context, Link
from kvxfer.core.ids import Part, Peer, Reason
from kvxfer.core.messages import GrantAck, Renew, ToConsumer
from kvxfer.core.registrations import AnyEdge, Registration
from kvxfer.core.tables import PartEvent
from kvxfer.core.timers import EdgeTimer


class Host(Protocol):
    """The consumer, as its edges see it."""

    fencing: FenceCount

    def fail(self, reg: Registration, reason: Reason, detail: str = "") -> None: ...

    def end_part(
        self, reg: Registration, edge: AnyEdge, part: Part, event: PartEvent, reason: Reason
    ) -> None: ...

    def offer_part(self, reg: Registration, edge: AnyEdge, part: Part) -> bool: ...

    def check_quiet(self, reg: Registration) -> None: ...


class EdgeMoves(Protocol):
    """What can happen to an edge, of either kind. `edge` is of the kind that the side moves."""

    def grant(self, reg: Registration, edge: Any) -> None: ...

    def cancel(self, reg: Registration, edge: Any, reason: Reason) -> None: ...

    def link_up(self, reg: Registration, edge: Any, link: Link) -> None: ...

    def link_lost(self, reg: Registration, edge: Any, reason: Reason) -> None: ...

    def unreachable(
        self, reg: Registration, edge: Any, reason: Reason, detail: str = ""
    ) -> None: ...

    def fence_result(self, reg: Registration, edge: Any, peer: Peer, *, fenced: bool) -> None: ...

    def message(self, reg: Registration, edge: Any, message: ToConsumer) -> None: ...

    def settle(self, reg: Registration, edge: Any) -> None: ...

    def tick(self, reg: Registration, edge: Any) -> None: ...


@attrs.define
class FenceCount:
    """Edges that wait for proof, by life of a peer, and those whose first fence failed."""

    by_peer: Counter[Peer] = attrs.field(factory=Counter)
    quarantined: int = 0

    def moved(self, edge: AnyEdge, awaited: bool, quarantined: bool) -> None:
        """An edge changed its state; the arguments tell how it was before."""
        self.quarantined += edge.quarantined - quarantined
        if edge.awaits_fence == awaited or edge.peer is None:
            return
        self.by_peer[edge.peer] += 1 if edge.awaits_fence else -1
        if not self.by_peer[edge.peer]:
            del self.by_peer[edge.peer]


@attrs.define
class EdgeSide:
    """Base of `Writers` and `Readers`."""

    ctx: Context
    host: Host

    def arm(self, edge: AnyEdge, delay_ms: int) -> None:
        self.ctx.timers.set(EdgeTimer(edge.attempt, edge.key), self.ctx.now_ms + delay_ms)

    def send_grant(self, edge: AnyEdge) -> None:
        assert edge.grant is not None
        edge.asked_ms = edge.serial_sent_ms = self.ctx.now_ms
        edge.unanswered = True
        self.ctx.trace(edge.attempt, "granted", peer=edge.key)
        self.ctx.send(edge.link, edge.grant)
        self.arm(edge, self.ctx.timings.renew_ms)

    def send_renew(self, edge: AnyEdge) -> None:
        """Ask for the lease anew. One that repeats an unanswered one keeps its serial: whichever
        of them the answer is to, the lease is counted from the first.
        """
        assert edge.peer is not None
        if not edge.unanswered:
            edge.serial += 1
            edge.serial_sent_ms = self.ctx.now_ms
            edge.unanswered = True
        header = self.ctx.header(edge.attempt, edge.peer)
        lease_ms = self.ctx.timings.grant_lease_ms
        self.ctx.send(edge.link, Renew(header=header, lease_ms=lease_ms, serial=edge.serial))
        self.arm(edge, self.ctx.timings.renew_ms)

    def note_move(self, edge: AnyEdge, awaited: bool, quarantined: bool, reason: Reason) -> None:
        """An edge changed its state; the arguments tell how it was before, and why."""
        self.host.fencing.moved(edge, awaited, quarantined)
        if edge.quarantined and not quarantined:
            self.ctx.trace(edge.attempt, "quarantined", peer=edge.key, reason=reason)
        elif edge.awaits_fence and not awaited:
            self.ctx.trace(edge.attempt, "fencing", peer=edge.key, reason=reason)

    def leased(self, edge: AnyEdge, answer: GrantAck) -> None:
        if not edge.unanswered or answer.serial != edge.serial:
            return
        edge.unanswered = False
        until_ms = edge.serial_sent_ms + answer.lease_ms - self.ctx.timings.lease_margin_ms
        edge.lease_until_ms = max(edge.lease_until_ms, until_ms)

    def unheard(self, edge: AnyEdge, silence_ms: int) -> bool:
        """True where nothing came from the peer for so long although it was asked."""
        link = self.ctx.links.get(edge.link) if edge.link is not None else None
        heard_ms = max(edge.asked_ms, link.heard_ms) if link is not None else edge.asked_ms
        return self.ctx.now_ms - heard_ms >= silence_ms
