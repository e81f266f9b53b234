"""A prefill engine of a run: fills blocks, offers them, reuses them once it may.

Owns the blocks it offered and what it was told of them. Invariants: each offer is
told sent or unsent exactly once (C1, N2), when nothing reads its blocks any more
(B1); 'sent' means that every rank of the consumer has its bytes or wants none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.events import Expect, Offer, Withdraw
from kvxfer.core.handshake import Refusal
from kvxfer.core.ids import LinkId, Reason, TransferId
from kvxfer.core.messages import Describe
from kvxfer.testing.sim.fabric import Flight
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.plan import Legs, Transfer
from kvxfer.testing.sim.pools import Pool
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.testing.sim.shapes import PATTERNS, Shape, canon, fits, shift_of, takers
from kvxfer.testing.sim.wires import Wires

REUSED = 0xEE
"""What an engine writes over blocks that it has got back: a late read would carry it."""


def describe(shape: Shape, node: Node) -> Describe:
    return Describe(transport="sim", blob=node.name.encode(), shard=repr(shape).encode())


def check_description(producer: Shape, consumer: Shape, theirs: Describe) -> None:
    """Refuse a peer of another model, or one that is not what its address says."""
    if theirs.shard not in (repr(producer).encode(), repr(consumer).encode()):
        raise Refusal(Reason.LAYOUT_REFUSED, "not the shape that was expected")
    if not fits(producer, consumer):
        raise Refusal(Reason.LAYOUT_REFUSED, "caches of two models")


@attrs.define(eq=False)
class Leg:
    """One dispatch of a transfer at this engine: a slab on every rank."""

    transfer: Transfer
    legs: Legs
    tag: str
    slab: int
    life: int
    pending: int
    withdrawn: bool = False


@attrs.define(eq=False)
class Offered:
    """One rank's offer."""

    leg: Leg
    slab: int
    ended: bool = False
    reading: set[Flight] = attrs.field(factory=set)
    served: set[int] = attrs.field(factory=set)


