"""The trio loop of one agent: sockets, time and sleep around the pump.

Owns the control connections and the writer thread's rhythm. Knows no protocol.
Invariants: every call of the pump comes from this loop (K3); a dead or slow
peer delays nobody else, since dialling, reading and writing are tasks of their
own (K1); transfers progress with no step of the engine (K2).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable

import attrs
import trio

from kvxfer.core.ids import LinkId, PeerKey, Reason
from kvxfer.driver.bell import Bell
from kvxfer.driver.commands import Command
from kvxfer.driver.config import OFF_LOOPBACK
from kvxfer.driver.lobby import Lobby
from kvxfer.driver.pump import Pump, Turn
from kvxfer.driver.rate import Bucket
from kvxfer.driver.results import Result
from kvxfer.driver.tls import TlsContexts

READ_BYTES = 1 << 16
ACCEPT_PAUSE_S = 0.1
CLOSE_S = 1.0
POLL_MIN_S = 50e-6
POLL_MAX_S = 2e-3
"""While the transport has to be polled the loop sleeps between these bounds, doubling."""
PUBLISH_MS = 100.0
"""While it only polls, the loop publishes its counters so often."""
STALL_MS = 1_000.0
"""A timer that is due for so long shows that the loop did not run: it never sleeps past one."""
CATCH_UP_S = 0.02
"""Time for the loop's other tasks to read what has come."""
BACKLOG_BYTES_MAX = 64 << 20
"""A peer that does not read its control connection is cut off at this backlog."""


def clock_ms() -> float:
    """Monotonic milliseconds of this side; never on the wire (J1)."""
    return time.monotonic() * 1e3


Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


@attrs.define(eq=False)
class _Connection:
    """One control connection: its stream and what waits to be written."""

    stream: Stream
    scope: trio.CancelScope
    bucket: Bucket
    backlog: deque[bytes] = attrs.field(factory=deque)
    backlog_bytes: int = 0
    more: trio.Event = attrs.field(factory=trio.Event)
    closing: bool = False


