"""Incidents of a run: partitions, clogs, cuts, stalls, restarts.

Owns when they happen and to whom. Knows no protocol. Invariant: after `end` no
incident lasts and none begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from kvxfer.core.ids import Incarnation
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.scene import Scene

if TYPE_CHECKING:
    from kvxfer.testing.sim.consumer import DecodeEngine
    from kvxfer.testing.sim.fabric import Fabric
    from kvxfer.testing.sim.producer import PrefillEngine
    from kvxfer.testing.sim.wires import Wires

    AnyEngine = PrefillEngine | DecodeEngine


@attrs.define(eq=False)
class Chaos:
    """All incidents of a run."""

    scene: Scene
    wires: Wires
    fabric: Fabric
    producers: list[PrefillEngine]
    consumers: list[DecodeEngine]
    _lives: int = 0

    @property
    def engines(self) -> list[AnyEngine]:
        return [*self.producers, *self.consumers]

    def plan(self, transfers: int, span_us: int) -> None:
        """Spread the seed's incidents over the safety phase."""
        incidents: dict[str, Callable[[], None]] = {
            "cuts": self._cut,
            "partitions": self._partition,
            "clogs": self._clog,
            "stalls": self._stall,
            "producer_restarts": lambda: self._restart(self.producers),
            "consumer_restarts": lambda: self._restart(self.consumers),
        }
        for name, happen in incidents.items():
            per_thousand = getattr(self.scene.knobs.incidents, name)
            count = max(1, round(per_thousand * transfers / 1000)) if per_thousand else 0
            for _ in range(count):
                self.scene.agenda.at(self.scene.draw.randrange(span_us), self._happen, name, happen)

    def _happen(self, name: str, happen: Callable[[], None]) -> None:
        if self.scene.faulty:
            self.scene.hit(name)
            happen()

    def end(self) -> None:
        """Whatever goes wrong now stops; engines that are down come back by themselves."""
        self.wires.unblock()
        for engine in self.engines:
            for node in engine.nodes:
                node.thaw()

    # --- incidents ---

    def _pair(self) -> tuple[Node, Node]:
        """A consumer and a producer; half the time two between which something is in flight."""
        draw = self.scene.draw
        flights = list(self.fabric.flights.values())
        if flights and draw.random() < 0.5:
            flight = draw.choice(flights)
            return flight.target, flight.node
        return draw.choice(draw.choice(self.consumers).nodes), draw.choice(
            draw.choice(self.producers).nodes
        )

    def _cut(self) -> None:
        live = self.wires.live()
        if live:
            cable = self.scene.draw.choice(live)
            self.scene.note("world", "cuts link", "", " ".join(cable.pair))
            self.wires.cut(cable)

    def _partition(self) -> None:
        """A pair of agents, or two whole engines, hear nothing of each other."""
        consumer, producer = self._pair()
        pairs = [(consumer, producer)]
        if self.scene.draw.random() < 0.5:
            engines = {engine.name: engine for engine in self.engines}
            everyone = [engines[node.engine.name].nodes for node in pairs[0]]
            pairs = [(d, p) for d in everyone[0] for p in everyone[1]]
        long_us = self.scene.long_us()
        until_us = self.scene.agenda.now_us + long_us
        self._impatience(long_us)
        broken = self.scene.draw.random() < 0.5
        for pair in pairs:
            self.scene.note("world", "partition", "", f"{pair[0].name} {pair[1].name}")
            self.wires.block(*pair, until_us)
            for cable in self.wires.live() if broken else ():
                if (cable.dialler, cable.acceptor) == pair:
                    self.wires.cut(cable)

    def _clog(self) -> None:
        pair = self._pair()
        self.scene.note("world", "clog", "", f"{pair[0].name} {pair[1].name}")
        self.wires.block(*pair, self.scene.agenda.now_us + self.scene.long_us() // 10)

    def _stall(self) -> None:
        node = self._pair()[self.scene.draw.randrange(2)]
        self.scene.note("world", "stalls", "", node.name)
        long_us = self.scene.long_us()
        node.freeze(self.scene.agenda.now_us + long_us)
        self._impatience(long_us)

    def _impatience(self, within_us: int) -> None:
        if self.scene.rates.cancel:
            for engine in self.consumers:
                engine.lose_patience(within_us)

    # --- lives ---

    def start_all(self) -> None:
        for engine in self.engines:
            self._boot(engine)

    def _boot(self, engine: AnyEngine) -> None:
        for node in engine.nodes:
            self._lives += 1
            node.boot(Incarnation(self._lives))

    def _restart(self, engines: Sequence[AnyEngine]) -> None:
        engine = self.scene.draw.choice(engines)
        if not engine.nodes[0].alive:
            return
        self.scene.note("world", "dies", "", engine.name)
        for node in engine.nodes:
            self.fabric.died(node)
            self.wires.died(node)
            node.kill()
        engine.died()
        down_us = self.scene.long_us() // 10
        self.scene.agenda.later(down_us, self._come_back, engine)

    def _come_back(self, engine: AnyEngine) -> None:
        self.scene.note("world", "starts again", "", engine.name)
        self._boot(engine)
