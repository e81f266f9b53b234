"""The transport of a run: writes and reads that land in windows, late, partly, or never.

Owns every operation in flight and checks each byte at the moment at which it
lands. Knows no message but the block tables of a grant or an offer. Invariants: a
byte lands only in memory that the registration named and that was not let go (A1,
H1); what P writes from is pinned meanwhile (B1); what a fence shut out lands
nowhere.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core import effects as fx
from kvxfer.core.events import FenceResult, OpEnded, OpNotPosted
from kvxfer.core.ids import OpId, Part, Peer, Reason, TransferId
from kvxfer.core.messages import Done
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.testing.sim.shapes import Index, moved_bytes, slab_of_runs
from kvxfer.testing.sim.wires import Cable, Wires

Bytes = npt.NDArray[np.uint8]


class Source(Protocol):
    """What P's engine says about blocks that are read."""

    slab: int
    ended: bool
    reading: set[Flight]
    served: set[tuple[int, Part]]


class Target(Protocol):
    """What D's engine says about blocks that are written."""

    serial: int
    let_go: bool
    danger: set[Flight]

    @property
    def slab(self) -> int: ...


class Books(Protocol):
    """The engines' books of who owns what."""

    def source_of(self, node: Node, tag: str) -> Source: ...
    def holder_of(self, node: Node, slab: int) -> Source | None: ...
    def target_of(self, node: Node, transfer_id: TransferId, attempt: int) -> Target | None: ...


@attrs.define(eq=False, kw_only=True)
class Flight:
    """One claimed part on its way."""

    op: OpId
    post: fx.Post
    cable: Cable
    node: Node
    """Who posted it: P in push, D in pull."""
    life: int
    giver: Node
    taker: Node
    source: Source | None
    """What P must keep meanwhile; None in pull, where nothing but a lease protects it."""
    slab: int
    """Of the giver."""
    goal: Target | None
    """The registration written to; None where its consumer's life is over."""
    src: Index
    dst: Index
    bounds: list[int]
    at: int = 0
    stopped: bool = False
    ended: bool = False
    """The initiator's transport has reported its end."""

    @property
    def tid(self) -> str:
        return self.post.grant.header.transfer_id

    @property
    def reads(self) -> bool:
        return self.node is self.taker

    def lands(self) -> bool:
        """True while what it moves can still reach the memory it was meant for."""
        life = self.taker.life
        return life == self.cable.life(self.taker) and life not in self.cable.shut


