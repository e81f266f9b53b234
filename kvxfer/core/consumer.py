"""The consumer half: registrations, and what the engine is told of them.

Owns what D knows of each transfer it wants: REQUEST, its parts, and one edge
per producer rank, which `writers.py` (push) or `readers.py` (pull) moves. Knows
no layout: parts are names, block tables are passed through. Invariants: A1,
C1-C3, D1-D3; what hangs on one peer is found without looking at any other.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.context import Context, Link
from kvxfer.core.edges import EdgeMoves, FenceCount
from kvxfer.core.effects import Resolve, TellLanded, TellLetGo, TellLost
from kvxfer.core.events import (
    CancelRegistration,
    EdgePlan,
    Evict,
    FenceResult,
    Register,
    Resolved,
    Unreachable,
    Unresolvable,
)
from kvxfer.core.ids import (
    Attempt,
    AttemptKey,
    Feature,
    Initiator,
    Part,
    Peer,
    PeerKey,
    Reason,
    TransferId,
)
from kvxfer.core.messages import Grant, ToConsumer
from kvxfer.core.operations import Operations
from kvxfer.core.readers import Readers
from kvxfer.core.registrations import AnyEdge, ReadEdge, Registration, WriteEdge
from kvxfer.core.tables import (
    PART,
    REQUEST,
    PartAction,
    PartEvent,
    PartState,
    RequestAction,
    RequestEvent,
    RequestState,
)
from kvxfer.core.timers import DeadlineTimer
from kvxfer.core.tombstones import Tombstones
from kvxfer.core.writers import Writers


@attrs.define
class Consumer:
    """All registrations of one agent."""

    ctx: Context
    operations: Operations
    registrations: dict[AttemptKey, Registration] = attrs.field(factory=dict)
    fencing: FenceCount = attrs.field(factory=FenceCount)
    writers: Writers = attrs.field(init=False)
    readers: Readers = attrs.field(init=False)
    _by_transfer: dict[TransferId, tuple[Registration, ...]] = attrs.field(factory=dict)
    _by_peer: dict[PeerKey, dict[AttemptKey, Registration]] = attrs.field(factory=dict)
    _attempts: Tombstones[TransferId, Attempt] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        ctx = self.ctx
        # Of all that is forgotten the highest: no number is ever given twice to a transfer.
        self._attempts = Tombstones(ctx.limits.tombstones_max, ctx.timings.tombstone_ms, max)
        self.writers = Writers(ctx, self)
        self.readers = Readers(ctx, self, self.operations, self.registrations)

    # --- from the engine ---

    def register(self, event: Register) -> None:
        reason = self._refusal(event)
        if reason is not Reason.NONE:
            self._refuse(event, reason)
            return
        for live in self._of_transfer(event.transfer_id):
            if live.silent:
                # 'Nothing is needed' is overtaken by somebody who needs it.
                self._fire_request(live, RequestEvent.CANCEL, Reason.STALE_ATTEMPT)
        key = AttemptKey(event.transfer_id, self._next_attempt(event.transfer_id))
        pull = event.initiator is Initiator.CONSUMER and not event.silent
        edge_type = ReadEdge if pull else WriteEdge
        reg = Registration(
            key=key,
            tag=event.tag,
            silent=event.silent,
            digest=event.digest,
            edges={peer: edge_type(key, peer) for peer in event.producers},
            initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
        )
        self.registrations[key] = reg
        self._by_transfer[event.transfer_id] = (*self._of_transfer(event.transfer_id), reg)
        for peer in reg.edges:
            self._by_peer.setdefault(peer, {})[key] = reg
        self.ctx.counters["declined" if event.silent else "registered"] += 1
        self.ctx.trace(key, "declined" if event.silent else "registered")
        self.ctx.timers.set(DeadlineTimer(key), self.ctx.now_ms + event.deadline_ms)
        for peer in reg.edges:
            self.ctx.dial(peer)
        self._try_resolve(reg)

    def _refusal(self, event: Register) -> Reason:
        """Why a registration cannot be taken, or NONE."""
        if self.ctx.closing:
            return Reason.SHUTDOWN
        if self.ctx.draining and not event.silent:
            return Reason.DRAINING
        live = [reg for reg in self._of_transfer(event.transfer_id) if not reg.silent]
        if any(reg.state is RequestState.WAITING for reg in live):
            return Reason.ALREADY_IN_USE
        if not event.silent and any(reg.tag == event.tag for reg in live):
            # Results name a registration by its tag, so a tag is free after its LetGo only (E2).
            return Reason.ALREADY_IN_USE
        if len(self.registrations) >= self.ctx.limits.transfers_max:
            return Reason.TABLE_FULL
        links = [self.ctx.link_to(key, dialled=True) for key in event.producers]
        if not event.silent and any(link is not None and link.draining for link in links):
            return Reason.DRAINING
        return Reason.NONE

    def _next_attempt(self, transfer_id: TransferId) -> Attempt:
        last = self._attempts.get(transfer_id, self.ctx.now_ms) or self._attempts.forgotten or 0
        # An attempt in quarantine may outlive its tombstone; its number stays taken.
        held = [reg.key.attempt for reg in self._of_transfer(transfer_id)]
        attempt = Attempt(max(last, *held, 0) + 1)
        self._attempts.put(transfer_id, attempt, self.ctx.now_ms)
        return attempt

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
            unheard = any(edge.dialling for edge in reg.edges.values())
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
        for reg, edge in self._at(link.peer.key):
            if edge.dialling:
                self._try_resolve(reg)
            else:
                self._side(edge).link_up(reg, edge, link)

    def link_lost(self, link: Link, reason: Reason) -> None:
        for reg, edge in self._at(link.peer.key):
            if edge.link == link.id:
                self._side(edge).link_lost(reg, edge, reason)
            elif edge.dialling and link.dialled:
                # Nothing was granted over it yet: ask for a new one, up to the deadline, but not
                # at the speed at which a peer can lose links.
                self.writers.arm(edge, self.ctx.timings.fence_retry_ms)

    def unreachable(self, event: Unreachable) -> None:
        self.ctx.dialling.discard(event.peer)
        for reg, edge in self._at(event.peer):
            self._side(edge).unreachable(reg, edge, event.reason, event.detail)

    def evict(self, event: Evict) -> None:
        """Whoever has not granted it anything yet need not wait: nobody will be asked."""
        for key in [key for key in self._by_peer if event.names(key)]:
            for reg, edge in self._at(key):
                if edge.dialling:
                    self._side(edge).unreachable(reg, edge, Reason.PEER_LOST, "evicted")

    def peer_drains(self, link: Link) -> None:
        """The producer takes no new grant: whoever waits to grant it something fails at once."""
        link.draining = True
        for reg, edge in self._at(link.peer.key):
            if edge.dialling and not reg.silent:
                self.fail(reg, Reason.DRAINING)

    def fence_result(self, event: FenceResult) -> None:
        for reg, edge in self._at(event.peer.key):
            self._side(edge).fence_result(reg, edge, event.peer, fenced=event.fenced)

    # --- granting ---

    def _try_resolve(self, reg: Registration) -> None:
        if reg.state is not RequestState.WAITING or reg.resolving or reg.resolved:
            return
        links = [self.ctx.link_to(key, dialled=True) for key in reg.edges]
        up = tuple(link for link in links if link is not None)
        if len(up) != len(links):
            return
        pull = reg.initiator is Initiator.CONSUMER
        if pull and not all(Feature.PULL & link.features for link in up):
            self.fail(reg, Reason.UNSUPPORTED, "pull, which not both sides have")
            return
        reg.resolving = True
        self.ctx.emit(
            Resolve(
                transfer_id=reg.key.transfer_id,
                attempt=reg.key.attempt,
                tag=reg.tag,
                silent=reg.silent,
                links=tuple(link.id for link in up),
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
            self.fail(reg, event.reason, event.detail)

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
            # Nobody moves anything: never to be taken for a transfer that has landed (C3).
            self.fail(reg, Reason.LAYOUT_REFUSED, "no edge at all")
            return
        reg.resolved = True
        plans = {plan.peer: plan for plan in event.edges}
        for key, link in links.items():
            assert link is not None
            self._take_plan(reg, key, link, plans.get(key))
        for edge in list(reg.edges.values()):
            self._side(edge).grant(reg, edge)
        for edge in list(reg.edges.values()):
            self._settle(reg, edge)

    def _take_plan(
        self, reg: Registration, key: PeerKey, link: Link, plan: EdgePlan | None
    ) -> None:
        if plan is None or not plan.parts:
            # Nothing is read there; a GRANT without parts is the same in push and pull.
            reg.edges[key] = WriteEdge(reg.key, key)
        edge = reg.edges[key]
        edge.peer = link.peer
        edge.link = link.id
        if plan is None:
            return
        edge.parts = dict.fromkeys(plan.parts, PartState.EXPECTED)
        pull = isinstance(edge, ReadEdge)
        edge.grant = Grant(
            header=self.ctx.header(reg.key, link.peer),
            digest=reg.digest,
            lease_ms=self.ctx.timings.grant_lease_ms,
            parts=plan.parts,
            tables=() if pull else plan.tables,
            initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
        )

    # --- from the producer ---

    def message(self, link: Link, message: ToConsumer) -> None:
        reg = self.registrations.get(message.header.key)
        edge = reg.edges.get(link.peer.key) if reg is not None else None
        if reg is None or edge is None or edge.peer != link.peer:
            self.ctx.counters["late_messages"] += 1
            return
        self._side(edge).message(reg, edge, message)

    def offer_part(self, reg: Registration, edge: AnyEdge, part: Part) -> bool:
        """Pull: a part may be read. True where that is news."""
        cell = self._fire_part(reg, edge, part, PartEvent.OFFERED)
        return PartAction.READ in cell

    def end_part(
        self, reg: Registration, edge: AnyEdge, part: Part, event: PartEvent, reason: Reason
    ) -> None:
        """A part has ended, whoever moved it."""
        if PartAction.COUNT not in self._fire_part(reg, edge, part, event):
            return
        if event is not PartEvent.DONE:
            self.fail(reg, reason)
        self._settle(reg, edge)

    def _fire_part(
        self, reg: Registration, edge: AnyEdge, part: Part, event: PartEvent
    ) -> tuple[PartAction, ...]:
        state = edge.parts.get(part)
        if state is None:
            # A part nobody granted is a fault of the peer, never progress (D2).
            self.ctx.counters["protocol_faults"] += 1
            self.fail(reg, Reason.PARTS_MISMATCH)
            return ()
        cell = PART.fire(state, event)
        if not cell.actions:
            self.ctx.counters["repeated_parts"] += 1
        edge.parts[part] = cell.target
        return cell.actions

    def _settle(self, reg: Registration, edge: AnyEdge) -> None:
        if reg.all_done():
            self._fire_request(reg, RequestEvent.ALL_DONE, Reason.NONE)
        self._side(edge).settle(reg, edge)

    # --- timers ---

    def deadline(self, key: AttemptKey) -> None:
        """A timer lives no longer than what it is about, so the registration is there."""
        self._fire_request(self.registrations[key], RequestEvent.DEADLINE, Reason.DEADLINE)

    def tick(self, key: AttemptKey, peer: PeerKey) -> None:
        reg = self.registrations[key]
        edge = reg.edges[peer]
        self._side(edge).tick(reg, edge)

    # --- the request ---

    def fail(self, reg: Registration, reason: Reason, detail: str = "") -> None:
        self._fire_request(reg, RequestEvent.FAIL, reason, detail)

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
                    self._cancel_edges(reg, reason)
                case _:
                    assert_never(action)

    def _cancel_edges(self, reg: Registration, reason: Reason) -> None:
        for edge in list(reg.edges.values()):
            self._side(edge).cancel(reg, edge, reason)
        # A registration with no edge at all has nobody to wait for.
        self.check_quiet(reg)

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
        self.ctx.trace(reg.key, outcome, reason=reason)
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

    def check_quiet(self, reg: Registration) -> None:
        """Bury the registration once the request has ended and every edge has let go (A1)."""
        if reg.state is RequestState.WAITING or not reg.all_quiet():
            return
        if self.registrations.pop(reg.key, None) is None:
            return
        others = tuple(
            other for other in self._of_transfer(reg.key.transfer_id) if other is not reg
        )
        self._by_transfer[reg.key.transfer_id] = others
        if not others:
            del self._by_transfer[reg.key.transfer_id]
        for peer in reg.edges:
            del self._by_peer[peer][reg.key]
            if not self._by_peer[peer]:
                del self._by_peer[peer]
        self.ctx.trace(reg.key, "let go")
        if not reg.silent:
            self._emit_let_go(reg.key, reg.tag)

    # --- views ---

    def _of_transfer(self, transfer_id: TransferId) -> tuple[Registration, ...]:
        return self._by_transfer.get(transfer_id, ())

    def _side(self, edge: AnyEdge) -> EdgeMoves:
        return self.readers if isinstance(edge, ReadEdge) else self.writers

    def _at(self, peer: PeerKey) -> list[tuple[Registration, AnyEdge]]:
        """All edges with one peer, whatever life of it."""
        return [(reg, reg.edges[peer]) for reg in self._by_peer.get(peer, {}).values()]

    def holds(self, transfer_id: TransferId, tag: str) -> bool:
        """True while an attempt with this tag has not let go."""
        return any(r.tag == tag and not r.silent for r in self._of_transfer(transfer_id))

    def needs_fence(self, peer: Peer) -> bool:
        """True while some edge waits for proof that this life of a peer is shut out."""
        return peer in self.fencing.by_peer

    def quarantined(self) -> int:
        """Edges whose blocks nobody may reuse although the request has let go."""
        return self.fencing.quarantined
