"""A decode engine of a run: registers, cancels, checks every byte that it is given.

Owns the blocks it granted and what it was told of them. Invariants: each
registration is told landed or lost exactly once and then let go exactly once (C1,
N2); what landed is what the right source held (E3, G1, H1); nothing may write any
more once it was let go (A1, A2).
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.events import CancelRegistration, EdgePlan, Register, Resolved, Unresolvable
from kvxfer.core.ids import Attempt, Initiator, PeerKey, Reason, TransferId
from kvxfer.testing.sim.fabric import Fabric, Flight
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.plan import Legs, Transfer
from kvxfer.testing.sim.pools import Pool
from kvxfer.testing.sim.producer import PrefillEngine
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.testing.sim.shapes import (
    PATTERNS,
    Shape,
    canon,
    givers,
    parts_between,
    runs_of_slab,
    shift_of,
)

DECODE_US = 5_000
IMPATIENCE = 0.3
"""How likely a client leaves when its request is stuck."""


@attrs.define(eq=False)
class Leg:
    """One dispatch of a transfer at this engine: a slab on every rank."""

    transfer: Transfer
    legs: Legs
    tag: str
    slab: int
    life: int
    pending: int
    landed: int = 0
    failed: bool = False
    cancelled: bool = False


@attrs.define(eq=False)
class Reg:
    """One rank's registration."""

    leg: Leg
    rank: int
    serial: int
    ended: bool = False
    let_go: bool = False
    bad_table: bool = False
    danger: set[Flight] = attrs.field(factory=set)

    @property
    def slab(self) -> int:
        return self.leg.slab