@attrs.define(eq=False)
class Fabric:
    """All operations of a run."""

    scene: Scene
    wires: Wires
    books: Books = attrs.field(init=False)
    flights: dict[tuple[int, OpId], Flight] = attrs.field(factory=dict)

    # --- posting ---

    def queue(self, node: Node, post: fx.Post) -> None:
        """The driver comes to posting a part when it comes to it."""
        self.scene.agenda.later(self.scene.delay_us() // 4, self._come_to, node, node.life, post)

    def _come_to(self, node: Node, life: int, post: fx.Post) -> None:
        node.feed(life, self._post, node, post)

    def _post(self, node: Node, post: fx.Post) -> None:
        scene = self.scene
        cable = self.wires.cables[post.link]
        header = post.grant.header
        tid = header.transfer_id
        if not node.session.claim(post.op, node.now_ms()):
            scene.note(node.name, "drops op", tid, str(post.op))
            scene.hit("operation dropped before posting")
            return
        if node.was_cancelled(header):
            raise SimViolation(f"B2: op {post.op} of {node.name} claimed after its CANCEL", tid)
        if not cable.is_open(node) or scene.chance("refuse_post"):
            scene.note(node.name, "cannot post op", tid, str(post.op))
            node.handle(OpNotPosted(op=post.op, reason=Reason.TRANSPORT_FAILED))
            return
        flight = self._flight(node, post, cable)
        self.flights[node.life, post.op] = flight
        if flight.source is not None:
            flight.source.reading.add(flight)
        if flight.goal is not None:
            if flight.goal.let_go:
                raise SimViolation(f"A1: op {post.op} of {node.name} posted after let-go", tid)
            flight.goal.danger.add(flight)
        scene.note(node.name, "posts READ" if flight.reads else "posts op", tid, str(post.op))
        scene.hit("read posted" if flight.reads else "write posted")
        self._next(flight)

    def _flight(self, node: Node, post: fx.Post, cable: Cable) -> Flight:
        header = post.grant.header
        reads = post.offer is not None
        giver, taker = (cable.other(node), node) if reads else (node, cable.other(node))
        goal = None
        if taker.life == cable.life(taker) and taker.life not in cable.shut:
            goal = self.books.target_of(taker, header.transfer_id, header.attempt)
            if goal is None:
                raise SimViolation(f"A3: op {post.op} for an unknown attempt", header.transfer_id)
        source = None
        if post.offer is not None:
            assert goal is not None
            slabs = (slab_of_runs(giver.engine.shape, post.offer.tables[0]), goal.slab)
        else:
            source = self.books.source_of(node, post.tag)
            slabs = (source.slab, slab_of_runs(taker.engine.shape, post.grant.tables[0]))
        shapes = giver.engine.shape, taker.engine.shape
        src, dst = moved_bytes(*shapes, post.part, taker.rank, slabs)
        windows = self.scene.draw.randint(1, self.scene.knobs.windows_max)
        return Flight(
            op=post.op,
            post=post,
            cable=cable,
            node=node,
            life=node.life,
            giver=giver,
            taker=taker,
            source=source,
            slab=slabs[0],
            goal=goal,
            src=src,
            dst=dst,
            bounds=[dst.size * (k + 1) // windows for k in range(windows)],
        )

    # --- flying ---

    def _next(self, flight: Flight) -> None:
        delay_us = self.scene.delay_us()
        if self.scene.chance("hold"):
            delay_us = self.scene.long_us()
            self.scene.note(flight.node.name, "op is held up", flight.tid, str(flight.op))
        self.scene.agenda.later(delay_us, self._window_over, flight)

    def _window_over(self, flight: Flight) -> None:
        if flight.ended:
            return
        cable = flight.cable
        if until_us := self.wires.blocked_until(cable.dialler, cable.acceptor):
            self.scene.agenda.at(until_us, self._window_over, flight)
            return
        if not flight.lands():
            self._end(flight, done=False, quiet=False)
        elif flight.giver.life != cable.life(flight.giver):
            # The far end of a READ is gone: there is nothing more that could arrive.
            self._end(flight, done=False, quiet=True)
        elif self.scene.chance("fail_quiet"):
            self._land(flight, int(flight.dst.size * self.scene.draw.random()))
            self._end(flight, done=False, quiet=True)
        elif self.scene.chance("fail_unquiet"):
            self._linger(flight)
            self._end(flight, done=False, quiet=False)
        else:
            self._land(flight, flight.bounds.pop(0))
            if not flight.bounds:
                if not flight.reads:
                    self._notify(flight)
                self._end(flight, done=True, quiet=True)
            elif flight.stopped:
                self.scene.hit("operation stopped between windows")
                self._end(flight, done=False, quiet=True)
            else:
                self._next(flight)

    def _land(self, flight: Flight, stop: int) -> None:
        """Bytes up to `stop` arrive."""
        where = slice(flight.at, max(stop, flight.at))
        flight.at = where.stop
        if flight.source is not None and flight.source.ended:
            raise SimViolation(f"B1: op {flight.op} reads a source that has ended", flight.tid)
        self._write(flight, flight.dst[where], flight.giver.memory[flight.src[where]])

    def _write(self, flight: Flight, dst: Index, data: Bytes) -> None:
        target, goal = flight.taker, flight.goal
        if goal is None or not flight.lands():
            return
        owners = target.owner[dst]
        if (owners != goal.serial).any():
            byte = int(dst[owners != goal.serial][0])
            raise SimViolation(f"A1: op {flight.op} wrote byte {byte} of {target.name}", flight.tid)
        target.memory[dst] = data

    def _notify(self, flight: Flight) -> None:
        post, node = flight.post, flight.node
        if self.scene.chance("lose_notice"):
            self.scene.note(node.name, "notice is lost", flight.tid, str(flight.op))
            return
        header = node.session.ctx.header(post.grant.header.key, post.peer)
        done = Done(header=header, part=post.part)
        for _ in range(1 + self.scene.chance("repeat_notice")):
            self.scene.agenda.later(self.scene.delay_us(), self._notice, flight, done)

    def _notice(self, flight: Flight, done: Done) -> None:
        cable, target = flight.cable, flight.taker
        if until_us := self.wires.blocked_until(cable.dialler, cable.acceptor):
            self.scene.agenda.at(until_us, self._notice, flight, done)
        elif flight.lands():
            self.scene.note(target.name, "Done", done.header.transfer_id, str(done.header.attempt))
            target.feed(target.life, target.receive, cable.id, done)

    def _end(self, flight: Flight, *, done: bool, quiet: bool) -> None:
        """The initiator's transport reports the end of a part."""
        flight.ended = True
        source = flight.source
        if source is not None:
            source.reading.discard(flight)
        else:
            source = self.books.holder_of(flight.giver, flight.slab)
        if done and source is not None:
            source.served.add((flight.taker.rank, flight.post.part))
        if flight.goal is not None and quiet:
            flight.goal.danger.discard(flight)
        how = "done" if done else "failed" if quiet else "unknown"
        self.scene.note(flight.node.name, f"op ends {how}", flight.tid, str(flight.op))
        reason = Reason.NONE if done else Reason.TRANSPORT_FAILED
        event = OpEnded(op=flight.op, done=done, quiet=quiet, reason=reason)
        flight.node.feed(flight.life, self._report, flight, event)

    def _report(self, flight: Flight, event: OpEnded) -> None:
        self.flights.pop((flight.life, flight.op), None)
        flight.node.handle(event)

    def _linger(self, flight: Flight) -> None:
        """The rest, as it is now, may land at any later time, unless it is shut out."""
        rest = slice(flight.at, None)
        data = flight.giver.memory[flight.src[rest]]
        self.scene.agenda.later(self.scene.long_us(), self._late, flight, flight.dst[rest], data)

    def _late(self, flight: Flight, dst: Index, data: Bytes) -> None:
        if flight.lands():
            self.scene.hit("late write landed")
            self._write(flight, dst, data)
            if not flight.reads and self.scene.draw.random() < 0.5:
                self._notify(flight)
        else:
            self.scene.hit("late write shut out")
        if flight.goal is not None:
            flight.goal.danger.discard(flight)

    # --- ends from outside ---

    def stop(self, node: Node, op: OpId) -> None:
        flight = self.flights.get((node.life, op))
        if flight is not None:
            flight.stopped = True

    def fence(self, node: Node, peer: Peer) -> None:
        later = self.scene.delay_us() // 4
        self.scene.agenda.later(later, node.feed, node.life, self._fence, node, peer)

    def _fence(self, node: Node, peer: Peer) -> None:
        """Shut the peer out on connections that have ended, and end what goes over them."""
        fenced = not self.scene.chance("refuse_fence")
        self.scene.hit("fence proven" if fenced else "fence not proven")
        self.scene.note(node.name, "fences" if fenced else "cannot fence", "", peer.key.engine_id)
        for cable in self.wires.cables.values():
            far = cable.other(node) if node in (cable.dialler, cable.acceptor) else None
            if far is None or far.key != peer.key or cable.life(far) != peer.incarnation:
                continue
            if fenced and not cable.is_open(node):
                cable.shut.add(node.life)
        for flight in list(self.flights.values()):
            if flight.node is node and flight.post.peer == peer and not flight.ended:
                self._abort(flight, fenced=fenced)
        node.handle(FenceResult(peer=peer, fenced=fenced))

    def _abort(self, flight: Flight, *, fenced: bool) -> None:
        """Rule 7 of the table: after a fence was tried, an own operation ends.

        Its bytes may still be on the way to a peer; to memory of our own only where the
        fence was not proven.
        """
        if flight.cable.is_open(flight.node):
            return
        quiet = flight.reads and fenced
        if not quiet:
            self._linger(flight)
        self.scene.hit("operation ended by a fence")
        self._end(flight, done=False, quiet=quiet)

    def may_write(self, goal: Target) -> list[OpId]:
        """Operations that may still write into a registration's blocks."""
        return [f.op for f in goal.danger if f.lands()]

    def died(self, node: Node) -> None:
        """A process is gone: what it had posted lands late, or never; nobody is told."""
        for key, flight in list(self.flights.items()):
            if flight.node is node and key[0] == node.life:
                if not flight.ended and self.scene.draw.random() < 0.5:
                    self._linger(flight)
                flight.ended = True
                del self.flights[key]
