"""One engine of a run: its agents, and the one or two parts that it plays.

Owns what both parts share: the handshake's second phase, dying, draining. Knows no
transfer. Invariant (P1): an agent that says it is drained holds nothing, and says
so once in its life.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.handshake import Refusal
from kvxfer.core.ids import LinkId, Reason
from kvxfer.core.messages import Describe
from kvxfer.testing.sim.consumer import DecodeEngine
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.producer import PrefillEngine
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.testing.sim.shapes import Shape, fits, givers, takers
from kvxfer.testing.sim.wires import Wires


@attrs.define(eq=False)
class Engine:
    """All ranks of one engine."""

    scene: Scene
    name: str
    shape: Shape
    wires: Wires
    prefill: PrefillEngine | None = None
    decode: DecodeEngine | None = None
    nodes: list[Node] = attrs.field(factory=list)
    leaving: bool = False
    """It drains or shuts down."""
    quiet: set[int] = attrs.field(factory=set)
    """Ranks that were told that they are drained."""

    @property
    def alive(self) -> bool:
        return self.nodes[0].alive

    @property
    def parts(self) -> list[PrefillEngine | DecodeEngine]:
        return [part for part in (self.prefill, self.decode) if part is not None]

    # --- what its agents ask ---

    def describe(self, node: Node, _link: LinkId) -> Describe:
        cut = self.scene.knobs.ways.cut
        return Describe(
            transport="sim",
            blob=node.name.encode(),
            shard=repr(self.shape).encode(),
            part_tokens=cut.tokens,
            part_layers=int(cut.layers),
        )

    def accept(self, node: Node, link: LinkId, theirs: Describe) -> tuple[int, ...]:
        """Refuse a peer of another model, or one that is not what its address says."""
        cable = self.wires.cables[link]
        other = cable.other(node).engine.shape
        if theirs.shard != repr(other).encode():
            raise Refusal(Reason.LAYOUT_REFUSED, "not the shape that was expected")
        dials = node is cable.dialler
        producer, consumer = (other, self.shape) if dials else (self.shape, other)
        if not fits(producer, consumer):
            raise Refusal(Reason.LAYOUT_REFUSED, "caches of two models")
        return (givers if dials else takers)(producer, consumer, node.rank)

    def resolve(self, node: Node, effect: fx.Resolve) -> None:
        if self.decode is None:
            raise SimViolation(f"N2: {node.name} was asked to resolve", effect.transfer_id)
        self.decode.resolve(node, effect)

    # --- what it is told ---

    def told(self, node: Node, effect: Any) -> None:
        part: PrefillEngine | DecodeEngine | None = self.decode
        if isinstance(effect, fx.TellSent | fx.TellUnsent):
            part = self.prefill
        if part is None:
            raise SimViolation(f"N2: {node.name} was told {effect}", effect.transfer_id)
        part.told(node, effect)

    def drained(self, node: Node) -> None:
        self.scene.note(node.name, "is drained")
        if node.session.live() or node.rank in self.quiet or not self.leaving:
            raise SimViolation(f"P1: {node.name} says that it is drained, and is not")
        self.quiet.add(node.rank)

    # --- lives ---

    def died(self) -> None:
        for part in self.parts:
            part.died()

    def reborn(self) -> None:
        self.leaving = False
        self.quiet.clear()
