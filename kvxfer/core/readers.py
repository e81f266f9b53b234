"""Pull, at the consumer: what the own READs of a registration may still do.

Owns the moves of READER, one per producer rank whose blocks are read. Posts by
`operations.py`, as a producer that writes does. Invariants: blocks are let go
with every own operation terminal (A1, A2); a READ counts as landed only if it
ended within the lease as this side measures it, so never after the producer may
have used its blocks for something else (B2, C3).
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.context import Link
from kvxfer.core.edges import EdgeSide
from kvxfer.core.events import OpEnded, OpNotPosted
from kvxfer.core.ids import AttemptKey, Part, Peer, Reason
from kvxfer.core.messages import (
    Cancelled,
    Done,
    Failed,
    Gone,
    GrantAck,
    NeverPosted,
    Offer,
    Release,
    ToConsumer,
)
from kvxfer.core.operations import Operations
from kvxfer.core.registrations import ReadEdge, Registration
from kvxfer.core.tables import (
    READER,
    PartEvent,
    ReaderAction,
    ReaderEvent,
    ReaderState,
    RequestState,
)
from kvxfer.core.timers import EdgeTimer


@attrs.define
class Readers(EdgeSide):
    """All edges over which this side reads."""

    operations: Operations
    registrations: dict[AttemptKey, Registration]

    # --- what happens to an edge ---

    def grant(self, reg: Registration, edge: ReadEdge) -> None:
        self._fire(reg, edge, ReaderEvent.GRANT, Reason.NONE)

    def cancel(self, reg: Registration, edge: ReadEdge, reason: Reason) -> None:
        self._fire(reg, edge, ReaderEvent.CANCEL, reason)

    def link_up(self, reg: Registration, edge: ReadEdge, link: Link) -> None:
        """Nothing that a producer says can prove an own operation quiet: only the fence does."""

    def link_lost(self, reg: Registration, edge: ReadEdge, reason: Reason) -> None:
        self._fire(reg, edge, ReaderEvent.LINK_LOST, reason)

    def unreachable(
        self, reg: Registration, edge: ReadEdge, reason: Reason, detail: str = ""
    ) -> None:
        self._fire(reg, edge, ReaderEvent.UNREACHABLE, reason, detail)

    def fence_result(self, reg: Registration, edge: ReadEdge, peer: Peer, *, fenced: bool) -> None:
        if edge.peer == peer and edge.awaits_fence:
            fact = ReaderEvent.FENCED if fenced else ReaderEvent.NOT_FENCED
            self._fire(reg, edge, fact, Reason.PEER_LOST)

    def message(self, reg: Registration, edge: ReadEdge, message: ToConsumer) -> None:
        match message:
            case GrantAck():
                self.leased(edge, message)
            case Gone():
                self._fire(reg, edge, ReaderEvent.GONE, message.reason)
            case Offer():
                self._offered(reg, edge, message)
            case NeverPosted():
                end = PartEvent.NEVER_POSTED
                self.host.end_part(reg, edge, message.part, end, message.reason)
            case Done() | Failed() | Cancelled():
                # What this side reads, nobody else can have moved.
                self.ctx.counters["protocol_faults"] += 1
                name = type(message).__name__
                self.host.fail(reg, Reason.PROTOCOL_ERROR, f"{name} where this side reads")
            case _:
                assert_never(message)

    def _offered(self, reg: Registration, edge: ReadEdge, offer: Offer) -> None:
        link = self.ctx.links.get(edge.link) if edge.link is not None else None
        for part in offer.parts:
            if edge.state is not ReaderState.READING or link is None:
                return
            if self.host.offer_part(reg, edge, part):
                assert edge.grant is not None
                self.operations.queue(self, edge, link, edge.grant, part, tag=reg.tag, offer=offer)

    def settle(self, reg: Registration, edge: ReadEdge) -> None:
        """A part has ended, or the parts are known."""
        if not edge.ops and edge.all_ended_quietly():
            self._fire(reg, edge, ReaderEvent.PARTS_ENDED, Reason.NONE)

    def tick(self, reg: Registration, edge: ReadEdge) -> None:
        """Renew, or find the peer silent; end an operation that does not end; retry a fence."""
        timings = self.ctx.timings
        match edge.state:
            case ReaderState.READING:
                if self.unheard(edge, timings.renew_ms * timings.renew_misses_max):
                    self._fire(reg, edge, ReaderEvent.SILENT, Reason.PEER_SILENT)
                else:
                    self.send_renew(edge)
            case ReaderState.STOPPING:
                up = edge.link in self.ctx.links
                event = ReaderEvent.SILENT if up else ReaderEvent.RETRY
                self.arm(edge, timings.fence_retry_ms)
                self._fire(reg, edge, event, Reason.PEER_SILENT)
            case ReaderState.QUARANTINED:
                self._fire(reg, edge, ReaderEvent.RETRY, Reason.PEER_LOST)
            case ReaderState.DIALLING:
                self.ctx.dial(edge.key)
            case ReaderState.FENCING | ReaderState.QUIET:
                pass
            case _:
                assert_never(edge.state)

    # --- posting ---

    def may_post(self, owner: ReadEdge, part: Part) -> bool:
        """While it is wanted and the lease lasts: else its end could only come too late."""
        held = owner.state is ReaderState.READING and self.ctx.now_ms < owner.lease_until_ms
        if not held:
            self.host.fail(self.registrations[owner.attempt], Reason.GRANT_EXPIRED)
        self.ctx.trace(owner.attempt, "posted" if held else "kept back", peer=owner.key, part=part)
        return held

    def op_ended(self, owner: ReadEdge, part: Part, event: OpEnded) -> None:
        reg = self.registrations[owner.attempt]
        reason = event.reason
        if event.done and self.ctx.now_ms < owner.lease_until_ms:
            end = PartEvent.DONE
            self.ctx.trace(owner.attempt, "read", peer=owner.key, part=part)
        elif event.done:
            # The producer may have used the blocks for something else by then.
            self.ctx.counters["reads_after_lease"] += 1
            end, reason = PartEvent.FAILED_QUIET, Reason.GRANT_EXPIRED
        elif event.quiet:
            end = PartEvent.FAILED_QUIET
        else:
            end = PartEvent.FAILED_UNQUIET
            self._fire(reg, owner, ReaderEvent.UNQUIET, event.reason)
        if end is not PartEvent.DONE:
            self.ctx.trace(owner.attempt, "failed", peer=owner.key, part=part, reason=reason)
        self._end_op(reg, owner, part, end, reason)

    def op_not_posted(self, owner: ReadEdge, part: Part, event: OpNotPosted) -> None:
        reg = self.registrations[owner.attempt]
        self._end_op(reg, owner, part, PartEvent.NEVER_POSTED, event.reason)

    def _end_op(
        self, reg: Registration, edge: ReadEdge, part: Part, end: PartEvent, reason: Reason
    ) -> None:
        self.host.end_part(reg, edge, part, end, reason)
        self._check_drained(reg, edge)

    def _check_drained(self, reg: Registration, edge: ReadEdge) -> None:
        if not edge.ops:
            self._fire(reg, edge, ReaderEvent.DRAINED, Reason.NONE)

    # --- the machine ---

    def _fire(
        self,
        reg: Registration,
        edge: ReadEdge,
        event: ReaderEvent,
        reason: Reason,
        detail: str = "",
    ) -> None:
        awaited, quarantined = edge.awaits_fence, edge.quarantined
        cell = READER.fire(edge.state, event)
        edge.state = cell.target
        self.note_move(edge, awaited, quarantined, reason)
        for action in cell.actions:
            match action:
                case ReaderAction.SEND_GRANT:
                    self.send_grant(edge)
                case ReaderAction.SEND_RELEASE:
                    self._send_release(reg, edge)
                case ReaderAction.STOP_READS:
                    self._stop_reads(reg, edge)
                case ReaderAction.CHECK_DRAINED:
                    self.arm(edge, self.ctx.timings.grant_lease_ms)
                    self._check_drained(reg, edge)
                case ReaderAction.DROP_LINK:
                    assert edge.link is not None
                    self.ctx.drop_link(edge.link, reason)
                case ReaderAction.FENCE:
                    self._fence(edge, event, reason)
                case ReaderAction.FENCE_OPEN:
                    if edge.ops:
                        self._fence(edge, event, reason)
                case ReaderAction.FAIL_REQUEST:
                    self.host.fail(reg, reason, detail)
                case ReaderAction.ARM_RETRY:
                    self.arm(edge, self.ctx.timings.fence_retry_ms)
                case ReaderAction.LET_GO:
                    self.ctx.timers.clear(EdgeTimer(edge.attempt, edge.key))
                    self.host.check_quiet(reg)
                case _:
                    assert_never(action)

    def _fence(self, edge: ReadEdge, event: ReaderEvent, reason: Reason) -> None:
        assert edge.peer is not None
        self.ctx.request_fence(edge.peer, reason, again=event is ReaderEvent.RETRY)

    def _stop_reads(self, reg: Registration, edge: ReadEdge) -> None:
        self.operations.stop(edge)
        # An operation that never ends must not hold the blocks for ever: fence it.
        self.arm(edge, self.ctx.timings.grant_lease_ms)
        self._check_drained(reg, edge)

    def _send_release(self, reg: Registration, edge: ReadEdge) -> None:
        assert edge.peer is not None
        landed = edge.all_done() and reg.state is not RequestState.LOST
        reason = Reason.NONE if landed else Reason.CANCELLED_BY_CONSUMER
        header = self.ctx.header(edge.attempt, edge.peer)
        self.ctx.send(edge.link, Release(header=header, landed=landed, reason=reason))
