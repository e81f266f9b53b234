"""The control network of a run: cables that delay, hang, break and come back.

Owns every control connection and the pairs that are cut off from each other.
Knows no message. Invariant: what a cable delivers is in order and whole, as TCP's
is; a cable that broke delivers nothing more.
"""

from __future__ import annotations

from collections import deque

import attrs

from kvxfer.core.events import Unreachable
from kvxfer.core.ids import LinkId, PeerKey, Reason
from kvxfer.core.messages import Message
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.wire.codec import decode, encode

DIAL_TIMEOUT_US = 3_000_000


@attrs.define(eq=False)
class Cable:
    """One control connection, and the transport's connection that goes with it."""

    id: LinkId
    dialler: Node
    acceptor: Node
    dialler_life: int
    acceptor_life: int
    dialler_open: bool = True
    acceptor_open: bool = True
    broken: bool = False
    shut: set[int] = attrs.field(factory=set)
    """Lives whose fence has shut out what comes over this connection."""
    busy_us: dict[int, int] = attrs.field(factory=dict)
    """Per receiving life, when its latest message arrives."""
    held: dict[int, deque[Message | None]] = attrs.field(factory=dict)

    def is_open(self, node: Node) -> bool:
        if node is self.dialler:
            return self.dialler_open and self.dialler_life == node.life
        return self.acceptor_open and self.acceptor_life == node.life

    def close(self, node: Node) -> None:
        if node is self.dialler:
            self.dialler_open = False
        else:
            self.acceptor_open = False

    def other(self, node: Node) -> Node:
        return self.acceptor if node is self.dialler else self.dialler

    def life(self, node: Node) -> int:
        return self.dialler_life if node is self.dialler else self.acceptor_life

    @property
    def pair(self) -> tuple[str, str]:
        return self.dialler.name, self.acceptor.name