@attrs.define(kw_only=True)
class Loop:
    """Runs a pump until told to stop."""

    pump: Pump
    listeners: list[trio.SocketListener]
    mailbox: deque[tuple[Command, float]]
    """Commands, each with the time at which the engine gave it."""
    deliver: Callable[[list[Result]], None]
    publish: Callable[[dict[str, int]], None]
    on_drained: Callable[[], None] = lambda: None
    on_kept: Callable[[], None] = lambda: None
    """Told where the loop was to end only if nothing was left, and something was."""
    tls: TlsContexts | None = None
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _bell: Bell = attrs.field(factory=Bell)
    _resting: bool = False
    """The loop sleeps, or is about to: a command has to wake it."""
    _stopping: bool = False
    _drain_s: float = 0.0
    _only_if_empty: bool = False
    _links: dict[LinkId, _Connection] = attrs.field(factory=dict)
    _link_ids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    _guests: itertools.count[int] = attrs.field(factory=itertools.count)
    _lobby: Lobby = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _watched: bool = False
    """The transport wakes us by itself."""
    _signalled: bool = False
    _published_ms: float = 0.0
    _turned: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._lobby = Lobby(self.pump.config.limits.half_open_max)

    def wake(self) -> None:
        self._wake.set()

    def call(self) -> bool:
        """From any thread, after a command was put into the mailbox. False: the loop has ended."""
        return self._bell.ring() if self._resting else not self._bell.closed

    def stop(self, drain_s: float, *, only_if_empty: bool = False) -> None:
        """End the loop: refuse, drain for at most `drain_s`, say bye, close (P1).

        `only_if_empty`: where something is left then, go on and call `on_kept`.
        """
        self._stopping = True
        self._drain_s = drain_s
        self._only_if_empty = only_if_empty
        self.wake()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._bell.close()

    async def _run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._listen_to_bell)
            for listener in self.listeners:
                self._nursery.start_soon(self._accept, listener)
            fd = self.pump.wakeup_fd()
            if fd is not None:
                # Where arrivals need our calls, a descriptor cannot speak of what did not arrive.
                self._watched = not self.pump.drives_arrivals
                self._nursery.start_soon(self._watch, fd)
            while not self._stopping:
                await self._turn_until(lambda: self._stopping)
                await self._shut_down()
            self._nursery.cancel_scope.cancel()

    async def _shut_down(self) -> None:
        self.pump.session.shut_down(int(clock_ms()))
        with trio.move_on_after(self._drain_s):
            await self._turn_until(lambda: self.pump.session.live() == 0)
        self._carry(self.pump.turn(clock_ms()))
        if self._only_if_empty and self.pump.session.live():
            self._stopping = False
            self.on_kept()
            return
        self.pump.session.say_bye(Reason.SHUTDOWN)
        self._carry(self.pump.turn(clock_ms()))
        with trio.move_on_after(min(1.0, self._drain_s)):
            while any(c.backlog for c in self._links.values()):
                await trio.sleep(POLL_MAX_S)

    # --- the rhythm ---

    async def _listen_to_bell(self) -> None:
        while True:
            await self._bell.rung()
            self.wake()

    async def _watch(self, fd: int) -> None:
        """Wake the loop when the transport has something, then wait until it was fetched."""
        while True:
            await trio.lowlevel.wait_readable(fd)
            self._turned = trio.Event()
            self._signalled = True
            self.wake()
            await self._turned.wait()

    async def _turn_until(self, done: Callable[[], bool]) -> None:
        pause_s = POLL_MIN_S
        while True:
            self._wake = trio.Event()
            now_ms = clock_ms()
            if self.pump.late_ms(now_ms) > STALL_MS:
                now_ms = await self._catch_up()
            while self.mailbox:
                command, given_ms = self.mailbox.popleft()
                self.pump.watch.meter.lag.observe(max(0.0, now_ms - given_ms) / 1e3)
                self.pump.submit(command, now_ms)
            turn = self.pump.turn(now_ms, signalled=self._signalled)
            self._signalled = False
            self._turned.set()
            self._carry(turn)
            if done():
                return
            if turn.progressed:
                meter = self.pump.watch.meter
                meter.turn.observe((clock_ms() - now_ms) / 1e3)
                meter.cpu_s = time.thread_time()
                pause_s = POLL_MIN_S
                await self._breathe(now_ms, turn)
            else:
                await self._rest(pause_s)
                pause_s = min(pause_s * 2, POLL_MAX_S)

    async def _catch_up(self) -> float:
        """The loop did not run when a timer was due: this process, or all of the host, stood still.

        What the peers sent meanwhile is read before anything is judged by its age.
        """
        await trio.sleep(CATCH_UP_S)
        now_ms = clock_ms()
        self.pump.config.logger.warning("stood still: a timer fires late")
        self.pump.resumed(now_ms)
        return now_ms

    async def _breathe(self, began_ms: float, turn: Turn) -> None:
        """Let the loop's other tasks run, and under a flood the engine's threads, too.

        A loop that is kept busy by what is good for nothing leaves at least half of the time:
        else the engine would wait for the interpreter lock again and again.
        """
        if turn.flooded:
            self.pump.session.ctx.counters["flood_pauses"] += 1
            await trio.sleep((clock_ms() - began_ms) / 1e3)
        else:
            await trio.lowlevel.checkpoint()

    async def _rest(self, pause_s: float) -> None:
        """Sleep until woken, until the next deadline, or for a poll's pause."""
        deadline_ms = self.pump.next_deadline_ms()
        until_s = math.inf
        if deadline_ms is not None:
            until_s = max(0.0, (deadline_ms - clock_ms()) / 1e3)
        # While nothing of ours is posted, a transport that wakes us needs no polling.
        if self.pump.busy() and (self.pump.poster.active or not self._watched):
            until_s = min(until_s, pause_s)
        self._resting = True
        if self.mailbox:
            self.wake()
        # A timer or a command may have moved counters without moving anything else.
        if until_s > POLL_MAX_S or clock_ms() - self._published_ms > PUBLISH_MS:
            self._publish_counters()
        with trio.move_on_after(until_s):
            await self._wake.wait()
        self._resting = False

    def _carry(self, turn: Turn) -> None:
        for link, data in turn.writes:
            self._write(link, data)
        for link in turn.closes:
            self._close(link)
        for peer, host, port in turn.dials:
            self._nursery.start_soon(self._dial, peer, host, port)
        if turn.progressed:
            self._publish_counters()
        if turn.results:
            self.deliver(turn.results)
        if turn.drained:
            self.on_drained()

    def _publish_counters(self) -> None:
        self._published_ms = clock_ms()
        self.publish(self.pump.counters())

    # --- connections ---

    async def _accept(self, listener: trio.SocketListener) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                # Out of descriptors, or the caller has left: nobody else may suffer for it.
                self.pump.config.logger.warning("a connection could not be accepted: %s", error)
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._links) >= self.pump.config.limits.links_max:
                stream.socket.close()
                continue
            self._nursery.start_soon(self._receive_guest, stream)

    async def _receive_guest(self, stream: trio.SocketStream) -> None:
        """Serve whoever called; until he has finished the handshake he may have to leave."""
        guest, address = next(self._guests), _address(stream)
        with trio.CancelScope() as scope:
            self._lobby.enter(address, guest, scope.cancel)
            try:
                await self._serve(stream, None, lambda: self._lobby.exit(address, guest))
            finally:
                self._lobby.exit(address, guest)

    async def _dial(self, peer: PeerKey, host: str, port: int) -> None:
        if not self.pump.config.may_reach(host):
            self._dial_failed(peer, f"{host}: {OFF_LOOPBACK}")
            return
        try:
            with trio.fail_after(self.pump.config.timings.handshake_ms / 1e3):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, ValueError, trio.TooSlowError) as error:
            # ValueError: a name that cannot be a host name, by IDNA's rules or ours.
            self._dial_failed(peer, f"{host}:{port}: {error or 'no answer'}")
            return
        await self._serve(stream, peer, host=host)

    def _dial_failed(self, peer: PeerKey, detail: str) -> None:
        self.pump.dial_failed(peer, detail, clock_ms())
        self.wake()

    async def _serve(
        self,
        raw: trio.SocketStream,
        dialled: PeerKey | None,
        on_up: Callable[[], None] = lambda: None,
        host: str = "",
    ) -> None:
        """Run one connection until it ends on either side."""
        try:
            stream = await self._secured(raw, host)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            why = f"no TLS with {host or _address(raw)}: {error.__cause__ or error}"
            self.pump.config.logger.warning("%s", why)
            if dialled is not None:
                self._dial_failed(dialled, why)
            raw.socket.close()
            return
        except BaseException:
            raw.socket.close()
            raise
        link = LinkId(next(self._link_ids))
        try:
            async with trio.open_nursery() as nursery:
                connection = _Connection(stream, nursery.cancel_scope, self._bucket())
                self._links[link] = connection
                self.pump.link_opened(link, dialled, clock_ms())
                self.wake()
                nursery.start_soon(self._write_all, connection)
                await self._read_all(link, connection, on_up)
                nursery.cancel_scope.cancel()
        finally:
            # Also where the whole loop ends: no await here, so a cancel cannot leave it open.
            raw.socket.close()
            self._links.pop(link, None)
            self.pump.link_closed(link, Reason.PEER_LOST, clock_ms())
            self.wake()

    async def _secured(self, raw: trio.SocketStream, host: str) -> Stream:
        """The connection, over TLS where this agent has it. `host`: the one dialled, or empty."""
        if self.tls is None:
            return raw
        context = self.tls.dialling if host else self.tls.accepting
        stream = trio.SSLStream(
            raw, context, server_hostname=host or None, server_side=not host, https_compatible=True
        )
        with trio.fail_after(self.pump.config.timings.handshake_ms / 1e3):
            await stream.do_handshake()
        return stream

    def _bucket(self) -> Bucket:
        limits = self.pump.config.limits
        return Bucket(limits.messages_per_s_max, limits.messages_burst_max)

    async def _read_all(
        self, link: LinkId, connection: _Connection, on_up: Callable[[], None]
    ) -> None:
        is_up = False
        while True:
            try:
                data = await connection.stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            count = self.pump.link_bytes(link, bytes(data), clock_ms())
            # Not kept while nothing comes: thousands of links would hold READ_BYTES each.
            del data
            self.wake()
            if not is_up and self.pump.link_is_up(link):
                is_up = True
                on_up()
            pause_s = connection.bucket.pause_s(count, clock_ms())
            if pause_s > 0:
                # What is not read fills the peer's own buffers: it is slowed down, nobody else.
                await trio.sleep(pause_s)

    async def _write_all(self, connection: _Connection) -> None:
        while True:
            if connection.backlog:
                data = b"".join(connection.backlog)
                connection.backlog.clear()
                connection.backlog_bytes = 0
                try:
                    await connection.stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
                del data
            elif connection.closing:
                break
            else:
                connection.more = trio.Event()
                await connection.more.wait()
        connection.scope.cancel()

    def _write(self, link: LinkId, data: bytes) -> None:
        connection = self._links.get(link)
        if connection is None:
            return
        connection.backlog.append(data)
        connection.backlog_bytes += len(data)
        if connection.backlog_bytes > BACKLOG_BYTES_MAX:
            connection.scope.cancel()
        connection.more.set()

    def _close(self, link: LinkId) -> None:
        """Close once what was written before has left."""
        connection = self._links.get(link)
        if connection is not None:
            # A peer that does not read must not keep the connection open.
            connection.scope.deadline = trio.current_time() + CLOSE_S
            connection.closing = True
            connection.more.set()


def _address(stream: trio.SocketStream) -> str:
    """Where a connection came from; empty where it has gone already."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
