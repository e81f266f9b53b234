"""The pump: core, layout, wire and transport joined, without threads or sockets.

Owns the carrying out of effects and the feeding of events. The caller gives the
time and the bytes of each link and takes bytes, dials and results out; nothing
blocks. The trio driver runs it for engines, the simulated world runs it with
virtual time. Invariant: effects are carried out in the order of the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import assert_never

import attrs
import numpy as np

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.credentials import NONCE_BYTES
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
)
from kvxfer.core.messages import Done, Message
from kvxfer.core.session import Session
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.driver.channel import Channel
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.counts import counters_of
from kvxfer.driver.desk import Desk, Offered, Wanted
from kvxfer.driver.mapping import edge_plans, part_plan, read_plan, wanted_bytes
from kvxfer.driver.peers import Peers, RemotePeer
from kvxfer.driver.posting import OpEvent, Poster
from kvxfer.driver.staged import PartPlan, StagingBuffer
from kvxfer.driver.watch import Watch
from kvxfer.errors import BadValue, KvxferError, RemoteFault, TransportFault
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import COMPLETION, TransportOps
from kvxfer.wire.codec import UnknownMessage, decode

COMPLETIONS_PER_POLL = 256
NOTIFICATIONS_PER_POLL = 256


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
    flooded: bool = False
    """As many notices came as a turn may take, and most were good for nothing."""


def draw_nonce() -> bytes:
    """From the system's source: nobody can foresee it, and it never comes twice."""
    return secrets.token_bytes(NONCE_BYTES)