@attrs.define(eq=False)
class DecodeEngine:
    """All ranks of one decoding engine."""

    scene: Scene
    name: str
    shape: Shape
    slabs: range
    fabric: Fabric
    producers: list[PrefillEngine]
    nodes: list[Node] = attrs.field(factory=list)
    pool: Pool = attrs.field(init=False)
    life: int = 0
    regs: dict[tuple[int, str], Reg] = attrs.field(factory=dict)
    """(rank, tag) -> registration, until it was let go."""
    attempts: dict[tuple[int, str, int], Reg] = attrs.field(factory=dict)
    started: int = 0
    ended: int = 0
    dropped: int = 0
    """Registrations that died with their engine."""
    _serial: int = 0

    def __attrs_post_init__(self) -> None:
        self.pool = Pool(self.scene, self.slabs.start, len(self.slabs))

    # --- what the engine wants ---

    def dispatch(self, transfer: Transfer, legs: Legs) -> None:
        if not self.nodes[0].alive:
            self.scene.hit("dispatched to a dead engine")
            return
        life = self.life
        if legs.decline:
            transfer.declined = True
            for node in self.nodes:
                node.feed(node.life, self._decline, node, transfer)
        else:
            self.pool.take(lambda slab: self._begin(transfer, legs, slab, f"d{legs.round}"))
            if legs.repeat_register:
                later = self.scene.delay_us() * 2
                self.scene.agenda.later(later, self._again, life, transfer, legs)

    def _again(self, life: int, transfer: Transfer, legs: Legs) -> None:
        """A second request under a name in use."""
        if life == self.life:
            again = attrs.evolve(legs, cancel_us=None)
            self.pool.take(lambda slab: self._begin(transfer, again, slab, f"e{legs.round}"))

    def _begin(self, transfer: Transfer, legs: Legs, slab: int, name: str) -> None:
        tag = f"{transfer.id}/{name}"
        leg = Leg(transfer, legs, tag, slab, self.life, len(self.nodes))
        later = self.scene.agenda.later
        for node in self.nodes:
            later(self.scene.delay_us() // 4, node.feed, node.life, self._register, node, leg)
        if legs.cancel_us is not None:
            later(legs.cancel_us, self._cancel, leg)

    def _register(self, node: Node, leg: Leg) -> None:
        transfer = leg.transfer
        if leg.cancelled:
            self._rank_over(leg)
            return
        self._serial += 1
        self.started += 1
        reg = Reg(leg, node.rank, self._serial)
        reg.bad_table = self.scene.chance("bad_table")
        self.regs[node.rank, leg.tag] = reg
        where = canon(self.shape, node.rank, leg.slab % PATTERNS)
        wanted = where.at[where.tokens(transfer.start, transfer.tokens)]
        node.owner[wanted + shift_of(self.shape, node.rank, leg.slab)] = reg.serial
        self.scene.note(node.name, "registers", transfer.id, leg.tag)
        node.handle(
            Register(
                transfer_id=transfer.id,
                producers=self._producers(transfer),
                digest=leg.legs.digest,
                deadline_ms=self.scene.knobs.timings.transfer_deadline_ms,
                tag=leg.tag,
                initiator=Initiator.CONSUMER if transfer.pull else Initiator.PRODUCER,
            )
        )

    def _decline(self, node: Node, transfer: Transfer) -> None:
        self.scene.note(node.name, "declines", transfer.id)
        node.handle(
            Register(
                transfer_id=transfer.id,
                producers=self._producers(transfer),
                digest=b"",
                deadline_ms=self.scene.knobs.timings.handshake_ms,
                silent=True,
            )
        )

    def _producers(self, transfer: Transfer) -> tuple[PeerKey, ...]:
        return tuple(node.key for node in self.producers[transfer.producer].nodes)

    def _cancel(self, leg: Leg) -> None:
        """The request ends: on every rank, each in its own time."""
        if leg.life != self.life or leg.cancelled:
            return
        leg.cancelled = True
        for node in self.nodes:
            if (node.rank, leg.tag) in self.regs:
                delay_us = self.scene.delay_us() // 4
                self.scene.agenda.later(
                    delay_us, node.feed, node.life, self._cancel_rank, node, leg
                )

    def lose_patience(self, within_us: int) -> None:
        """Clients leave where nothing moves: some of the requests that wait are cancelled."""
        waiting = {id(reg.leg): reg.leg for reg in self.regs.values() if not reg.ended}
        for leg in waiting.values():
            if self.scene.draw.random() < IMPATIENCE:
                self.scene.hit("cancelled in an incident")
                # Most of them soon, so that what is cancelled is still in flight.
                delay_us = int(within_us * self.scene.draw.random() ** 3)
                self.scene.agenda.later(delay_us, self._cancel, leg)

    def _cancel_rank(self, node: Node, leg: Leg) -> None:
        leg.transfer.declined = True  # Where no grant had left, the core now grants nothing.
        self.scene.note(node.name, "cancels", leg.transfer.id, leg.tag)
        node.handle(
            CancelRegistration(
                transfer_id=leg.transfer.id, reason=Reason.CANCELLED_BY_CONSUMER, tag=leg.tag
            )
        )

    # --- what its agents ask ---

    def resolve(self, node: Node, effect: fx.Resolve) -> None:
        cables = [self.fabric.wires.cables[link] for link in effect.links]
        reg = None if effect.silent else self.regs[node.rank, effect.tag]
        if reg is not None:
            self.attempts[node.rank, effect.transfer_id, effect.attempt] = reg
        if reg is not None and reg.bad_table:
            node.handle(
                Unresolvable(
                    transfer_id=effect.transfer_id,
                    attempt=effect.attempt,
                    reason=Reason.OUT_OF_BOUNDS,
                    detail="drawn",
                )
            )
            return
        edges: list[EdgePlan] = []
        if all(cable.is_open(node) for cable in cables):
            for cable in cables:
                far = cable.acceptor
                if far.rank in givers(far.engine.shape, self.shape, node.rank):
                    edges.append(self._edge(node, far, reg))
        event = Resolved(transfer_id=effect.transfer_id, attempt=effect.attempt, edges=tuple(edges))
        node.handle(event)

    def _edge(self, node: Node, far: Node, reg: Reg | None) -> EdgePlan:
        if reg is None:
            return EdgePlan(peer=far.key, parts=(), tables=())
        transfer = reg.leg.transfer
        span, cut = (transfer.start, transfer.tokens), self.scene.knobs.ways.cut
        ranks = (far.rank, node.rank)
        parts = parts_between(far.engine.shape, self.shape, ranks, span, cut)
        tables = () if transfer.pull else (runs_of_slab(self.shape, reg.leg.slab),)
        return EdgePlan(peer=far.key, parts=parts, tables=tables)

    # --- what it is told ---

    def told(self, node: Node, effect: Any) -> None:
        name = type(effect).__name__
        tid: TransferId = effect.transfer_id
        self.scene.note(node.name, name, tid, effect.tag)
        reg = self.regs.get((node.rank, effect.tag))
        if reg is None:
            raise SimViolation(f"N2: {node.name} told {name} of {effect.tag}, which has ended", tid)
        if name == "TellLetGo":
            self._let_go(node, reg, effect.attempt)
            return
        if reg.ended:
            raise SimViolation(f"C1: {effect.tag} was told its end twice", tid)
        reg.ended = True
        if name == "TellLanded":
            self._landed(node, reg)
        else:
            self._lost(reg, effect.reason)

    def _landed(self, node: Node, reg: Reg) -> None:
        leg = reg.leg
        self.scene.hit("landed")
        self._check_bytes(node, leg)
        leg.landed += 1
        if leg.landed == len(self.nodes):
            leg.transfer.landed += 1

    def _check_bytes(self, node: Node, leg: Leg) -> None:
        transfer = leg.transfer
        where = canon(self.shape, node.rank, leg.slab % PATTERNS)
        tokens = where.tokens(transfer.start, transfer.tokens)
        found = node.memory[where.at[tokens] + shift_of(self.shape, node.rank, leg.slab)]
        if (found != transfer.content[where.of[tokens]]).any():
            raise SimViolation(f"D1: {leg.tag} at {node.name} holds wrong bytes", transfer.id)

    def _lost(self, reg: Reg, reason: Reason) -> None:
        self.scene.hit(f"lost: {reason.name}")
        leg = reg.leg
        if reason is Reason.CANCELLED_BY_CONSUMER:
            leg.transfer.aborted = True
        if not leg.failed:
            # A rank's failure is the whole request's: the engine gives it up everywhere (O2).
            leg.failed = True
            self.scene.agenda.later(self.scene.delay_us(), self._cancel, leg)

    def _let_go(self, node: Node, reg: Reg, attempt: Attempt) -> None:
        leg = reg.leg
        tid = leg.transfer.id
        if not reg.ended:
            raise SimViolation(f"C1: {leg.tag} was let go before it ended", tid)
        writing = self.fabric.may_write(reg)
        if writing:
            raise SimViolation(f"A2: {leg.tag} was let go while ops {writing} may write", tid)
        reg.let_go = True
        self.ended += 1
        del self.regs[node.rank, leg.tag]
        self.attempts.pop((node.rank, tid, attempt), None)
        where = canon(self.shape, node.rank, leg.slab % PATTERNS)
        node.owner[where.at + shift_of(self.shape, node.rank, leg.slab)] = 0
        self._rank_over(leg)

    def _rank_over(self, leg: Leg) -> None:
        leg.pending -= 1
        if leg.pending:
            return
        if leg.landed == len(self.nodes):
            self.scene.agenda.later(DECODE_US, self._decoded, leg)
        else:
            self.pool.give(leg.slab)
            self._retry(leg)

    def _decoded(self, leg: Leg) -> None:
        """The request has used what landed; it must still be there."""
        if leg.life == self.life:
            for node in self.nodes:
                self._check_bytes(node, leg)
            self.pool.give(leg.slab)

    def _retry(self, leg: Leg) -> None:
        transfer = leg.transfer
        name = leg.tag.rpartition("/")[2]
        again = name == f"d{transfer.rounds}" and not transfer.aborted and transfer.rounds < 3
        if again and self.scene.chance("retry"):
            self.producers[transfer.producer].redispatch(transfer)

    # --- lives ---

    def died(self) -> None:
        self.life += 1
        self.pool.reset()
        for reg in self.regs.values():
            reg.let_go = True
        self.dropped += len(self.regs)
        self.regs.clear()
        self.attempts.clear()

    def target_of(self, node: Node, transfer_id: TransferId, attempt: int) -> Reg | None:
        return self.attempts.get((node.rank, transfer_id, attempt))
