"""Incidents of a run: partitions, clogs, cuts, stalls, restarts, drains.

Owns when they happen and to whom. Knows no protocol. Invariant: after `end` no
incident lasts and none begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from kvxfer.core.events import Drain
from kvxfer.core.ids import Incarnation, Reason
from kvxfer.testing.sim.engine import Engine
from kvxfer.testing.sim.fabric import Fabric
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.scene import Scene
from kvxfer.testing.sim.wires import Wires


@attrs.define(eq=False)
class Chaos:
    """All incidents of a run."""

    scene: Scene
    wires: Wires
    fabric: Fabric
    producers: list[Engine]
    consumers: list[Engine]
    _lives: int = 0

    @property
    def engines(self) -> list[Engine]:
        return [*self.producers, *self.consumers]

    def plan(self, transfers: int, span_us: int) -> None:
        """Spread the seed's incidents over the safety phase."""
        incidents: dict[str, Callable[[], None]] = {
            "cuts": self._cut,
            "partitions": self._partition,
            "clogs": self._clog,
            "stalls": self._stall,
            "producer_restarts": partial(self._restart, self.producers),
            "consumer_restarts": partial(self._restart, self.consumers),
            "shutdowns": self._shut_down,
            "drains": self._drain,
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

    # --- the network ---

    def _pair(self) -> tuple[Node, Node]:
        """A consumer and a producer; half the time two between which something is in flight."""
        draw = self.scene.draw
        flights = list(self.fabric.flights.values())
        if flights and draw.random() < 0.5:
            flight = draw.choice(flights)
            return flight.taker, flight.giver
        consumer, producer = draw.choice(self.consumers), draw.choice(self.producers)
        return draw.choice(consumer.nodes), draw.choice(producer.nodes)

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
        self._impatience(long_us)
        broken = self.scene.draw.random() < 0.5
        for pair in pairs:
            self.scene.note("world", "partition", "", f"{pair[0].name} {pair[1].name}")
            self.wires.block(*pair, self.scene.agenda.now_us + long_us)
            for cable in self.wires.live() if broken else ():
                if {cable.dialler, cable.acceptor} == set(pair):
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
            for engine in self.engines:
                if engine.decode is not None:
                    engine.decode.lose_patience(within_us)

    # --- lives ---

    def start_all(self) -> None:
        for engine in self.engines:
            self._boot(engine)

    def _boot(self, engine: Engine) -> None:
        engine.reborn()
        for node in engine.nodes:
            self._lives += 1
            node.boot(Incarnation(self._lives))

    def _restart(self, engines: list[Engine]) -> None:
        """A process dies; now and then its host with it, so that nobody is told."""
        engine = self.scene.draw.choice(engines)
        if engine.alive and not engine.leaving:
            silent = self.scene.draw.random() < 0.3
            if silent:
                self.scene.hit("silent deaths")
            self._die(engine, silent=silent)

    def _die(self, engine: Engine, *, silent: bool = False) -> None:
        self.scene.note("world", "dies", "", engine.name)
        for node in engine.nodes:
            self.fabric.died(node)
            if not silent:
                self.wires.died(node)
            self.scene.count(node.session.ctx.counters)
            node.kill()
        engine.died()
        self.scene.agenda.later(self.scene.long_us() // 10, self._come_back, engine)

    def _come_back(self, engine: Engine) -> None:
        self.scene.note("world", "starts again", "", engine.name)
        self._boot(engine)

    def _leave(self, what: str) -> Engine | None:
        engine = self.scene.draw.choice(self.engines)
        if not engine.alive or engine.leaving:
            return None
        self.scene.note("world", what, "", engine.name)
        engine.leaving = True
        return engine

    def _shut_down(self) -> None:
        """An orderly end (P1): refuse, end what is there, wait for a bounded time, say BYE."""
        engine = self._leave("shuts down")
        if engine is not None:
            self._close(engine)

    def _close(self, engine: Engine) -> None:
        for node in engine.nodes:
            node.feed(node.life, self._close_session, node)
        self.scene.agenda.later(self.scene.long_us() // 10, self._bye, engine)

    def _close_session(self, node: Node) -> None:
        node.session.shut_down(node.now_ms())

    def _bye(self, engine: Engine) -> None:
        for node in engine.nodes:
            node.feed(node.life, node.session.say_bye, Reason.SHUTDOWN)
        self._die(engine)

    def _drain(self) -> None:
        """Scale down: nothing new is taken, what is there is finished, then the engine leaves."""
        engine = self._leave("drains")
        if engine is not None:
            for node in engine.nodes:
                node.feed(node.life, node.handle, Drain())
            self.scene.agenda.later(self.scene.long_us(), self._after_drain, engine)

    def _after_drain(self, engine: Engine) -> None:
        if len(engine.quiet) == len(engine.nodes):
            self.scene.hit("drained")
            self._bye(engine)
        else:
            self.scene.hit("drain cut short")
            self._close(engine)