@attrs.define(kw_only=True)
class Pump:
    """One agent without its thread. All calls come from one owner (K3)."""

    config: AgentConfig
    ops: TransportOps
    incarnation: Incarnation
    nonce: Callable[[], bytes] = draw_nonce
    """Drawn for each link where there are keys."""
    session: Session = attrs.field(init=False)
    peers: Peers = attrs.field(init=False)
    poster: Poster = attrs.field(init=False)
    desk: Desk = attrs.field(init=False)
    watch: Watch = attrs.field(init=False)
    _ended: list[OpEvent] = attrs.field(factory=list)
    """Ends of READs that wait for a time taken after the poll that told of them."""
    _transport: int = 0
    _regions: list[int] = attrs.field(factory=list)
    _turn: Turn = attrs.field(factory=Turn)
    _now_ms: float = 0.0
    _channels: dict[LinkId, Channel] = attrs.field(factory=dict)
    _dialled: dict[LinkId, PeerKey | None] = attrs.field(factory=dict)
    _completions: np.ndarray[tuple[int], np.dtype[np.void]] = attrs.field(init=False)
    _more_notices: bool = False
    """A turn took as many as it may."""

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
        self.watch = Watch.of(config)
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
        self.watch.asked(command, now_ms)
        self.session.handle(self.desk.event_of(command, now_ms), int(now_ms))
        self._carry_out()

    # --- from the network ---

    def link_opened(self, link: LinkId, dialled: PeerKey | None, now_ms: float) -> None:
        self._now_ms = now_ms
        config = self.config
        # The keys of now: a link outlives the rotation of those that it was opened with.
        keys = config.keys.current(config.logger) if config.keys is not None else None
        channel = Channel(limits=config.limits, dialled=dialled is not None, keys=keys)
        self._channels[link] = channel
        self._dialled[link] = dialled
        nonce = self.nonce() if keys is not None else b""
        credentials = channel.credentials(nonce, required=config.authenticates)
        self.session.open_link(link, dialled, int(now_ms), credentials)

    def dial_failed(self, peer: PeerKey, detail: str, now_ms: float) -> None:
        self._now_ms = now_ms
        event = ev.Unreachable(peer=peer, reason=Reason.UNREACHABLE, detail=detail)
        self.session.handle(event, int(now_ms))

    def link_bytes(self, link: LinkId, data: bytes, now_ms: float) -> int:
        """Bytes of a control connection. Whatever they are, only that link can suffer.

        Gives the number of messages that they made whole.
        """
        self._now_ms = now_ms
        channel = self._channels.get(link)
        if channel is None:
            return 0
        count = 0
        try:
            for payload in channel.incoming(data):
                count += 1
                self._message(link, channel, payload)
        except RemoteFault as fault:
            self.config.logger.warning("link %d ended: %s", link, fault)
            self.session.fault(link, str(fault), int(now_ms))
        return count

    def link_is_up(self, link: LinkId) -> bool:
        """Is the handshake over, and the link not?"""
        return link in self.session.ctx.links

    def _message(self, link: LinkId, channel: Channel, payload: bytes) -> None:
        try:
            message = decode(payload, self.config.limits)
        except UnknownMessage:
            # A newer minor version may send more than we know (spec section 5).
            self.session.ctx.counters["unknown_messages"] += 1
            return
        if isinstance(message, Done):
            raise RemoteFault("DONE", "on the control connection", "only as a notification")
        channel.took(message, payload)
        self.session.receive(link, message, int(self._now_ms))

    def link_closed(self, link: LinkId, reason: Reason, now_ms: float) -> None:
        self._now_ms = now_ms
        if link not in self._channels:
            return
        # What the transport has delivered already counts before the loss does.
        self._drain_transport(self.config.limits.notices_at_loss_max)
        self._forget_link(link)
        self.session.close_link(link, reason, int(now_ms))

    def _forget_link(self, link: LinkId) -> None:
        self._channels.pop(link, None)
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
        wanted = signalled or self._more_notices or self.busy()
        moved = self._drain_transport(self.config.limits.notices_per_turn_max) if wanted else False
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

    def late_ms(self, now_ms: float) -> float:
        """For how long a timer has been due."""
        due_ms = self.session.next_deadline_ms()
        return 0.0 if due_ms is None else max(0.0, now_ms - due_ms)

    def resumed(self, now_ms: float) -> None:
        """The caller had not come for a while; it has read since what the links had."""
        self._now_ms = now_ms
        self._drain_transport(self.config.limits.notices_at_loss_max)
        self.session.resumed(int(now_ms))

    def next_deadline_ms(self) -> int | None:
        return self.session.next_deadline_ms()

    def _drain_transport(self, notices_max: int) -> bool:
        """Take in all that ended and, up to a bound that no flood can lift, all that arrived."""
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
        return self._drain_notices(notices_max) > 0 or moved

    def _drain_notices(self, notices_max: int) -> int:
        taken = good = 0
        self._more_notices = True
        while taken < notices_max:
            status, notices = self.ops.poll_notifications(self._transport, NOTIFICATIONS_PER_POLL)
            good += sum(self._notification(handle, payload) for handle, payload in notices)
            taken += len(notices)
            if status < 0 or len(notices) < NOTIFICATIONS_PER_POLL:
                self._more_notices = False
                break
        self._turn.flooded = self._more_notices and good < taken / 2
        return taken

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

    def _notification(self, handle: int, payload: bytes) -> bool:
        """False where it cannot come from a peer that we have a link with."""
        remote = self.peers.by_handle.get(handle)
        channel = self._channels.get(remote.link) if remote is not None else None
        if remote is None or channel is None:
            self.session.ctx.counters["late_messages"] += 1
            return False
        opened = channel.opened_notice(payload)
        if opened is None:
            # Whoever can send to our transport can send this. It must not end the link of
            # the peer in whose name it came.
            self.session.ctx.counters["forged_notices"] += 1
            return False
        try:
            message: Message = decode(opened, self.config.limits)
            if not isinstance(message, Done):
                raise RemoteFault("notification", type(message).__name__, "DONE")
        except RemoteFault as fault:
            self.session.fault(remote.link, str(fault), int(self._now_ms))
            return True
        self.session.receive(remote.link, message, int(self._now_ms))
        return True

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
                self._send(effect)
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
                self.watch.told(result, self._now_ms)
                self._turn.results.append(result)
            case fx.TellDrained():
                self._turn.drained = True
            case fx.Trace():
                self.watch.traced(effect, self._now_ms)
            case _:
                assert_never(effect)

    def _send(self, effect: fx.Send) -> None:
        channel = self._channels.get(effect.link)
        if channel is not None:
            self._turn.writes.append((effect.link, channel.outgoing(effect.message)))

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
        notice = self._channels[remote.link].notice(Done(header=header, part=effect.part))
        self.poster.add(effect, remote, plan, notice)

    def _post_read(self, effect: fx.Post, wanted: Wanted | None) -> None:
        remote = self.peers.by_link.get(effect.link)
        if remote is None or wanted is None:
            self._op_event(ev.OpNotPosted(op=effect.op, reason=Reason.PEER_LOST))
            return
        plan = read_plan(self.peers, remote, effect, wanted.command, self.config.limits)
        wanted.bytes_read += plan.bytes_total
        wanted.descriptors += plan.descriptor_count
        self.poster.add(effect, remote, PartPlan.of(plan), None)

    # --- views ---

    def counters(self) -> dict[str, int]:
        """Plain numbers, taken between turns."""
        return counters_of(self.session, self.poster, self.desk, self.watch)
