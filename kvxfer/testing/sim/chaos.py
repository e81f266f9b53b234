"""Incidents of a run: partitions, clogs, cuts, stalls, restarts.

Owns when they happen and to whom. Knows no protocol. Invariant: after `end` no
incident lasts and none begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from kvxfer.core.ids import Incarnation, Reason
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
            "shutdowns": self._shut_down,
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
        """A process dies; now and then its host with it, so that nobody is told."""
        engine = self.scene.draw.choice(engines)
        if engine.nodes[0].alive and not engine.closing:
            silent = self.scene.draw.random() < 0.3
            if silent:
                self.scene.hit("silent deaths")
            self._die(engine, silent=silent)

    def _die(self, engine: AnyEngine, *, silent: bool = False) -> None:
        self.scene.note("world", "dies", "", engine.name)
        for node in engine.nodes:
            self.fabric.died(node)
            if not silent:
                self.wires.died(node)
            node.kill()
        engine.died()
        self.scene.agenda.later(self.scene.long_us() // 10, self._come_back, engine)

    def _come_back(self, engine: AnyEngine) -> None:
        self.scene.note("world", "starts again", "", engine.name)
        engine.closing = False
        self._boot(engine)

    def _shut_down(self) -> None:
        """An orderly end (P1): refuse, end what is there, wait for a bounded time, say BYE."""
        engine = self.scene.draw.choice(self.engines)
        if not engine.nodes[0].alive or engine.closing:
            return
        self.scene.note("world", "shuts down", "", engine.name)
        engine.closing = True
        for node in engine.nodes:
            node.feed(node.life, self._close_session, node)
        self.scene.agenda.later(self.scene.long_us() // 10, self._bye, engine)

    def _close_session(self, node: Node) -> None:
        node.session.shut_down(node.now_ms())

    def _bye(self, engine: AnyEngine) -> None:
        for node in engine.nodes:
            node.feed(node.life, node.session.say_bye, Reason.SHUTDOWN)
        self._die(engine)