@attrs.define(eq=False)
class Wires:
    """All cables of a run."""

    scene: Scene
    nodes: dict[PeerKey, Node] = attrs.field(factory=dict)
    cables: dict[LinkId, Cable] = attrs.field(factory=dict)
    blocked_us: dict[tuple[str, str], int] = attrs.field(factory=dict)
    """Per pair of agents, until when nothing passes."""
    _last: int = 0

    # --- asked by agents ---

    def dial(self, node: Node, peer: PeerKey) -> None:
        self.scene.agenda.later(self.scene.delay_us(), self._connect, node, node.life, peer)

    def _connect(self, node: Node, life: int, peer: PeerKey) -> None:
        if node.life != life:
            return
        scene = self.scene
        target = self.nodes.get(peer)
        if target is not None and self.blocked_until(node, target):
            scene.hit("dial into a partition")
            scene.agenda.later(DIAL_TIMEOUT_US, node.feed, life, self._unreachable, node, peer)
            return
        if target is None or not target.alive or scene.chance("refuse_dial"):
            scene.hit("dial failed")
            scene.agenda.later(scene.delay_us(), node.feed, life, self._unreachable, node, peer)
            return
        self._last += 1
        link = LinkId(self._last)
        self.cables[link] = Cable(link, node, target, node.life, target.life)
        scene.note(node.name, "connects", "", target.name)
        now_ms = target.now_ms
        target.feed(target.life, lambda: target.session.open_link(link, None, now_ms()))
        node.feed(life, lambda: node.session.open_link(link, peer, node.now_ms()))

    def _unreachable(self, node: Node, peer: PeerKey) -> None:
        node.handle(Unreachable(peer=peer, reason=Reason.UNREACHABLE, detail="no answer"))

    def send(self, node: Node, link: LinkId, message: Message) -> None:
        cable = self.cables[link]
        if cable.is_open(node):
            if self.scene.knobs.on_wire:
                message = self._through_bytes(message)
            self._carry(cable, cable.other(node), message)

    def _through_bytes(self, message: Message) -> Message:
        back = decode(encode(message), self.scene.knobs.limits)
        if back != message:
            raise SimViolation(f"W1: {message} came out of its bytes as {back}")
        return back

    def drop(self, node: Node, link: LinkId) -> None:
        """An agent closes its end; the other end learns of it behind all that was sent."""
        cable = self.cables[link]
        if cable.is_open(node):
            cable.close(node)
            self._carry(cable, cable.other(node), None)

    # --- delivery ---

    def _carry(self, cable: Cable, to: Node, message: Message | None) -> None:
        life = cable.life(to)
        at_us = max(cable.busy_us.get(life, 0), self.scene.agenda.now_us + self.scene.delay_us())
        cable.busy_us[life] = at_us
        self.scene.agenda.at(at_us, self._deliver, cable, to, message)

    def _deliver(self, cable: Cable, to: Node, message: Message | None) -> None:
        if cable.broken:
            return
        if not cable.is_open(to):
            self._reset(cable, to)
            return
        held = cable.held.get(to.life)
        if held:
            held.append(message)
            return
        if until_us := self.blocked_until(cable.dialler, cable.acceptor):
            self.scene.hit("message held up")
            cable.held[to.life] = deque([message])
            self.scene.agenda.at(until_us, self._release, cable, to)
            return
        self._arrive(cable, to, message)

    def _reset(self, cable: Cable, to: Node) -> None:
        """What reaches a host that knows nothing of the connection is answered by its end."""
        other = cable.other(to)
        if to.alive and to.life != cable.life(to) and cable.is_open(other):
            self.scene.agenda.later(self.scene.delay_us(), self._lose, cable, other)

    def _release(self, cable: Cable, to: Node) -> None:
        if until_us := self.blocked_until(cable.dialler, cable.acceptor):
            self.scene.agenda.at(until_us, self._release, cable, to)
            return
        for message in cable.held.pop(cable.life(to), ()):
            if not cable.broken and cable.is_open(to):
                self._arrive(cable, to, message)

    def _arrive(self, cable: Cable, to: Node, message: Message | None) -> None:
        if message is None:
            self._lose(cable, to)
            return
        header = getattr(message, "header", None)
        kind = type(message).__name__
        if header is not None:
            self.scene.note(to.name, kind, header.transfer_id, str(header.attempt))
        to.feed(to.life, to.receive, cable.id, message)

    def _lose(self, cable: Cable, node: Node) -> None:
        if cable.is_open(node):
            cable.close(node)
            self.scene.note(node.name, "loses link", "", cable.other(node).name)
            node.feed(
                node.life,
                lambda: node.session.close_link(cable.id, Reason.PEER_LOST, node.now_ms()),
            )

    # --- asked by the world ---

    def live(self) -> list[Cable]:
        return [c for c in self.cables.values() if c.is_open(c.dialler) and c.is_open(c.acceptor)]

    def cut(self, cable: Cable) -> None:
        """The connection breaks; what is on the way is lost; each end learns in its own time."""
        cable.broken = True
        for node in (cable.dialler, cable.acceptor):
            self.scene.agenda.later(self.scene.delay_us(), self._lose, cable, node)

    def died(self, node: Node) -> None:
        """A process is gone: the far ends of its cables see them end."""
        for cable in self.cables.values():
            if node in (cable.dialler, cable.acceptor) and cable.life(node) == node.life:
                cable.close(node)
                other = cable.other(node)
                if cable.is_open(other):
                    self._carry(cable, other, None)

    def block(self, dialler: Node, acceptor: Node, until_us: int) -> None:
        pair = _pair(dialler, acceptor)
        self.blocked_us[pair] = max(self.blocked_us.get(pair, 0), until_us)

    def unblock(self) -> None:
        self.blocked_us.clear()
        for cable in self.cables.values():
            for node in (cable.dialler, cable.acceptor):
                if cable.held.get(cable.life(node)):
                    self._release(cable, node)

    def blocked_until(self, dialler: Node, acceptor: Node) -> int:
        """When the pair is through again; 0 where it is now."""
        until_us = self.blocked_us.get(_pair(dialler, acceptor), 0)
        return until_us if until_us > self.scene.agenda.now_us else 0


def _pair(one: Node, other: Node) -> tuple[str, str]:
    return (one.name, other.name) if one.name < other.name else (other.name, one.name)
