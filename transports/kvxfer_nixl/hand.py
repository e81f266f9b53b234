"""An agent on a thread of its own, for backends whose calls may wait for a peer.

Owns the thread and the queue to it. Refuses to judge errors: `kvxfer_nixl.peer`
does. Invariants: no method waits for a peer; native calls of one agent never
overlap; an error that belongs to no transfer ends the link at its next use.

NIXL over libfabric does not come back from a post or a notification to a peer that
has died: it tries again for ever (docs/design/nixl-fabric.md). Such a thread cannot be
ended. It is given up, with its agent, and `destroy` then says that it is not gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from kvxfer.transport.ops import U64
from kvxfer_nixl.agent import NixlAgent, release
from kvxfer_nixl.regions import Place

CALL_S_MAX: Final = 20.0
"""A native call that takes longer costs the link: making a link takes 0.7 s and more."""
LEAVE_S_MAX: Final = 0.08
"""How long `destroy` waits for a call that is under way."""
CAME_MAX: Final = 1024
"""Notifications that wait for the owner; beyond it they are left in the library."""
_PAUSE_BUSY_S: Final = 0.0002
_PAUSE_LISTENING_S: Final = 0.001
_PAUSE_IDLE_S: Final = 0.25
"""The owner's next look ends an idle pause; this is for what nobody is waiting for."""
_LISTENING_S: Final = 0.5
"""How long after the owner's last look at the agent counts as listening."""


class CallStuck(Exception):
    """A native call has not come back in time."""


@attrs.define(kw_only=True, eq=False)
class Ticket:
    """One transfer, on its way through the thread. What `prepare` gives."""

    operation: str
    columns: tuple[U64, U64, U64]
    places: tuple[Place, Place]
    notify: bytes
    hand: Hand
    state: str = "PROC"
    error: Exception | None = None
    native: Any = None

    def release(self) -> None:
        """Give the native handle back, on the thread that owns it."""
        self.hand.give_back(self)