@attrs.define(eq=False)
class PrefillEngine:
    """All ranks of one prefilling engine."""

    scene: Scene
    name: str
    shape: Shape
    wires: Wires
    redispatch: Callable[[Transfer], None]
    nodes: list[Node] = attrs.field(factory=list)
    pool: Pool = attrs.field(init=False)
    life: int = 0
    closing: bool = False
    """Shutting down; what is asked of it now is refused."""
    offers: dict[tuple[int, str], Offered] = attrs.field(factory=dict)
    """(rank, tag) -> offer, until its end was told."""
    consumers: list[Shape] = attrs.field(factory=list)
    started: int = 0
    ended: int = 0
    dropped: int = 0

    def __attrs_post_init__(self) -> None:
        self.pool = Pool(self.scene)

    # --- what the engine wants ---

    def dispatch(self, transfer: Transfer, legs: Legs) -> None:
        if not self.nodes[0].alive:
            self.scene.hit("dispatched to a dead engine")
            return
        tag = f"{transfer.id}/p{legs.round}"
        self.pool.take(lambda slab: self._begin(transfer, legs, slab, tag))

    def _begin(self, transfer: Transfer, legs: Legs, slab: int, tag: str) -> None:
        leg = Leg(transfer, legs, tag, slab, self.life, len(self.nodes))
        later = self.scene.agenda.later
        if legs.expect:
            for node in self.nodes:
                node.feed(node.life, self._expect, node, leg)
        later(legs.offer_us, self._prefilled, leg)
        if legs.withdraw_us is not None:
            later(legs.withdraw_us, self._withdraw, leg)

    def _expect(self, node: Node, leg: Leg) -> None:
        self.scene.note(node.name, "expects", leg.transfer.id, leg.tag)
        node.handle(Expect(transfer_id=leg.transfer.id, tag=leg.tag))

    def _prefilled(self, leg: Leg) -> None:
        if leg.life != self.life:
            return
        if leg.withdrawn:
            self.pool.give(leg.slab)
            return
        for node in self.nodes:
            delay_us = self.scene.delay_us() // 4
            self.scene.agenda.later(delay_us, node.feed, node.life, self._offer, node, leg)
        if leg.legs.repeat_offer:
            self.scene.agenda.later(self.scene.delay_us() * 2, self._again, leg)

    def _again(self, leg: Leg) -> None:
        """A second prefill under a name in use."""
        if leg.life == self.life:
            legs = attrs.evolve(leg.legs, repeat_offer=False, withdraw_us=None, expect=False)
            tag = f"{leg.transfer.id}/q{leg.legs.round}"
            self.pool.take(lambda slab: self._begin(leg.transfer, legs, slab, tag))

    def _offer(self, node: Node, leg: Leg) -> None:
        transfer = leg.transfer
        self._fill(node, leg.slab, transfer)
        self.offers[node.rank, leg.tag] = Offered(leg, leg.slab)
        self.started += 1
        self.scene.note(node.name, "offers", transfer.id, leg.tag)
        node.handle(
            Offer(
                transfer_id=transfer.id,
                token_count=leg.legs.offer_tokens,
                digest=transfer.digest,
                lease_ms=self.scene.knobs.timings.offer_lease_ms,
                tag=leg.tag,
            )
        )

    def _fill(self, node: Node, slab: int, transfer: Transfer | None) -> None:
        where = canon(self.shape, node.rank, slab % PATTERNS)
        data = REUSED if transfer is None else transfer.content[where.of]
        node.memory[where.at + shift_of(self.shape, node.rank, slab)] = data

    def _withdraw(self, leg: Leg) -> None:
        """The request is aborted, during its prefill or after it."""
        if leg.life != self.life:
            return
        leg.withdrawn = True
        for node in self.nodes:
            node.feed(node.life, self._withdraw_rank, node, leg)

    def _withdraw_rank(self, node: Node, leg: Leg) -> None:
        self.scene.note(node.name, "withdraws", leg.transfer.id, leg.tag)
        event = Withdraw(transfer_id=leg.transfer.id, reason=Reason.PRODUCER_ABORTED, tag=leg.tag)
        node.handle(event)

    # --- what its agents ask ---

    def describe(self, node: Node, _link: LinkId) -> Describe:
        return describe(self.shape, node)

    def accept(self, node: Node, link: LinkId, theirs: Describe) -> tuple[int, ...]:
        consumer = self.wires.cables[link].dialler.engine.shape
        check_description(self.shape, consumer, theirs)
        return takers(self.shape, consumer, node.rank)

    def resolve(self, node: Node, effect: fx.Resolve) -> None:
        raise SimViolation(f"N2: {node.name} was asked to resolve", effect.transfer_id)

    # --- what it is told ---

    def told(self, node: Node, effect: Any) -> None:
        name = type(effect).__name__
        tid: TransferId = effect.transfer_id
        self.scene.note(node.name, name, tid, effect.tag)
        offered = self.offers.pop((node.rank, effect.tag), None)
        if offered is None:
            raise SimViolation(f"N2: {node.name} told {name} of {effect.tag}, which has ended", tid)
        if offered.reading:
            ops = [flight.op for flight in offered.reading]
            raise SimViolation(f"B1: {effect.tag} ended while ops {ops} read it", tid)
        offered.ended = True
        self.ended += 1
        if name == "TellSent":
            self.scene.hit("sent")
            self._check_served(node, offered)
        else:
            self.scene.hit(f"unsent: {effect.reason.name}")
        leg = offered.leg
        self._fill(node, leg.slab, None)
        leg.pending -= 1
        if not leg.pending:
            self.pool.give(leg.slab)

    def _check_served(self, node: Node, offered: Offered) -> None:
        transfer = offered.leg.transfer
        needs = takers(self.shape, self.consumers[transfer.consumer], node.rank)
        if transfer.declined or transfer.start == transfer.tokens:
            return
        missing = [rank for rank in needs if rank not in offered.served]
        if missing:
            raise SimViolation(
                f"C3: {offered.leg.tag} at {node.name} was told sent without ranks {missing}",
                transfer.id,
            )

    # --- lives ---

    def died(self) -> None:
        self.life += 1
        self.pool.reset()
        self.dropped += len(self.offers)
        for offered in self.offers.values():
            offered.ended = True
        self.offers.clear()

    def source_of(self, node: Node, tag: str) -> Offered:
        return self.offers[node.rank, tag]
