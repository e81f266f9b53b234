"""A prefill engine of a run: fills blocks, offers them, reuses them once it may.

Owns the blocks it offered and what it was told of them. Streams what is final while
the prefill runs. Invariants: each offer is told sent or unsent exactly once (C1, N2),
when nothing reads its blocks any more (B1); 'sent' means that every rank of the
consumer has its bytes or wants none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kvxfer.core.events import Expect, Grow, Offer, Withdraw
from kvxfer.core.ids import Part, Reason, TransferId
from kvxfer.testing.sim.fabric import Flight
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.plan import Legs, Transfer
from kvxfer.testing.sim.pools import Pool
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.testing.sim.shapes import (
    PATTERNS,
    Shape,
    canon,
    parts_between,
    runs_of_slab,
    shift_of,
    takers,
)

REUSED = 0xEE
"""What an engine writes over blocks that it has got back: a late read would carry it."""


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


@attrs.frozen
class Step:
    """How far a prefill is."""

    tokens: int
    ahead: int
    """Of tokens below this, `layers` layers are final too."""
    layers: int
    sealed: bool = False


@attrs.define(eq=False)
class Offered:
    """One rank's offer."""

    leg: Leg
    slab: int
    ended: bool = False
    reading: set[Flight] = attrs.field(factory=set)
    served: set[tuple[int, Part]] = attrs.field(factory=set)
    """(consumer rank, part) of every part that arrived there."""


@attrs.define(eq=False)
class PrefillEngine:
    """All ranks of one prefilling engine."""

    scene: Scene
    name: str
    shape: Shape
    slabs: range
    redispatch: Callable[[Transfer], None]
    nodes: list[Node] = attrs.field(factory=list)
    pool: Pool = attrs.field(init=False)
    life: int = 0
    offers: dict[tuple[int, str], Offered] = attrs.field(factory=dict)
    """(rank, tag) -> offer, until its end was told."""
    holders: dict[tuple[int, int], Offered] = attrs.field(factory=dict)
    """(rank, slab) -> the same offer."""
    consumers: list[Shape] = attrs.field(factory=list)
    started: int = 0
    ended: int = 0
    dropped: int = 0

    def __attrs_post_init__(self) -> None:
        self.pool = Pool(self.scene, self.slabs.start, len(self.slabs))

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
        if legs.stream:
            later(0, self._stream, leg)
        else:
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
        self._fill(node, leg.slab, leg.transfer)
        self._announce(node, leg, leg.legs.offer_tokens, sealed=True)

    def _announce(self, node: Node, leg: Leg, token_count: int, *, sealed: bool) -> None:
        transfer = leg.transfer
        offered = Offered(leg, leg.slab)
        self.offers[node.rank, leg.tag] = self.holders[node.rank, leg.slab] = offered
        self.started += 1
        self.scene.note(node.name, "offers" if sealed else "begins to offer", transfer.id, leg.tag)
        node.handle(
            Offer(
                transfer_id=transfer.id,
                token_count=token_count,
                digest=transfer.digest,
                lease_ms=self.scene.knobs.timings.offer_lease_ms,
                tag=leg.tag,
                sealed=sealed,
                tables=(runs_of_slab(self.shape, leg.slab),),
            )
        )

    # --- streaming ---

    def _stream(self, leg: Leg) -> None:
        """The prefill starts; its blocks are offered before a token of them is final."""
        if leg.life != self.life:
            return
        if leg.withdrawn:
            self.pool.give(leg.slab)
            return
        for node in self.nodes:
            node.feed(node.life, self._announce_stream, node, leg)
        self.scene.hit("stream begun")
        whole = leg.legs.offer_tokens
        lines = sorted({self.scene.draw.randrange(whole) for _ in range(3)} - {0})
        steps = [Step(count, count, 0) for count in lines]
        if self.scene.knobs.ways.cut.layers:
            steps.append(Step(lines[-1] if lines else 0, whole, 1))
        steps.append(Step(whole, whole, 0, sealed=True))
        self.scene.agenda.later(leg.legs.offer_us // len(steps), self._step, leg, steps)

    def _announce_stream(self, node: Node, leg: Leg) -> None:
        self._announce(node, leg, 0, sealed=False)

    def _step(self, leg: Leg, steps: list[Step]) -> None:
        """One more chunk is final. Where the request was aborted the prefill ends."""
        if leg.life != self.life or leg.withdrawn:
            return
        for node in self.nodes:
            node.feed(node.life, self._grow, node, leg, steps[0])
        if len(steps) > 1:
            pause_us = leg.legs.offer_us // len(steps)
            self.scene.agenda.later(pause_us, self._step, leg, steps[1:])

    def _grow(self, node: Node, leg: Leg, step: Step) -> None:
        offered = self.offers.get((node.rank, leg.tag))
        if offered is None:
            self.scene.hit("grown after its end")
        else:
            self._fill(node, leg.slab, leg.transfer, step)
        self.scene.note(node.name, "grows to", leg.transfer.id, f"{leg.tag} {step}")
        node.handle(
            Grow(
                transfer_id=leg.transfer.id,
                token_count=step.tokens,
                sealed=step.sealed,
                tag=leg.tag,
                tables=(runs_of_slab(self.shape, leg.slab),),
                token_ahead=step.ahead,
                layers_final=step.layers,
            )
        )

    def _fill(
        self, node: Node, slab: int, transfer: Transfer | None, step: Step | None = None
    ) -> None:
        """Write what is final, or over everything where there is no transfer any more."""
        where = canon(self.shape, node.rank, slab % PATTERNS)
        shift = shift_of(self.shape, node.rank, slab)
        if transfer is None:
            node.memory[where.at + shift] = REUSED
        elif step is None:
            node.memory[where.at + shift] = transfer.content[where.of]
        else:
            for at, of in where.final(step.tokens, step.ahead, step.layers):
                node.memory[at + shift] = transfer.content[of]

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
        self.holders.pop((node.rank, offered.slab), None)
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
        if transfer.declined:
            return
        consumer = self.consumers[transfer.consumer]
        span, cut = (transfer.start, transfer.tokens), self.scene.knobs.ways.cut
        for rank in takers(self.shape, consumer, node.rank):
            for part in parts_between(self.shape, consumer, (node.rank, rank), span, cut):
                if (rank, part) not in offered.served:
                    raise SimViolation(
                        f"C3: {offered.leg.tag} at {node.name} was told sent, rank {rank} "
                        f"lacks {part}",
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
        self.holders.clear()

    def source_of(self, node: Node, tag: str) -> Offered:
        return self.offers[node.rank, tag]
