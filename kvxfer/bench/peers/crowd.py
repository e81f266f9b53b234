"""Peers that share one thread: each with its own session, connection and transport session.

Owns that thread and its trio loop. Knows no load. Invariants: every peer is driven by the
same `Loop` and `Pump` as an agent's; a crowd that is frozen reads no socket, takes no
notice and answers nobody until it is thawed.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence

import attrs
import trio

from kvxfer.core.ids import Incarnation
from kvxfer.driver import AgentConfig
from kvxfer.driver.commands import Command
from kvxfer.driver.loop import Loop, clock_ms
from kvxfer.driver.pump import Pump
from kvxfer.driver.results import Result
from kvxfer.errors import TransportFault
from kvxfer.status import Status
from kvxfer.transport.registry import open_transport

ANSWER_S = 20.0


@attrs.define(eq=False)
class Peer:
    """One of them, up and listening where its role needs that."""

    config: AgentConfig
    loop: Loop
    address: tuple[str, int] | None

    def put(self, command: Command) -> None:
        """What the engine beside it asks; from any thread."""
        self.loop.mailbox.append((command, clock_ms()))
        self.loop.call()


@attrs.define(eq=False)
class Crowd:
    """Make it with `Crowd.start`."""

    results: deque[Result] = attrs.field(factory=deque)
    """Of all peers, in the order in which they came."""
    peers: list[Peer] = attrs.field(factory=list)
    _failure: BaseException | None = None
    _ready: threading.Event = attrs.field(factory=threading.Event)
    _thawed: threading.Event = attrs.field(factory=threading.Event)
    _token: trio.lowlevel.TrioToken | None = None
    _thread: threading.Thread | None = None

    @classmethod
    def start(cls, configs: Sequence[AgentConfig]) -> Crowd:
        """Raises TransportFault where the transport or its library is missing."""
        crowd = cls()
        crowd._thread = threading.Thread(
            target=crowd._main, args=(configs,), name="kvxfer-bench-crowd", daemon=True
        )
        crowd._thread.start()
        crowd._ready.wait()
        crowd.check()
        return crowd

    def check(self) -> None:
        """Raises what ended the thread, where something did."""
        if self._failure is not None:
            raise self._failure

    def freeze(self) -> None:
        """Nothing moves here from the return until `thaw`."""
        assert self._token is not None
        self._thawed.clear()
        frozen = threading.Event()

        def stand_still() -> None:
            frozen.set()
            self._thawed.wait()

        self._token.run_sync_soon(stand_still)
        if not frozen.wait(ANSWER_S):
            raise TransportFault("freeze", Status.SESSION_FAILED, "the peers' thread does not turn")

    def thaw(self) -> None:
        self._thawed.set()

    def close(self) -> None:
        """Raises TransportFault where the thread does not end in time."""
        self.thaw()
        assert self._thread is not None
        if self._token is not None and self._thread.is_alive():
            for peer in self.peers:
                self._token.run_sync_soon(peer.loop.stop, 0.0)
        self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            raise TransportFault("close", Status.SESSION_FAILED, "the peers' thread does not end")

    # --- the thread ---

    def _main(self, configs: Sequence[AgentConfig]) -> None:
        try:
            trio.run(self._run, configs)
        except BaseException as error:  # noqa: BLE001 - told to the one who asks
            self._failure = error
        finally:
            self._ready.set()

    async def _run(self, configs: Sequence[AgentConfig]) -> None:
        try:
            for config in configs:
                self.peers.append(await self._peer(config))
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            async with trio.open_nursery() as nursery:
                for peer in self.peers:
                    nursery.start_soon(peer.loop.run)
        finally:
            for peer in self.peers:
                for listener in peer.loop.listeners:
                    listener.socket.close()
                peer.loop.pump.close()

    async def _peer(self, config: AgentConfig) -> Peer:
        listeners: list[trio.SocketListener] = []
        address = None
        if config.listen is not None:
            host, port = config.listen
            listeners = await trio.open_tcp_listeners(port, host=host)
            address = (host, listeners[0].socket.getsockname()[1])
        loop = Loop(
            pump=Pump(
                config=config,
                ops=open_transport(config.transport),
                incarnation=Incarnation(secrets.randbits(64) or 1),
            ),
            listeners=listeners,
            mailbox=deque(),
            deliver=self.results.extend,
            publish=lambda _counters: None,
        )
        return Peer(config=config, loop=loop, address=address)
