"""The consumer half: registrations, their edges and parts.

Owns what D knows of each transfer it wants: REQUEST (what the engine is told)
and one WRITER per producer rank (who may still write). Knows no layout: parts
are names, block tables are passed through. Invariants: A1, A2, C1-C3, D1-D3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

import attrs

from kvxfer.core.context import Context, Link
from kvxfer.core.effects import Resolve, TellLanded, TellLetGo, TellLost
from kvxfer.core.events import (
    CancelRegistration,
    EdgePlan,
    FenceResult,
    Register,
    Resolved,
    Unreachable,
    Unresolvable,
)
from kvxfer.core.ids import (
    Attempt,
    AttemptKey,
    Part,
    Peer,
    PeerKey,
    Reason,
    TransferId,
)
from kvxfer.core.messages import (
    Cancel,
    Cancelled,
    Done,
    Failed,
    Gone,
    Grant,
    GrantAck,
    NeverPosted,
    Renew,
)
from kvxfer.core.registrations import Edge, Registration
from kvxfer.core.tables import (
    PART,
    REQUEST,
    WRITER,
    PartEvent,
    PartState,
    RequestAction,
    RequestEvent,
    RequestState,
    WriterAction,
    WriterEvent,
    WriterState,
)
from kvxfer.core.timers import DeadlineTimer, EdgeTimer
from kvxfer.core.tombstones import Tombstones

ConsumerMessage = GrantAck | Gone | Cancelled | Done | Failed | NeverPosted


@attrs.define
class Consumer:
    """All registrations of one agent."""

    ctx: Context
    registrations: dict[AttemptKey, Registration] = attrs.field(factory=dict)
    _by_transfer: dict[TransferId, list[Registration]] = attrs.field(factory=dict)
    _attempts: Tombstones[TransferId, Attempt] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        ctx = self.ctx
        self._attempts = Tombstones(ctx.limits.tombstones_max, ctx.timings.tombstone_ms)

    # --- from the engine ---

    def register(self, event: Register) -> None:
        if self.ctx.closing:
            self._refuse(event, Reason.SHUTDOWN)
            return
        for live in self._of_transfer(event.transfer_id):
            if live.silent:
                # 'Nothing is needed' is overtaken by somebody who needs it.
                self._fire_request(live, RequestEvent.CANCEL, Reason.STALE_ATTEMPT)
            elif live.state is RequestState.WAITING:
                self._refuse(event, Reason.ALREADY_IN_USE)
                return
        if not event.silent and self.holds(event.transfer_id, event.tag):
            # Results name a registration by its tag, so a tag is free after its LetGo only (E2).
            self._refuse(event, Reason.ALREADY_IN_USE)
            return
        if len(self.registrations) >= self.ctx.limits.transfers_max:
            self._refuse(event, Reason.TABLE_FULL)
            return
        last = self._attempts.get(event.transfer_id, self.ctx.now_ms) or 0
        # An attempt in quarantine may outlive its tombstone; its number stays taken.
        held = [reg.key.attempt for reg in self._of_transfer(event.transfer_id)]
        attempt = Attempt(max(last, *held, 0) + 1)
        self._attempts.put(event.transfer_id, attempt, self.ctx.now_ms)
        reg = Registration(
            key=AttemptKey(event.transfer_id, attempt),
            tag=event.tag,
            silent=event.silent,
            digest=event.digest,
            edges={key: Edge(key) for key in event.producers},
        )
        self.registrations[reg.key] = reg
        self._by_transfer.setdefault(event.transfer_id, []).append(reg)
        self.ctx.counters["declined" if event.silent else "registered"] += 1
        self.ctx.trace(reg.key, "declined" if event.silent else "registered")
        self.ctx.timers.set(DeadlineTimer(reg.key), self.ctx.now_ms + event.deadline_ms)
        for key in reg.edges:
            self.ctx.dial(key)
        self._try_resolve(reg)

    def _refuse(self, event: Register, reason: Reason) -> None:
        """Attempt 0 never existed on the wire, so there is nothing to wait for."""
        self.ctx.counters["refused"] += 1
        if event.silent:
            return
        key = AttemptKey(event.transfer_id, Attempt(0))
        self._emit_lost(key, event.tag, reason, "")
        self._emit_let_go(key, event.tag)

    def cancel(self, event: CancelRegistration) -> None:
        for reg in self._of_transfer(event.transfer_id):
            if reg.tag != event.tag or reg.silent or reg.state is not RequestState.WAITING:
                continue
            unheard = any(e.state is WriterState.DIALLING for e in reg.edges.values())
            self._fire_request(reg, RequestEvent.CANCEL, event.reason)
            if unheard:
                # No grant has left, so no CANCEL does either; the producers hold their offer
                # for somebody who will not come (L-05).
                self.register(self._decline(reg))

    def _decline(self, reg: Registration) -> Register:
        return Register(
            transfer_id=reg.key.transfer_id,
            producers=tuple(reg.edges),
            digest=b"",
            deadline_ms=self.ctx.timings.handshake_ms,
            silent=True,
        )

    def cancel_all(self, reason: Reason) -> None:
        for reg in list(self.registrations.values()):
            self._fire_request(reg, RequestEvent.CANCEL, reason)

    # --- links ---

    def link_up(self, link: Link) -> None:
        self.ctx.dialling.discard(link.peer.key)
        for reg, edge in self._edges(lambda e: e.key == link.peer.key):
            if edge.state is WriterState.DIALLING:
                self._try_resolve(reg)
            elif edge.peer == link.peer and edge.link not in self.ctx.links:
                edge.link = link.id
                self._fire_writer(reg, edge, WriterEvent.RELINKED, Reason.NONE)

    def link_lost(self, link: Link, reason: Reason) -> None:
        for reg, edge in self._edges(lambda e: e.key == link.peer.key):
            if edge.link == link.id:
                self._fire_writer(reg, edge, WriterEvent.LINK_LOST, reason)
            elif edge.state is WriterState.DIALLING and link.dialled:
                # Nothing was granted over it yet: ask for a new one, up to the deadline, but not
                # at the speed at which a peer can lose links.
                self._arm(reg, edge, self.ctx.timings.fence_retry_ms)

    def unreachable(self, event: Unreachable) -> None:
        self.ctx.dialling.discard(event.peer)
        for reg, edge in self._edges(lambda e: e.key == event.peer):
            self._fire_writer(reg, edge, WriterEvent.UNREACHABLE, event.reason, event.detail)

    def fence_result(self, event: FenceResult) -> None:
        fact = WriterEvent.FENCED if event.fenced else WriterEvent.NOT_FENCED
        # Only handles of links that have ended were fenced: a link that is up was not.
        shut = (WriterState.FENCING, WriterState.QUARANTINED)
        for reg, edge in self._edges(lambda e: e.peer == event.peer and e.state in shut):
            self._fire_writer(reg, edge, fact, Reason.PEER_LOST)

    # --- granting ---

    def _try_resolve(self, reg: Registration) -> None:
        if reg.state is not RequestState.WAITING or reg.resolving or reg.resolved:
            return
        links = [self.ctx.link_to(key, dialled=True) for key in reg.edges]
        up = tuple(link.id for link in links if link is not None)
        if len(up) == len(links):
            reg.resolving = True
            self.ctx.emit(
                Resolve(
                    transfer_id=reg.key.transfer_id,
                    attempt=reg.key.attempt,
                    tag=reg.tag,
                    silent=reg.silent,
                    links=up,
                )
            )

    def _waiting(self, key: AttemptKey) -> Registration | None:
        """The attempt that asked; another one may be current by now, with other blocks."""
        reg = self.registrations.get(key)
        if reg is None or reg.state is not RequestState.WAITING or not reg.resolving:
            return None
        return reg

    def unresolvable(self, event: Unresolvable) -> None:
        reg = self._waiting(AttemptKey(event.transfer_id, event.attempt))
        if reg is not None:
            self._fire_request(reg, RequestEvent.FAIL, event.reason, event.detail)

    def resolved(self, event: Resolved) -> None:
        reg = self._waiting(AttemptKey(event.transfer_id, event.attempt))
        if reg is None:
            return
        reg.resolving = False
        links = {key: self.ctx.link_to(key, dialled=True) for key in reg.edges}
        if any(link is None for link in links.values()):
            # A link died between Resolve and its answer: it is dialled again, as at the start.
            for key in links:
                self.ctx.dial(key)
            return
        if not event.edges:
            # Nobody writes anything: never to be taken for a transfer that has landed (C3).
            self._fire_request(reg, RequestEvent.FAIL, Reason.LAYOUT_REFUSED, "no edge at all")
            return
        reg.resolved = True
        plans = {plan.peer: plan for plan in event.edges}
        for key, link in links.items():
            assert link is not None
            self._take_plan(reg.edges[key], link, plans.get(key))
        for edge in list(reg.edges.values()):
            wanted = edge.key in plans
            self._fire_writer(
                reg, edge, WriterEvent.GRANT if wanted else WriterEvent.NOTHING, Reason.NONE
            )
        for edge in list(reg.edges.values()):
            self._settle(reg, edge)

    def _take_plan(self, edge: Edge, link: Link, plan: EdgePlan | None) -> None:
        edge.peer = link.peer
        edge.link = link.id
        if plan is not None:
            edge.parts = dict.fromkeys(plan.parts, PartState.EXPECTED)
            edge.tables = plan.tables

    # --- from the producer ---

    def message(self, link: Link, message: ConsumerMessage) -> None:
        reg = self.registrations.get(message.header.key)
        edge = reg.edges.get(link.peer.key) if reg is not None else None
        if reg is None or edge is None or edge.peer != link.peer:
            self.ctx.counters["late_messages"] += 1
            return
        match message:
            case GrantAck():
                pass
            case Gone():
                self._fire_writer(reg, edge, WriterEvent.GONE, message.reason)
            case Cancelled():
                self._fire_writer(reg, edge, WriterEvent.CANCELLED, Reason.PRODUCER_ABORTED)
            case Done():
                self._part(reg, edge, message.part, PartEvent.DONE, Reason.NONE)
            case Failed():
                end = PartEvent.FAILED_QUIET if message.quiet else PartEvent.FAILED_UNQUIET
                self._part(reg, edge, message.part, end, message.reason)
            case NeverPosted():
                self._part(reg, edge, message.part, PartEvent.NEVER_POSTED, message.reason)
            case _:
                assert_never(message)

    def _part(
        self, reg: Registration, edge: Edge, part: Part, event: PartEvent, reason: Reason
    ) -> None:
        state = edge.parts.get(part)
        if state is None:
            # A part nobody granted is a fault of the peer, never progress (D2).
            self.ctx.counters["protocol_faults"] += 1
            self._fire_request(reg, RequestEvent.FAIL, Reason.PARTS_MISMATCH)
            return
        cell = PART.fire(state, event)
        if not cell.actions:
            self.ctx.counters["repeated_parts"] += 1
            return
        edge.parts[part] = cell.target
        if cell.target is not PartState.DONE:
            self._fire_request(reg, RequestEvent.FAIL, reason)
        self._settle(reg, edge)

    def _settle(self, reg: Registration, edge: Edge) -> None:
        if reg.all_done():
            self._fire_request(reg, RequestEvent.ALL_DONE, Reason.NONE)
        if reg.resolved and edge.all_ended_quietly():
            self._fire_writer(reg, edge, WriterEvent.PARTS_QUIET, Reason.NONE)

    # --- timers ---

    def deadline(self, key: AttemptKey) -> None:
        reg = self.registrations.get(key)
        if reg is not None:
            self._fire_request(reg, RequestEvent.DEADLINE, Reason.DEADLINE)

    def tick(self, key: AttemptKey, peer: PeerKey) -> None:
        """Renew, ask again, or find the peer silent; retry a fence."""
        reg = self.registrations.get(key)
        edge = reg.edges.get(peer) if reg is not None else None
        if reg is None or edge is None:
            return
        timings = self.ctx.timings
        match edge.state:
            case WriterState.GRANTED:
                silence_ms = timings.renew_ms * timings.renew_misses_max
                if not self._silent(reg, edge, silence_ms):
                    self._send_renew(reg, edge)
            case WriterState.CANCELLING:
                if not self._silent(reg, edge, timings.drain_ms):
                    self._send_cancel(reg, edge)
            case WriterState.QUARANTINED:
                if self.ctx.link_to(edge.key, dialled=True) is None:
                    self.ctx.dial(edge.key)
                self._fire_writer(reg, edge, WriterEvent.RETRY, Reason.PEER_LOST)
                if edge.link in self.ctx.links:
                    self._send_cancel(reg, edge)
            case WriterState.DIALLING:
                self.ctx.dial(edge.key)
            case WriterState.FENCING | WriterState.QUIET:
                pass
            case _:
                assert_never(edge.state)

    def _silent(self, reg: Registration, edge: Edge, silence_ms: int) -> bool:
        link = self.ctx.links.get(edge.link) if edge.link is not None else None
        heard_ms = max(edge.asked_ms, link.heard_ms) if link is not None else edge.asked_ms
        if self.ctx.now_ms - heard_ms < silence_ms:
            return False
        self._fire_writer(reg, edge, WriterEvent.SILENT, Reason.PEER_SILENT)
        return True

    # --- machines ---

    def _fire_request(
        self, reg: Registration, event: RequestEvent, reason: Reason, detail: str = ""
    ) -> None:
        cell = REQUEST.fire(reg.state, event)
        reg.state = cell.target
        for action in cell.actions:
            match action:
                case RequestAction.TELL_LANDED:
                    self.ctx.timers.clear(DeadlineTimer(reg.key))
                    self._tell_landed(reg)
                case RequestAction.TELL_LOST:
                    self.ctx.timers.clear(DeadlineTimer(reg.key))
                    self._tell_lost(reg, reason, detail)
                case RequestAction.CANCEL_EDGES:
                    for edge in list(reg.edges.values()):
                        self._fire_writer(reg, edge, WriterEvent.CANCEL, reason)
                    # A registration with no edge at all has nobody to wait for.
                    self._check_quiet(reg)
                case _:
                    assert_never(action)

    def _fire_writer(
        self, reg: Registration, edge: Edge, event: WriterEvent, reason: Reason, detail: str = ""
    ) -> None:
        cell = WRITER.fire(edge.state, event)
        edge.state = cell.target
        for action in cell.actions:
            match action:
                case WriterAction.SEND_GRANT:
                    self._send_grant(reg, edge)
                case WriterAction.SEND_CANCEL:
                    edge.asked_ms = self.ctx.now_ms
                    self._send_cancel(reg, edge)
                case WriterAction.DROP_LINK:
                    if edge.link is not None:
                        self.ctx.drop_link(edge.link, reason)
                case WriterAction.FENCE:
                    assert edge.peer is not None
                    again = event is WriterEvent.RETRY
                    self.ctx.request_fence(edge.peer, reason, again=again)
                case WriterAction.FAIL_REQUEST:
                    self._fire_request(reg, RequestEvent.FAIL, reason, detail)
                case WriterAction.ARM_RETRY:
                    self._arm(reg, edge, self.ctx.timings.fence_retry_ms)
                case WriterAction.LET_GO:
                    self.ctx.timers.clear(EdgeTimer(reg.key, edge.key))
                    self._check_quiet(reg)
                case _:
                    assert_never(action)

    # --- effects ---

    def _arm(self, reg: Registration, edge: Edge, delay_ms: int) -> None:
        self.ctx.timers.set(EdgeTimer(reg.key, edge.key), self.ctx.now_ms + delay_ms)

    def _send_grant(self, reg: Registration, edge: Edge) -> None:
        assert edge.peer is not None
        edge.asked_ms = self.ctx.now_ms
        self.ctx.trace(reg.key, "granted")
        self.ctx.send(
            edge.link,
            Grant(
                header=self.ctx.header(reg.key, edge.peer),
                digest=reg.digest,
                lease_ms=self.ctx.timings.grant_lease_ms,
                parts=tuple(edge.parts),
                tables=edge.tables,
            ),
        )
        self._arm(reg, edge, self.ctx.timings.renew_ms)

    def _send_renew(self, reg: Registration, edge: Edge) -> None:
        assert edge.peer is not None
        header = self.ctx.header(reg.key, edge.peer)
        self.ctx.send(edge.link, Renew(header=header, lease_ms=self.ctx.timings.grant_lease_ms))
        self._arm(reg, edge, self.ctx.timings.renew_ms)

    def _send_cancel(self, reg: Registration, edge: Edge) -> None:
        assert edge.peer is not None
        header = self.ctx.header(reg.key, edge.peer)
        self.ctx.send(edge.link, Cancel(header=header, reason=Reason.CANCELLED_BY_CONSUMER))
        self._arm(reg, edge, min(self.ctx.timings.renew_ms, self.ctx.timings.drain_ms))

    def _tell_landed(self, reg: Registration) -> None:
        if not reg.silent:
            self.ctx.counters["landed"] += 1
            self.ctx.trace(reg.key, "landed")
            self.ctx.emit(
                TellLanded(transfer_id=reg.key.transfer_id, attempt=reg.key.attempt, tag=reg.tag)
            )

    def _tell_lost(self, reg: Registration, reason: Reason, detail: str) -> None:
        if reg.silent:
            return
        outcome = "cancelled" if reason is Reason.CANCELLED_BY_CONSUMER else "lost"
        self.ctx.counters[outcome] += 1
        self.ctx.counters[f"lost_{reason.name.lower()}"] += 1
        self.ctx.trace(reg.key, outcome)
        self._emit_lost(reg.key, reg.tag, reason, detail)

    def _emit_lost(self, key: AttemptKey, tag: str, reason: Reason, detail: str) -> None:
        self.ctx.emit(
            TellLost(
                transfer_id=key.transfer_id,
                attempt=key.attempt,
                tag=tag,
                reason=reason,
                detail=detail,
            )
        )

    def _emit_let_go(self, key: AttemptKey, tag: str) -> None:
        self.ctx.emit(TellLetGo(transfer_id=key.transfer_id, attempt=key.attempt, tag=tag))

    def _check_quiet(self, reg: Registration) -> None:
        """Bury the registration once the request has ended and every writer has let go (A1)."""
        if reg.state is RequestState.WAITING or not reg.all_quiet():
            return
        if self.registrations.pop(reg.key, None) is None:
            return
        others = self._by_transfer[reg.key.transfer_id]
        others.remove(reg)
        if not others:
            del self._by_transfer[reg.key.transfer_id]
        self.ctx.trace(reg.key, "let go")
        if not reg.silent:
            self._emit_let_go(reg.key, reg.tag)

    # --- views ---

    def _of_transfer(self, transfer_id: TransferId) -> list[Registration]:
        return list(self._by_transfer.get(transfer_id, ()))

    def _edges(self, wanted: Callable[[Edge], bool]) -> Iterator[tuple[Registration, Edge]]:
        for reg in list(self.registrations.values()):
            for edge in list(reg.edges.values()):
                if wanted(edge):
                    yield reg, edge

    def holds(self, transfer_id: TransferId, tag: str) -> bool:
        """True while an attempt with this tag has not let go."""
        return any(r.tag == tag and not r.silent for r in self._of_transfer(transfer_id))

    def needs_fence(self, peer: Peer) -> bool:
        """True while some edge waits for proof that this life of a peer is shut out."""
        waiting = (WriterState.FENCING, WriterState.QUARANTINED)
        return any(edge.state in waiting for _, edge in self._edges(lambda e: e.peer == peer))

    def quarantined(self) -> int:
        """Edges whose blocks nobody may reuse although the request has let go."""
        return sum(
            e.state is WriterState.QUARANTINED
            for r in self.registrations.values()
            for e in r.edges.values()
        )
