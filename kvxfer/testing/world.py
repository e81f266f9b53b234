"""A world of real agents: pumps over the loopback, under virtual time and one seed.

Owns the clock, the control network between the pumps, and two engines with
memory of their own. Knows no thread and no socket. Invariants checked at bytes:
a block that D has taken back is never written again, and a transfer that has
landed holds exactly the source's bytes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core.ids import Incarnation, LinkId, PeerKey, Reason, Role
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.pump import Pump, Turn
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.limits import Limits, Timings
from kvxfer.testing.between import Violation
from kvxfer.transport.faults import FaultPlan
from kvxfer.transport.ops import Memory
from kvxfer.transport.registry import open_transport

Bytes = npt.NDArray[np.uint8]


@attrs.define(kw_only=True, eq=False)
class Node:
    """One agent and its memory."""

    name: str
    pump: Pump
    memory: Bytes
    shard: Shard
    results: deque[rs.Result] = attrs.field(factory=deque)
    alive: bool = True


@attrs.define(eq=False)
class Line:
    """One control connection between two nodes: FIFO per direction, delayed."""

    ends: dict[str, LinkId]
    open_at: dict[str, bool]
    busy_until_ms: dict[str, float]


@attrs.define(eq=False)
class World:
    """Runs nodes, deliveries and timers in one loop; the seed decides every delay."""

    seed: int
    timings: Timings = attrs.field(factory=Timings)
    limits: Limits = attrs.field(factory=Limits)
    now_ms: float = 0.0
    faults: FaultPlan = attrs.field(factory=FaultPlan)
    nodes: dict[str, Node] = attrs.field(factory=dict)
    lines: list[Line] = attrs.field(factory=list)
    delay_ms_max: float = 5.0
    part_tokens: int = 0
    """The grid of every producer added from now on."""
    part_layers: int = 0
    _agenda: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list)
    _serial: itertools.count[int] = attrs.field(factory=itertools.count)
    _link_ids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    _incarnations: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    draw: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    # --- nodes ---

    def add(self, name: str, role: Role, memory: Bytes, shard: Shard) -> Node:
        """Start an agent; `name` is its engine id and its address."""
        area = shard.areas[0]
        config = AgentConfig(
            engine_id=name,
            role=role,
            shard=shard,
            memories=(Memory(base=area.base, length=area.length, keepalive=memory),),
            transport="loopback",
            transport_options={"faults": self.faults},
            listen=("127.0.0.1", 0) if role & Role.PRODUCER else None,
            part_tokens=self.part_tokens,
            part_layers=self.part_layers,
            # Failures are meant here: no transcripts in the log.
            flight_transfers=0,
            limits=self.limits,
            timings=self.timings,
        )
        pump = Pump(
            config=config,
            ops=open_transport("loopback"),
            incarnation=Incarnation(next(self._incarnations)),
        )
        node = Node(name=name, pump=pump, memory=memory, shard=shard)
        self.nodes[name] = node
        return node

    def kill(self, node: Node) -> None:
        """The process is gone: its transport, its links, its engine."""
        node.alive = False
        node.pump.close()
        for line in self.lines:
            if node.name in line.ends and line.open_at[node.name]:
                self._break(line, node.name)

    def close(self) -> None:
        for node in self.nodes.values():
            if node.alive:
                node.pump.close()

    # --- the control network ---

    def _dial(self, node: Node, peer: PeerKey) -> None:
        target = self.nodes.get(peer.engine_id)
        if target is None or not target.alive:
            self.later(1.0, lambda: self._dial_failed(node, peer))
            return
        here, there = LinkId(next(self._link_ids)), LinkId(next(self._link_ids))
        line = Line(
            {node.name: here, target.name: there},
            {node.name: True, target.name: True},
            {node.name: self.now_ms, target.name: self.now_ms},
        )
        self.lines.append(line)
        target.pump.link_opened(there, None, self.now_ms)
        node.pump.link_opened(here, peer, self.now_ms)
        self._turn(target)

    def _dial_failed(self, node: Node, peer: PeerKey) -> None:
        if node.alive:
            node.pump.dial_failed(peer, "refused", self.now_ms)

    def _line_of(self, node: Node, link: LinkId) -> Line | None:
        for line in self.lines:
            if line.ends.get(node.name) == link and line.open_at[node.name]:
                return line
        return None

    def _other(self, line: Line, name: str) -> str:
        return next(n for n in line.ends if n != name)

    def _write(self, node: Node, link: LinkId, data: bytes) -> None:
        line = self._line_of(node, link)
        if line is None:
            return
        other = self._other(line, node.name)
        at_ms = max(line.busy_until_ms[other], self.now_ms + self._delay())
        line.busy_until_ms[other] = at_ms
        # A stream has no message borders: what arrives is cut anywhere.
        cut = self.draw.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            if piece:
                self.at(at_ms, lambda piece=piece: self._arrive(line, other, piece))  # type: ignore[misc]

    def _arrive(self, line: Line, name: str, data: bytes) -> None:
        node = self.nodes[name]
        if node.alive and line.open_at[name]:
            node.pump.link_bytes(line.ends[name], data, self.now_ms)
            self._turn(node)

    def cut(self, line: Line) -> None:
        """Break a connection; both sides learn of it, each in its own time."""
        for name in line.ends:
            self._break(line, name)

    def _break(self, line: Line, name: str) -> None:
        line.open_at[name] = False
        other = self._other(line, name)
        for end in (name, other):
            at_ms = max(line.busy_until_ms[end], self.now_ms + self._delay())
            self.at(at_ms, lambda end=end: self._lose(line, end))  # type: ignore[misc]

    def _lose(self, line: Line, name: str) -> None:
        line.open_at[name] = False
        node = self.nodes[name]
        if node.alive:
            node.pump.link_closed(line.ends[name], Reason.PEER_LOST, self.now_ms)
            self._turn(node)

    def _delay(self) -> float:
        return self.draw.uniform(0.0, self.delay_ms_max)

    # --- the loop ---

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, action)

    def at(self, at_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_ms, next(self._serial), action))

    def submit(self, node: Node, command: cmd.Command) -> None:
        if node.alive:
            node.pump.submit(command, self.now_ms)
            self._turn(node)

    def _turn(self, node: Node) -> Turn | None:
        if not node.alive:
            return None
        turn = node.pump.turn(self.now_ms)
        for link, data in turn.writes:
            self._write(node, link, data)
        for link in turn.closes:
            line = self._line_of(node, link)
            if line is not None:
                self._break(line, node.name)
        for peer, _, _ in turn.dials:
            self.later(self._delay(), lambda peer=peer: self._dial(node, peer))  # type: ignore[misc]
        node.results.extend(turn.results)
        return turn

    def step(self) -> bool:
        """Turn every node until nothing moves, then go to the next thing on the agenda."""
        moved = True
        while moved:
            moved = False
            for node in list(self.nodes.values()):
                turn = self._turn(node)
                moved = moved or (turn is not None and turn.progressed)
        due = [self._agenda[0][0]] if self._agenda else []
        for node in self.nodes.values():
            deadline_ms = node.pump.next_deadline_ms() if node.alive else None
            if deadline_ms is not None:
                due.append(float(deadline_ms))
        if not due:
            return False
        self.now_ms = max(self.now_ms, min(due))
        while self._agenda and self._agenda[0][0] <= self.now_ms:
            heapq.heappop(self._agenda)[2]()
        return True

    def run(self, until: Callable[[], bool], steps_max: int = 20_000) -> None:
        for _ in range(steps_max):
            if until():
                return
            if not self.step():
                break
        if not until():
            raise Violation(f"seed {self.seed}: no progress at {self.now_ms:.0f} ms")


def stamp(seed: int, size: int) -> Bytes:
    """Bytes that no other seed has."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def table(blocks: list[int]) -> tuple[BlockTable, ...]:
    return (BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64)),)
