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
from kvxfer.driver.commands import Command
from kvxfer.driver.pump import Pump, Turn
from kvxfer.driver.results import Result

READ_BYTES = 1 << 16
ACCEPT_PAUSE_S = 0.1
CLOSE_S = 1.0
POLL_MIN_S = 50e-6
POLL_MAX_S = 2e-3
"""While the transport has to be polled the loop sleeps between these bounds, doubling."""
PUBLISH_MS = 100.0
"""While it only polls, the loop publishes its counters so often."""
BACKLOG_BYTES_MAX = 64 << 20
"""A peer that does not read its control connection is cut off at this backlog."""


def clock_ms() -> float:
    """Monotonic milliseconds of this side; never on the wire (J1)."""
    return time.monotonic() * 1e3


@attrs.define(eq=False)
class _Connection:
    """One control connection: its stream and what waits to be written."""

    stream: trio.SocketStream
    scope: trio.CancelScope
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
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _stopping: bool = False
    _drain_s: float = 0.0
    _links: dict[LinkId, _Connection] = attrs.field(factory=dict)
    _link_ids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    _nursery: trio.Nursery = attrs.field(init=False)
    _watched: bool = False
    """The transport wakes us by itself."""
    _signalled: bool = False
    _published_ms: float = 0.0
    _turned: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        self._wake.set()

    def stop(self, drain_s: float) -> None:
        """End the loop: refuse, drain for at most `drain_s`, say bye, close (P1)."""
        self._stopping = True
        self._drain_s = drain_s
        self.wake()

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for listener in self.listeners:
                self._nursery.start_soon(self._accept, listener)
            fd = self.pump.wakeup_fd()
            if fd is not None:
                # Where arrivals need our calls, a descriptor cannot speak of what did not arrive.
                self._watched = not self.pump.drives_arrivals
                self._nursery.start_soon(self._watch, fd)
            await self._turn_until(lambda: self._stopping)
            await self._shut_down()
            self._nursery.cancel_scope.cancel()

    async def _shut_down(self) -> None:
        self.pump.session.shut_down(int(clock_ms()))
        with trio.move_on_after(self._drain_s):
            await self._turn_until(lambda: self.pump.session.live() == 0)
        self._carry(self.pump.turn(clock_ms()))
        self.pump.session.say_bye(Reason.SHUTDOWN)
        self._carry(self.pump.turn(clock_ms()))
        with trio.move_on_after(min(1.0, self._drain_s)):
            while any(c.backlog for c in self._links.values()):
                await trio.sleep(POLL_MAX_S)

    # --- the rhythm ---

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
                await trio.lowlevel.checkpoint()
            else:
                await self._rest(pause_s)
                pause_s = min(pause_s * 2, POLL_MAX_S)

    async def _rest(self, pause_s: float) -> None:
        """Sleep until woken, until the next deadline, or for a poll's pause."""
        deadline_ms = self.pump.next_deadline_ms()
        until_s = math.inf
        if deadline_ms is not None:
            until_s = max(0.0, (deadline_ms - clock_ms()) / 1e3)
        # While nothing of ours is posted, a transport that wakes us needs no polling.
        if self.pump.busy() and (self.pump.poster.active or not self._watched):
            until_s = min(until_s, pause_s)
        # A timer or a command may have moved counters without moving anything else.
        if until_s > POLL_MAX_S or clock_ms() - self._published_ms > PUBLISH_MS:
            self._publish_counters()
        with trio.move_on_after(until_s):
            await self._wake.wait()

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
                await stream.aclose()
                continue
            self._nursery.start_soon(self._serve, stream, None)

    async def _dial(self, peer: PeerKey, host: str, port: int) -> None:
        try:
            with trio.fail_after(self.pump.config.timings.handshake_ms / 1e3):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, ValueError, trio.TooSlowError) as error:
            # ValueError: a name that cannot be a host name, by IDNA's rules or ours.
            detail = f"{host}:{port}: {error or 'no answer'}"
            self.pump.dial_failed(peer, detail, clock_ms())
            self.wake()
            return
        await self._serve(stream, peer)

    async def _serve(self, stream: trio.SocketStream, dialled: PeerKey | None) -> None:
        """Run one connection until it ends on either side."""
        link = LinkId(next(self._link_ids))
        try:
            async with trio.open_nursery() as nursery:
                connection = _Connection(stream, nursery.cancel_scope)
                self._links[link] = connection
                self.pump.link_opened(link, dialled, clock_ms())
                self.wake()
                nursery.start_soon(self._write_all, connection)
                await self._read_all(link, connection)
                nursery.cancel_scope.cancel()
        finally:
            # Also where the whole loop ends: no await here, so a cancel cannot leave it open.
            stream.socket.close()
            self._links.pop(link, None)
            self.pump.link_closed(link, Reason.PEER_LOST, clock_ms())
            self.wake()

    async def _read_all(self, link: LinkId, connection: _Connection) -> None:
        while True:
            try:
                data = await connection.stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            self.pump.link_bytes(link, bytes(data), clock_ms())
            self.wake()

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
