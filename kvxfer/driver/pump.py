"""The pump: core, layout, wire and transport joined, without threads or sockets.

Owns the carrying out of effects and the feeding of events. The caller gives the
time and the bytes of each link and takes bytes, dials and results out; nothing
blocks. The trio driver runs it for engines, the simulated world runs it with
virtual time. Invariant: effects are carried out in the order of the batch.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

import attrs
import numpy as np

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import (
    FEATURES,
    Feature,
    Incarnation,
    Initiator,
    LinkId,
    OpId,
    Peer,
    PeerKey,
    Reason,
    Role,
    TransferId,
)
from kvxfer.core.messages import Done, Message
from kvxfer.core.session import Session
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.desk import Desk, Offered, Wanted
from kvxfer.driver.mapping import edge_plans, part_plan, read_plan, wanted_bytes
from kvxfer.driver.peers import Peers, RemotePeer
from kvxfer.driver.posting import OpEvent, Poster
from kvxfer.driver.staged import PartPlan, StagingBuffer
from kvxfer.errors import BadValue, KvxferError, RemoteFault, TransportFault
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import COMPLETION, TransportOps
from kvxfer.wire.codec import UnknownMessage, decode, encode
from kvxfer.wire.framing import FrameReader, frame

COMPLETIONS_PER_POLL = 256
NOTIFICATIONS_PER_POLL = 256


@attrs.frozen(kw_only=True)
class TraceRecord:
    """One step of a transfer: `t_ms` on this agent's clock."""

    t_ms: float
    transfer_id: TransferId
    attempt: int
    step: str


@attrs.define
class Turn:
    """What the caller carries out after a turn, in this order."""

    writes: list[tuple[LinkId, bytes]] = attrs.field(factory=list)
    closes: list[LinkId] = attrs.field(factory=list)
    dials: list[tuple[PeerKey, str, int]] = attrs.field(factory=list)
    results: list[rs.Result] = attrs.field(factory=list)
    drained: bool = False
    """All that was there when the agent was told to drain has ended."""
    progressed: bool = False


