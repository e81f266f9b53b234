"""One agent of a run: the real `Session`, a clock, memory, and an inbox.

Owns the carrying out of effects in their order, and the one timer. Knows no fault
but being stalled. Invariant: what reaches an agent is worked on in the order of
arrival, also after a stall, and never by a later life than it was meant for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core import effects as fx
from kvxfer.core.events import Event
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import Incarnation, LinkId, OpId, Peer, PeerKey, Role
from kvxfer.core.messages import Cancel, Describe, Header, Message
from kvxfer.core.session import Session
from kvxfer.limits import Limits
from kvxfer.testing.sim.agenda import Clock
from kvxfer.testing.sim.scene import Scene
from kvxfer.testing.sim.shapes import Shape, memory_bytes

DEAD = -1


class Engine(Protocol):
    """What an agent asks of its engine."""

    name: str
    shape: Shape

    def describe(self, node: Node, link: LinkId) -> Describe: ...
    def accept(self, node: Node, link: LinkId, theirs: Describe) -> tuple[int, ...]: ...
    def resolve(self, node: Node, effect: fx.Resolve) -> None: ...
    def told(self, node: Node, effect: Any) -> None: ...
    def drained(self, node: Node) -> None: ...


class Network(Protocol):
    """What an agent asks of the control network."""

    def send(self, node: Node, link: LinkId, message: Message) -> None: ...
    def dial(self, node: Node, peer: PeerKey) -> None: ...
    def drop(self, node: Node, link: LinkId) -> None: ...


class Transport(Protocol):
    """What an agent asks of its transport."""

    def queue(self, node: Node, post: fx.Post) -> None: ...
    def stop(self, node: Node, op: OpId) -> None: ...
    def fence(self, node: Node, peer: Peer) -> None: ...


@attrs.define(eq=False)
class Node:
    """One rank of one engine, over its lives."""

    scene: Scene
    engine: Engine
    rank: int
    role: Role
    clock: Clock
    network: Network
    transport: Transport
    key: PeerKey = attrs.field(init=False)
    name: str = attrs.field(init=False)
    life: int = DEAD
    session: Session = attrs.field(init=False)
    memory: npt.NDArray[np.uint8] = attrs.field(init=False)
    owner: npt.NDArray[np.int32] = attrs.field(init=False)
    """For each byte, the serial of the registration that may be written; 0 for none."""
    cancelled: dict[tuple[str, int, int], int] = attrs.field(factory=dict)
    """(transfer, attempt, consumer's life) of every CANCEL received -> when, in us."""
    frozen_until_us: int = 0
    _inbox: deque[tuple[int, Callable[..., object], tuple[Any, ...]]] = attrs.field(factory=deque)
    _wake_us: int = 0
    _carriers: dict[type, Callable[[Any], None]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.key = PeerKey(self.engine.name, self.rank)
        self.name = f"{self.engine.name}.{self.rank}"
        told = self._told
        self._carriers = {
            fx.Send: self._send,
            fx.Dial: lambda e: self.network.dial(self, e.peer),
            fx.DropLink: lambda e: self.network.drop(self, e.link),
            fx.Resolve: lambda e: self.engine.resolve(self, e),
            fx.Fence: lambda e: self.transport.fence(self, e.peer),
            fx.Post: lambda e: self.transport.queue(self, e),
            fx.StopOp: lambda e: self.transport.stop(self, e.op),
            fx.TellLanded: told,
            fx.TellLost: told,
            fx.TellLetGo: told,
            fx.TellSent: told,
            fx.TellUnsent: told,
            fx.TellDrained: lambda _e: self.engine.drained(self),
            fx.Trace: self._trace,
        }

    # --- lives ---

    def boot(self, incarnation: Incarnation) -> None:
        """A new process: nothing is left of an older one, its memory included."""
        knobs = self.scene.knobs
        self.life = incarnation
        self.frozen_until_us = 0
        self._inbox.clear()
        self.cancelled.clear()
        self._wake_us = 0
        size = memory_bytes(self.engine.shape, self.rank)
        self.memory = np.zeros(size, np.uint8)
        self.owner = np.zeros(size, np.int32)
        self.session = Session(
            me=Identity(
                engine_id=self.key.engine_id,
                rank=self.rank,
                incarnation=incarnation,
                role=self.role,
            ),
            limits=knobs.limits,
            timings=knobs.timings,
            describe=lambda link, _peer: self.engine.describe(self, link),
            accept=lambda link, _peer, theirs: self.engine.accept(self, link, theirs),
        )

    def kill(self) -> None:
        self.life = DEAD

    @property
    def alive(self) -> bool:
        return self.life != DEAD

    # --- input ---

    def now_ms(self) -> int:
        return self.clock.read_ms(self.scene.agenda.now_us)

    def feed(self, life: int, action: Callable[..., object], *args: Any) -> None:
        """Something reaches this agent; it is lost where it was meant for another life."""
        if life != self.life or life == DEAD:
            return
        if self._inbox or self.scene.agenda.now_us < self.frozen_until_us:
            self._inbox.append((life, action, args))
            return
        action(*args)
        self.settle()

    def freeze(self, until_us: int) -> None:
        """The process is stalled: nothing is worked on until then, its timers included."""
        self.frozen_until_us = max(self.frozen_until_us, until_us)
        self.scene.agenda.at(self.frozen_until_us, self._thaw)

    def thaw(self) -> None:
        self.frozen_until_us = 0
        self._thaw()

    def _thaw(self) -> None:
        if self.scene.agenda.now_us < self.frozen_until_us:
            return
        waiting, self._inbox = self._inbox, deque()
        for life, action, args in waiting:
            self.feed(life, action, *args)

    def was_cancelled(self, header: Header) -> bool:
        """True where the attempt was cancelled, as long as its number cannot be used again."""
        key = (header.transfer_id, header.attempt, header.sender)
        at_us = self.cancelled.get(key)
        knobs = self.scene.knobs
        if at_us is None or knobs.limits.tombstones_max < Limits().tombstones_max:
            return False
        return self.scene.agenda.now_us - at_us < 500 * knobs.timings.tombstone_ms

    def handle(self, event: Event) -> None:
        self.session.handle(event, self.now_ms())

    def receive(self, link: LinkId, message: Message) -> None:
        if type(message) is Cancel:
            header = message.header
            key = (header.transfer_id, header.attempt, header.sender)
            self.cancelled[key] = self.scene.agenda.now_us
        self.session.receive(link, message, self.now_ms())

    # --- output ---

    def settle(self) -> None:
        """Carry out all effects, in order, then set the timer."""
        poll = self.session.poll
        carriers = self._carriers
        while batch := poll():
            for effect in batch:
                carriers[type(effect)](effect)
        deadline_ms = self.session.next_deadline_ms()
        if deadline_ms is not None:
            self._wake_at(self.clock.when_us(deadline_ms))

    def _wake_at(self, at_us: int) -> None:
        agenda = self.scene.agenda
        at_us = max(at_us, agenda.now_us)
        if self._wake_us <= agenda.now_us or at_us < self._wake_us:
            self._wake_us = at_us
            agenda.at(at_us, self._wake, self.life, at_us)

    def _wake(self, life: int, at_us: int) -> None:
        # An earlier one was set since: it has set the next.
        if life == self.life and self._wake_us == at_us:
            self._wake_us = 0
            self.feed(life, self._advance)

    def _advance(self) -> None:
        self.session.advance(self.now_ms())

    def _send(self, effect: fx.Send) -> None:
        self.network.send(self, effect.link, effect.message)

    def _told(self, effect: Any) -> None:
        self.engine.told(self, effect)

    def _trace(self, effect: fx.Trace) -> None:
        self.scene.note(self.name, effect.step, effect.transfer_id, str(effect.attempt))