class Hand:
    """A `NixlAgent` by the same methods, each of which comes back at once."""

    tells_death = False
    """Over this backend nobody says that a peer died; its process has to be looked at."""

    def __init__(self, agent: NixlAgent) -> None:
        self.name = agent.name
        self._agent: NixlAgent | None = agent
        self._theirs: tuple[bytes, str] | None = None
        self._todo: deque[Callable[[NixlAgent], None]] = deque()
        self._wake = threading.Condition()
        self._returned: deque[Ticket] = deque()
        self._open: list[Ticket] = []
        self._came: deque[tuple[str, bytes]] = deque()
        self._fault: Exception | None = None
        self._busy_since = 0.0
        self._looked_at = time.monotonic()
        self._leaving = False
        self._gone: bool | None = None
        self._thread = threading.Thread(target=self._run, name=f"nixl {agent.name}", daemon=True)

    def start(self) -> None:
        """From now on the thread alone calls the agent."""
        self._thread.start()

    # Memory and link: before `start` at once, after it in the order of the calls.

    def register(self, base: int, length: int, place: Place) -> None:
        self._do(lambda agent: agent.register(base, length, place))

    def deregister(self, base: int, length: int, place: Place) -> None:
        self._do(lambda agent: agent.deregister(base, length, place))

    def metadata(self) -> bytes:
        """Only before `start`."""
        assert self._agent is not None
        return self._agent.metadata()

    def connect(self, metadata: bytes, name: str) -> None:
        """Note how to reach `name`. The link is made before the first thing that is sent.

        Making it waits for the other side, and for ever where that side goes away meanwhile;
        who only receives never needs it.
        """
        self._theirs = (metadata, name)

    # Operations.

    def prepare(
        self,
        operation: str,
        columns: tuple[U64, U64, U64],
        notify: bytes,
        places: tuple[Place, Place],
    ) -> Ticket:
        return Ticket(operation=operation, columns=columns, places=places, notify=notify, hand=self)

    def post(self, ticket: Ticket) -> str:
        self._look()
        self._do(lambda agent: self._start(agent, ticket))
        return ticket.state

    def state(self, ticket: Ticket) -> str:
        self._look()
        if ticket.error is not None:
            raise ticket.error
        return ticket.state

    def notify(self, payload: bytes) -> None:
        self._look()
        self._do(lambda agent: self._linked(agent).notify(payload))

    def collect(self) -> dict[str, list[bytes]]:
        self._look()
        came: dict[str, list[bytes]] = {}
        for _ in range(len(self._came)):
            name, payload = self._came.popleft()
            came.setdefault(name, []).append(payload)
        return came

    def give_back(self, ticket: Ticket) -> None:
        """The thread drops the ticket, also where the agent leaves before."""
        with self._wake:
            self._returned.append(ticket)
            self._wake.notify()

    # The end.

    def destroy(self) -> bool:
        """End the thread and the agent; False where a call is under way that does not end.

        May be asked again: the thread leaves as soon as its call comes back.
        """
        with self._wake:
            self._leaving = True
            self._wake.notify()
        if self._thread.ident is None:
            self._leave()
        elif self._thread is not threading.current_thread():
            self._thread.join(LEAVE_S_MAX)
            if self._gone is None:
                self._step_aside()
        return bool(self._gone)

    def _step_aside(self) -> None:
        """A call without an end tries again at full speed: let it have only idle processors."""
        with contextlib.suppress(OSError, AttributeError):
            assert self._thread.native_id is not None
            os.sched_setscheduler(self._thread.native_id, os.SCHED_IDLE, os.sched_param(0))

    # --- the owner's side ---

    def _do(self, call: Callable[[NixlAgent], None]) -> None:
        if self._thread.ident is None:
            assert self._agent is not None
            call(self._agent)
            return
        with self._wake:
            if not self._leaving:
                self._todo.append(call)
                self._wake.notify()

    def _look(self) -> None:
        """The owner is here: raise what went wrong since, and stay quick for a while."""
        now = time.monotonic()
        slept, self._looked_at = now - self._looked_at > _LISTENING_S, now
        if slept:
            with self._wake:
                self._wake.notify()
        since = self._busy_since
        if since and now - since > CALL_S_MAX:
            self._step_aside()
            raise CallStuck(f"a call into nixl has not come back for {now - since:.1f} s")
        if self._fault is not None:
            raise self._fault

    # --- the thread's side ---

    def _run(self) -> None:
        while not self._leaving:
            self._turn()
            with self._wake:
                if not (self._todo or self._returned or self._leaving):
                    self._wake.wait(self._pause_s())
        self._leave()

    def _pause_s(self) -> float:
        if self._open:
            return _PAUSE_BUSY_S
        listening = time.monotonic() - self._looked_at < _LISTENING_S
        return _PAUSE_LISTENING_S if listening else _PAUSE_IDLE_S

    def _turn(self) -> None:
        agent = self._agent
        assert agent is not None
        while self._todo and not self._leaving:
            self._guarded(self._todo.popleft(), agent)
        while self._returned:
            self._drop(self._returned.popleft())
        for ticket in list(self._open):
            self._guarded(partial(self._advance, ticket), agent)
        self._guarded(self._take_in, agent)

    def _guarded(self, call: Callable[[NixlAgent], None], agent: NixlAgent) -> None:
        self._busy_since = time.monotonic()
        try:
            call(agent)
        except Exception as error:  # noqa: BLE001 - told to the owner at its next look
            self._fault = self._fault or error
        finally:
            self._busy_since = 0.0

    def _start(self, agent: NixlAgent, ticket: Ticket) -> None:
        try:
            ticket.native = self._linked(agent).prepare(
                ticket.operation, ticket.columns, ticket.notify, ticket.places
            )
            state = agent.post(ticket.native)
        except Exception as error:  # noqa: BLE001 - told through the ticket
            ticket.error = error
            return
        if state == "PROC":
            self._open.append(ticket)
        ticket.state = state

    def _linked(self, agent: NixlAgent) -> NixlAgent:
        if not agent.remote and self._theirs is not None:
            agent.connect(*self._theirs)
        return agent

    def _advance(self, ticket: Ticket, agent: NixlAgent) -> None:
        try:
            state = agent.state(ticket.native)
        except Exception as error:  # noqa: BLE001 - told through the ticket
            ticket.error = error
            state = "ERR"
        if state != "PROC":
            self._open.remove(ticket)
            ticket.state = state

    def _take_in(self, agent: NixlAgent) -> None:
        if len(self._came) >= CAME_MAX:
            return
        for name, payloads in agent.collect().items():
            self._came.extend((name, payload) for payload in payloads)

    def _drop(self, ticket: Ticket) -> None:
        if ticket in self._open:
            self._open.remove(ticket)
        native, ticket.native = ticket.native, None
        if native is not None:
            release(native)

    def _leave(self) -> None:
        """What was not begun never will be; nixl wants its handles back before the agent ends."""
        self._todo.clear()
        for ticket in [*self._returned, *self._open]:
            self._drop(ticket)
        self._returned.clear()
        agent, self._agent = self._agent, None
        self._gone = agent is not None and agent.destroy()