@attrs.define(kw_only=True)
class Pump:
    """One agent without its thread. All calls come from one owner (K3)."""

    config: AgentConfig
    ops: TransportOps
    incarnation: Incarnation
    session: Session = attrs.field(init=False)
    peers: Peers = attrs.field(init=False)
    poster: Poster = attrs.field(init=False)
    desk: Desk = attrs.field(init=False)
    trace: deque[TraceRecord] = attrs.field(init=False)
    _ended: list[OpEvent] = attrs.field(factory=list)
    """Ends of READs that wait for a time taken after the poll that told of them."""
    _transport: int = 0
    _regions: list[int] = attrs.field(factory=list)
    _turn: Turn = attrs.field(factory=Turn)
    _now_ms: float = 0.0
    _readers: dict[LinkId, FrameReader] = attrs.field(factory=dict)
    _dialled: dict[LinkId, PeerKey | None] = attrs.field(factory=dict)
    _completions: np.ndarray[tuple[int], np.dtype[np.void]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self._open_transport()
        self.peers = Peers(config, self.ops, self._transport, self._was_dialled)
        self.session = Session(
            me=Identity(
                engine_id=config.engine_id,
                rank=config.shard.rank,
                incarnation=self.incarnation,
                role=config.role,
                features=self._features(),
            ),
            limits=config.limits,
            timings=config.timings,
            describe=self.peers.describe,
            accept=self.peers.accept,
            check_digest=config.check_digest,
        )
        self.desk = Desk(config.limits, config.timings)
        self.poster = Poster(self.ops, self._transport, config.limits, self._claim)
        if config.staging is not None:
            self.poster.staging = StagingBuffer.of(config.staging, config.memories)
        self.trace = deque(maxlen=config.events_max)
        self._completions = np.zeros(COMPLETIONS_PER_POLL, COMPLETION)

    def _open_transport(self) -> None:
        status, self._transport = self.ops.open(self.config.transport_options)
        if status != Status.OK:
            raise TransportFault("open", status, self.ops.last_error(self._transport))
        self._check_caps()
        staging = () if self.config.staging is None else (self.config.staging,)
        for memory in (*self.config.memories, *staging):
            status, region = self.ops.register_region(self._transport, memory)
            if status != Status.OK:
                detail = self.ops.last_error(self._transport)
                self.ops.close(self._transport)
                raise TransportFault("register_region", status, detail)
            self._regions.append(region)

    def _check_caps(self) -> None:
        """Push needs a write whose notification comes after its bytes are visible (Q1).

        A producer alone lends its memory to whoever reads; it posts no read itself.
        """
        caps = self.ops.caps(self._transport)
        missing = (Caps.WRITE | Caps.NOTIFY_AFTER_VISIBLE) & ~caps
        if missing or caps & Caps.NEEDS_FLUSH:
            self.ops.close(self._transport)
            bound = "WRITE and NOTIFY_AFTER_VISIBLE, and no NEEDS_FLUSH: this version cannot flush"
            raise BadValue(f"capabilities of {self.ops.name}", str(caps), bound)
        pulls = self.config.initiator is Initiator.CONSUMER and self.config.role & Role.CONSUMER
        if pulls and not caps & Caps.READ:
            self.ops.close(self._transport)
            bound = "READ: with initiator CONSUMER (pull) this agent reads its producers' memory"
            raise BadValue(f"capabilities of {self.ops.name}", str(caps), bound)

    def _features(self) -> Feature:
        reads = self.ops.caps(self._transport) & Caps.READ
        return FEATURES if reads else FEATURES & ~Feature.PULL

    def close(self) -> None:
        """Drop everything; the caller has drained before where it could."""
        for region in self._regions:
            self.ops.deregister_region(self._transport, region)
        self.ops.close(self._transport)

    def _was_dialled(self, link: LinkId) -> bool:
        return self._dialled[link] is not None

    def _claim(self, op: OpId) -> bool:
        return self.session.claim(op, int(self._now_ms))

    # --- from the engine ---

    def submit(self, command: cmd.Command, now_ms: float) -> None:
        """Take one command. A bad one ends that transfer with a reason."""
        self._now_ms = now_ms
        # The book and the core agree only while nothing that was asked waits to be carried out.
        self._carry_out()
        self.session.handle(self.desk.event_of(command, now_ms), int(now_ms))
        self._carry_out()

    # --- from the network ---

    def link_opened(self, link: LinkId, dialled: PeerKey | None, now_ms: float) -> None:
        self._now_ms = now_ms
        limits = self.config.limits
        self._readers[link] = FrameReader(limits, limits.hello_bytes_max)
        self._dialled[link] = dialled
        self.session.open_link(link, dialled, int(now_ms))

    def dial_failed(self, peer: PeerKey, detail: str, now_ms: float) -> None:
        self._now_ms = now_ms
        event = ev.Unreachable(peer=peer, reason=Reason.UNREACHABLE, detail=detail)
        self.session.handle(event, int(now_ms))

    def link_bytes(self, link: LinkId, data: bytes, now_ms: float) -> None:
        """Bytes of a control connection. Whatever they are, only that link can suffer."""
        self._now_ms = now_ms
        reader = self._readers.get(link)
        if reader is None:
            return
        try:
            for payload in reader.feed(data):
                self._message(link, payload)
            # A bad length behind good messages shows at the next call.
            reader.feed(b"")
        except RemoteFault as fault:
            self.config.logger.warning("link %d ended: %s", link, fault)
            self.session.fault(link, str(fault), int(now_ms))

    def _message(self, link: LinkId, payload: bytes) -> None:
        try:
            message = decode(payload, self.config.limits)
        except UnknownMessage:
            # A newer minor version may send more than we know (spec section 5).
            self.session.ctx.counters["unknown_messages"] += 1
            return
        if isinstance(message, Done):
            raise RemoteFault("DONE", "on the control connection", "only as a notification")
        self.session.receive(link, message, int(self._now_ms))

    def link_closed(self, link: LinkId, reason: Reason, now_ms: float) -> None:
        self._now_ms = now_ms
        if link not in self._readers:
            return
        # What the transport has delivered already counts before the loss does.
        self._drain_transport()
        self._forget_link(link)
        self.session.close_link(link, reason, int(now_ms))

    def _forget_link(self, link: LinkId) -> None:
        self._readers.pop(link, None)
        self.peers.end_link(link)
        self._dialled.pop(link, None)

    # --- turning ---

    def turn(self, now_ms: float, *, signalled: bool = False) -> Turn:
        """Advance everything once; never waits. `signalled`: the transport's wake-up fired."""
        self._now_ms = now_ms
        self.session.advance(int(now_ms))
        ended, self._ended = self._ended, []
        for event in ended:
            self._op_event(event)
        moved = self._drain_transport() if signalled or self.busy() else False
        self._carry_out()
        for event in self.poster.turn(now_ms):
            moved = True
            self._op_event(event)
        while self.poster.failed_links:
            link = self.poster.failed_links.pop()
            self.session.drop(link, Reason.TRANSPORT_FAILED, int(now_ms))
        self._carry_out()
        self.peers.sweep(self.session.needs_fence)
        turn, self._turn = self._turn, Turn()
        turn.progressed = moved or bool(turn.writes or turn.results or turn.closes or turn.dials)
        turn.progressed = turn.progressed or bool(self._ended) or turn.drained
        return turn

    def busy(self) -> bool:
        """True while the transport has to be polled."""
        session = self.session
        return bool(
            self.poster.active
            or session.consumer.registrations
            or session.ctx.fences
            or session.producer.lenders.lent
        )

    @property
    def drives_arrivals(self) -> bool:
        """True where what a peer writes lands only while we call into the transport (K-8.2.5)."""
        return bool(self.ops.caps(self._transport) & Caps.TARGET_MUST_PROGRESS)

    def wakeup_fd(self) -> int | None:
        """What turns readable when the transport has something for us, where it has that."""
        if not self.ops.caps(self._transport) & Caps.WAKEUP_FD:
            return None
        status, fd = self.ops.wakeup_fd(self._transport)
        return fd if status == Status.OK else None

    def next_deadline_ms(self) -> int | None:
        return self.session.next_deadline_ms()

    def _drain_transport(self) -> bool:
        moved = False
        while True:
            status, count = self.ops.poll(self._transport, self._completions)
            if status < 0:
                raise TransportFault("poll", Status(status), self.ops.last_error(self._transport))
            for record in self._completions[:count]:
                self._completed(int(record["request"]), int(record["status"]))
            moved = moved or count > 0
            if count < COMPLETIONS_PER_POLL:
                break
        while True:
            status, notices = self.ops.poll_notifications(self._transport, NOTIFICATIONS_PER_POLL)
            for handle, payload in notices:
                self._notification(handle, payload)
            moved = moved or bool(notices)
            if status < 0 or len(notices) < NOTIFICATIONS_PER_POLL:
                return moved

    def _completed(self, request: int, status: int) -> None:
        is_read = self.poster.is_read(request)
        events = self.poster.completed(request, status)
        if is_read:
            # It counts only if it ended within a lease: the time to compare is that of the
            # next turn, which comes at once.
            self._ended += events
            return
        for event in events:
            self._op_event(event)

    def _notification(self, handle: int, payload: bytes) -> None:
        remote = self.peers.by_handle.get(handle)
        if remote is None:
            return
        try:
            message: Message = decode(payload, self.config.limits)
            if not isinstance(message, Done):
                raise RemoteFault("notification", type(message).__name__, "DONE")
        except RemoteFault as fault:
            self.session.fault(remote.link, str(fault), int(self._now_ms))
            return
        self.session.receive(remote.link, message, int(self._now_ms))

    def _op_event(self, event: ev.OpEnded | ev.OpNotPosted) -> None:
        self.session.handle(event, int(self._now_ms))

    # --- carrying out ---

    def _carry_out(self) -> None:
        while batch := self.session.poll():
            for effect in batch:
                self._effect(effect)

    def _effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send():
                self._turn.writes.append((effect.link, frame(encode(effect.message))))
            case fx.Dial():
                self._dial(effect.peer)
            case fx.DropLink():
                self._forget_link(effect.link)
                self._turn.closes.append(effect.link)
            case fx.Resolve():
                self._resolve(effect)
            case fx.Fence():
                self._fence(effect.peer)
            case fx.Post():
                self._post(effect)
            case fx.StopOp():
                for event in self.poster.stop(effect.op):
                    self._op_event(event)
            case fx.TellLanded() | fx.TellLost() | fx.TellLetGo() | fx.TellSent() | fx.TellUnsent():
                result = self.desk.result_of(effect, self.session, self._now_ms)
                self._turn.results.append(result)
            case fx.TellDrained():
                self._turn.drained = True
            case fx.Trace():
                self._trace(effect)
            case _:
                assert_never(effect)

    def _dial(self, peer: PeerKey) -> None:
        address = self.desk.addresses.get(peer)
        if address is None:
            self.dial_failed(peer, "no address known", self._now_ms)
            return
        self._turn.dials.append((peer, *address))

    def _resolve(self, effect: fx.Resolve) -> None:
        wanted = None if effect.silent else self.desk.wanted[effect.transfer_id, effect.tag]
        command = wanted.command if wanted is not None else None
        live = self.session.ctx.links
        remotes = [self.peers.by_link[k] for k in effect.links if k in live]
        try:
            # Where a link died within this batch, the core dials it again.
            whole = len(remotes) == len(effect.links)
            edges = self._edge_plans(remotes, command) if whole else ()
        except KvxferError as error:
            event: ev.Unresolvable | ev.Resolved = ev.Unresolvable(
                transfer_id=effect.transfer_id,
                attempt=effect.attempt,
                reason=Reason.OUT_OF_BOUNDS,
                detail=str(error),
            )
        except Exception as error:
            self.config.logger.exception("transfer %s", effect.transfer_id)
            event = ev.Unresolvable(
                transfer_id=effect.transfer_id,
                attempt=effect.attempt,
                reason=Reason.LAYOUT_REFUSED,
                detail=repr(error),
            )
        else:
            event = ev.Resolved(transfer_id=effect.transfer_id, attempt=effect.attempt, edges=edges)
            if wanted is not None:
                wanted.bytes_wanted = wanted_bytes(self.config.shard, wanted.command)
        self.session.handle(event, int(self._now_ms))

    def _edge_plans(
        self, remotes: list[RemotePeer], command: cmd.Register | None
    ) -> tuple[ev.EdgePlan, ...]:
        for remote in remotes:
            remote.features = self.session.ctx.links[remote.link].features
        return edge_plans(self.config.shard, remotes, command, self.config.limits)

    def _fence(self, peer: Peer) -> None:
        fenced = self.peers.fence(peer)
        if not fenced:
            self.config.logger.warning(
                "%s not fenced: %s", peer.key, self.ops.last_error(self._transport)
            )
        self.session.handle(ev.FenceResult(peer=peer, fenced=fenced), int(self._now_ms))

    def _post(self, effect: fx.Post) -> None:
        tid = effect.grant.header.transfer_id
        try:
            if effect.offer is None:
                self._post_write(effect, self.desk.offered.get((tid, effect.tag)))
            else:
                self._post_read(effect, self.desk.wanted.get((tid, effect.tag)))
        except KvxferError as error:
            self.config.logger.warning("transfer %s not posted: %s", tid, error)
            self._op_event(ev.OpNotPosted(op=effect.op, reason=Reason.OUT_OF_BOUNDS))
        except Exception:
            self.config.logger.exception("transfer %s", tid)
            self._op_event(ev.OpNotPosted(op=effect.op, reason=Reason.PROTOCOL_ERROR))

    def _post_write(self, effect: fx.Post, offered: Offered | None) -> None:
        remote = self.peers.by_link.get(effect.link)
        if remote is None or offered is None:
            self._op_event(ev.OpNotPosted(op=effect.op, reason=Reason.PEER_LOST))
            return
        plan = part_plan(self.peers, remote, effect, offered.command, self.config.limits)
        offered.first_post_ms = offered.first_post_ms or self._now_ms
        offered.bytes_written += plan.bytes_total
        offered.descriptors += plan.descriptor_count
        header = self.session.ctx.header(effect.grant.header.key, effect.peer)
        self.poster.add(effect, remote, plan, encode(Done(header=header, part=effect.part)))

    def _post_read(self, effect: fx.Post, wanted: Wanted | None) -> None:
        remote = self.peers.by_link.get(effect.link)
        if remote is None or wanted is None:
            self._op_event(ev.OpNotPosted(op=effect.op, reason=Reason.PEER_LOST))
            return
        plan = read_plan(self.peers, remote, effect, wanted.command, self.config.limits)
        wanted.bytes_read += plan.bytes_total
        wanted.descriptors += plan.descriptor_count
        self.poster.add(effect, remote, PartPlan.of(plan), None)

    def _trace(self, effect: fx.Trace) -> None:
        record = TraceRecord(
            t_ms=self._now_ms,
            transfer_id=effect.transfer_id,
            attempt=effect.attempt,
            step=effect.step,
        )
        self.trace.append(record)
        self.config.logger.debug(
            "%s %s attempt %d", effect.step, effect.transfer_id, effect.attempt
        )

    # --- views ---

    def counters(self) -> dict[str, int]:
        """Plain numbers, taken between turns."""
        counts = dict(self.session.ctx.counters)
        counts["live"] = self.session.live()
        counts["quarantined"] = self.session.consumer.quarantined()
        counts["links"] = len(self.session.ctx.links)
        counts["bytes_written"] = self.poster.bytes_posted
        counts["descriptors_posted"] = self.poster.descriptors_posted
        counts["bytes_read"] = self.poster.bytes_read
        counts["bytes_received"] = self.desk.bytes_received
        return counts
