"""Push, at the consumer: who may still write into the blocks of a registration.

Owns the moves of WRITER, one per producer rank that was granted to write.
Knows no registration's fate: it reports failures and quiet to its host.
Invariant: a writer is quiet by a positive fact alone (A2).
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.context import Link
from kvxfer.core.edges import EdgeSide
from kvxfer.core.ids import Peer, Reason
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Done,
    Failed,
    Gone,
    GrantAck,
    NeverPosted,
    Offer,
    ToConsumer,
)
from kvxfer.core.registrations import Registration, WriteEdge
from kvxfer.core.tables import WRITER, PartEvent, WriterAction, WriterEvent, WriterState
from kvxfer.core.timers import EdgeTimer


@attrs.define
class Writers(EdgeSide):
    """All edges over which producers write."""

    # --- what happens to an edge ---

    def grant(self, reg: Registration, edge: WriteEdge) -> None:
        """All links are up; without a GRANT of its own, the edge has nothing to do."""
        known = WriterEvent.NOTHING if edge.grant is None else WriterEvent.GRANT
        self._fire(reg, edge, known, Reason.NONE)

    def cancel(self, reg: Registration, edge: WriteEdge, reason: Reason) -> None:
        self._fire(reg, edge, WriterEvent.CANCEL, reason)

    def link_up(self, reg: Registration, edge: WriteEdge, link: Link) -> None:
        """A new link to the peer; of use where it is the same life as before."""
        if edge.peer == link.peer and edge.link not in self.ctx.links:
            edge.link = link.id
            self._fire(reg, edge, WriterEvent.RELINKED, Reason.NONE)

    def link_lost(self, reg: Registration, edge: WriteEdge, reason: Reason) -> None:
        self._fire(reg, edge, WriterEvent.LINK_LOST, reason)

    def unreachable(
        self, reg: Registration, edge: WriteEdge, reason: Reason, detail: str = ""
    ) -> None:
        self._fire(reg, edge, WriterEvent.UNREACHABLE, reason, detail)

    def fence_result(self, reg: Registration, edge: WriteEdge, peer: Peer, *, fenced: bool) -> None:
        # Only handles of links that have ended were fenced: a link that is up was not.
        if edge.peer == peer and edge.awaits_fence:
            fact = WriterEvent.FENCED if fenced else WriterEvent.NOT_FENCED
            self._fire(reg, edge, fact, Reason.PEER_LOST)

    def message(self, reg: Registration, edge: WriteEdge, message: ToConsumer) -> None:
        match message:
            case GrantAck():
                self.leased(edge, message)
            case Gone():
                self._fire(reg, edge, WriterEvent.GONE, message.reason)
            case Cancelled():
                self._fire(reg, edge, WriterEvent.CANCELLED, Reason.PRODUCER_ABORTED)
            case Done():
                self.host.end_part(reg, edge, message.part, PartEvent.DONE, Reason.NONE)
            case Failed():
                end = PartEvent.FAILED_QUIET if message.quiet else PartEvent.FAILED_UNQUIET
                self.host.end_part(reg, edge, message.part, end, message.reason)
            case NeverPosted():
                end = PartEvent.NEVER_POSTED
                self.host.end_part(reg, edge, message.part, end, message.reason)
            case Offer():
                self.ctx.counters["protocol_faults"] += 1
                self.host.fail(reg, Reason.PROTOCOL_ERROR, "OFFER where this side does not read")
            case _:
                assert_never(message)

    def settle(self, reg: Registration, edge: WriteEdge) -> None:
        """A part has ended, or the parts are known."""
        if edge.all_ended_quietly():
            self._fire(reg, edge, WriterEvent.PARTS_QUIET, Reason.NONE)

    def tick(self, reg: Registration, edge: WriteEdge) -> None:
        """Renew, ask again, or find the peer silent; retry a fence."""
        timings = self.ctx.timings
        match edge.state:
            case WriterState.GRANTED:
                if self.unheard(edge, timings.renew_ms * timings.renew_misses_max):
                    self._fire(reg, edge, WriterEvent.SILENT, Reason.PEER_SILENT)
                else:
                    self.send_renew(edge)
            case WriterState.CANCELLING:
                if self.unheard(edge, timings.drain_ms):
                    self._fire(reg, edge, WriterEvent.SILENT, Reason.PEER_SILENT)
                else:
                    self._send_cancel(edge)
            case WriterState.QUARANTINED:
                self.ctx.dial(edge.key)
                self._fire(reg, edge, WriterEvent.RETRY, Reason.PEER_LOST)
                if edge.link in self.ctx.links:
                    self._send_cancel(edge)
            case WriterState.DIALLING:
                self.ctx.dial(edge.key)
            case WriterState.FENCING | WriterState.QUIET:
                pass
            case _:
                assert_never(edge.state)

    # --- the machine ---

    def _fire(
        self,
        reg: Registration,
        edge: WriteEdge,
        event: WriterEvent,
        reason: Reason,
        detail: str = "",
    ) -> None:
        awaited, quarantined = edge.awaits_fence, edge.quarantined
        cell = WRITER.fire(edge.state, event)
        edge.state = cell.target
        self.note_move(edge, awaited, quarantined, reason)
        for action in cell.actions:
            match action:
                case WriterAction.SEND_GRANT:
                    self.send_grant(edge)
                case WriterAction.SEND_CANCEL:
                    edge.asked_ms = self.ctx.now_ms
                    self._send_cancel(edge)
                case WriterAction.DROP_LINK:
                    assert edge.link is not None
                    self.ctx.drop_link(edge.link, reason)
                case WriterAction.FENCE:
                    assert edge.peer is not None
                    again = event is WriterEvent.RETRY
                    self.ctx.request_fence(edge.peer, reason, again=again)
                case WriterAction.FAIL_REQUEST:
                    self.host.fail(reg, reason, detail)
                case WriterAction.ARM_RETRY:
                    self.arm(edge, self.ctx.timings.fence_retry_ms)
                case WriterAction.LET_GO:
                    self.ctx.timers.clear(EdgeTimer(edge.attempt, edge.key))
                    self.host.check_quiet(reg)
                case _:
                    assert_never(action)

    def _send_cancel(self, edge: WriteEdge) -> None:
        assert edge.peer is not None
        header = self.ctx.header(edge.attempt, edge.peer)
        self.ctx.send(edge.link, Cancel(header=header, reason=Reason.CANCELLED_BY_CONSUMER))
        self.arm(edge, min(self.ctx.timings.renew_ms, self.ctx.timings.drain_ms))
