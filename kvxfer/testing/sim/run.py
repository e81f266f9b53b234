"""One seed: build the world, let faults happen, let them stop, see that all ends.

Owns the two phases and the checks at rest. Knows no transition of the protocol.
Invariant (C2, L1, I-06): once faults stop, every transfer ends on both sides, every
table of every agent is empty, and every pair of agents can serve again.
"""

from __future__ import annotations

import time
from collections import Counter

import attrs

from kvxfer.core.ids import Role, TransferId
from kvxfer.testing.between import Violation
from kvxfer.testing.sim.agenda import Clock
from kvxfer.testing.sim.chaos import Chaos
from kvxfer.testing.sim.consumer import DecodeEngine, Reg
from kvxfer.testing.sim.engine import Engine
from kvxfer.testing.sim.fabric import Fabric
from kvxfer.testing.sim.knobs import draw_clock, draw_knobs
from kvxfer.testing.sim.node import Node
from kvxfer.testing.sim.plan import Legs, Transfer, draw_legs, draw_transfer
from kvxfer.testing.sim.producer import Offered, PrefillEngine
from kvxfer.testing.sim.scene import Scene, SimViolation
from kvxfer.testing.sim.shapes import Shape, fits
from kvxfer.testing.sim.wires import Wires

REST_US = 30 * 3_600_000_000
"""A queue of prefills whose consumers have left drains by one offer lease after the other."""
"""Virtual time after which what has not ended will not: an hour."""
PROBE_US = 200_000_000
"""Virtual time that a transfer may take where nothing goes wrong; above every deadline."""


@attrs.frozen(kw_only=True)
class Broken:
    """An invariant that broke, told so that a person can repeat and read it."""

    seed: int
    transfers: int
    rule: str
    transfer: str
    transcript: str
    world: str = "fast"

    @property
    def command(self) -> str:
        level = "" if self.world == "fast" else f" --world {self.world}"
        return f"kvxfer sim --seed {self.seed} --transfers {self.transfers}{level}"

    def text(self) -> str:
        return f"{self.rule}\nrepeat: {self.command}\n{self.transcript}"


@attrs.frozen(kw_only=True)
class SeedResult:
    """What one seed came to."""

    seed: int
    transfers: int
    unended: int
    tables_empty: bool
    digest: str
    broken: Broken | None
    hits: Counter[str]
    steps: int
    seconds: float


@attrs.define(eq=False)
class Run:
    """One seed's world."""

    seed: int
    transfers: int
    scene: Scene = attrs.field(init=False)
    wires: Wires = attrs.field(init=False)
    fabric: Fabric = attrs.field(init=False)
    chaos: Chaos = attrs.field(init=False)
    engines: list[Engine] = attrs.field(factory=list)
    producers: list[PrefillEngine] = attrs.field(factory=list)
    consumers: list[DecodeEngine] = attrs.field(factory=list)
    """Parts of engines, by the numbers in a transfer; those for read-back come last."""
    made: int = 0

    def __attrs_post_init__(self) -> None:
        knobs = draw_knobs(self.seed)
        self.scene = Scene(self.seed, knobs)
        self.wires = Wires(self.scene)
        self.fabric = Fabric(self.scene, self.wires)
        self.fabric.books = self
        first = [self._engine(f"P{n}", shape) for n, shape in enumerate(knobs.producers)]
        second = [self._engine(f"D{n}", shape) for n, shape in enumerate(knobs.consumers)]
        self.engines = [*first, *second]
        both = knobs.ways.read_back > 0
        for engine in (*first, *(second if both else ())):
            self._add_prefill(engine, both=both)
        for engine in (*second, *(first if both else ())):
            self._add_decode(engine, both=both)
        for source in self.producers:
            source.consumers += [taker.shape for taker in self.consumers]
        for engine in self.engines:
            engine.nodes += self._nodes(engine)
            for part in engine.parts:
                part.nodes = engine.nodes
        self.chaos = Chaos(self.scene, self.wires, self.fabric, first, second)

    # --- the world ---

    def _engine(self, name: str, shape: Shape) -> Engine:
        return Engine(self.scene, name, shape, self.wires)

    def _add_prefill(self, engine: Engine, *, both: bool) -> None:
        slabs = range(self.scene.knobs.slabs // (2 if both else 1))
        part = PrefillEngine(self.scene, engine.name, engine.shape, slabs, self.redispatch)
        engine.prefill = part
        self.producers.append(part)

    def _add_decode(self, engine: Engine, *, both: bool) -> None:
        count = self.scene.knobs.slabs
        slabs = range(count // 2 if both else 0, count)
        part = DecodeEngine(
            self.scene, engine.name, engine.shape, slabs, self.fabric, self.producers
        )
        engine.decode = part
        self.consumers.append(part)

    def _nodes(self, engine: Engine) -> list[Node]:
        role = Role.BOTH if len(engine.parts) > 1 else Role.PRODUCER
        if engine.prefill is None:
            role = Role.CONSUMER
        found = []
        for rank in range(engine.shape.ranks):
            clock = Clock(*draw_clock(self.scene.draw)) if self.scene.knobs.clocks else Clock()
            node = Node(self.scene, engine, rank, role, clock, self.wires, self.fabric)
            self.wires.nodes[node.key] = node
            found.append(node)
        return found

    # --- the engines' books, for the transport ---

    def _prefill(self, node: Node) -> PrefillEngine:
        engine = node.engine
        assert isinstance(engine, Engine)
        assert engine.prefill is not None
        return engine.prefill

    def source_of(self, node: Node, tag: str) -> Offered:
        return self._prefill(node).source_of(node, tag)

    def holder_of(self, node: Node, slab: int) -> Offered | None:
        return self._prefill(node).holders.get((node.rank, slab))

    def target_of(self, node: Node, transfer_id: TransferId, attempt: int) -> Reg | None:
        engine = node.engine
        assert isinstance(engine, Engine)
        assert engine.decode is not None
        return engine.decode.target_of(node, transfer_id, attempt)

    # --- the workload ---

    def _start(self) -> None:
        self.made += 1
        draw, knobs = self.scene.draw, self.scene.knobs
        producers, consumers = len(knobs.producers), len(knobs.consumers)
        producer, consumer = draw.randrange(producers), draw.randrange(consumers)
        back = draw.random() < knobs.ways.read_back
        if back:
            # The decoding engine's part as a producer, the prefilling engine's as a consumer.
            producer, consumer = producers + consumer, consumers + producer
            self.scene.hit("read-back")
        self.redispatch(draw_transfer(self.scene, self.made, producer, consumer, read_back=back))
        if self.made < self.transfers:
            gap_us = draw.randrange(2 * self.scene.knobs.spacing_us)
            self.scene.agenda.later(gap_us, self._start)

    def redispatch(self, transfer: Transfer) -> None:
        """The router sends both legs out."""
        transfer.rounds += 1
        self._send_out(transfer, draw_legs(self.scene, transfer))

    def _send_out(self, transfer: Transfer, legs: Legs) -> None:
        later = self.scene.agenda.later
        if legs.prefill_us is not None:
            later(legs.prefill_us, self.producers[transfer.producer].dispatch, transfer, legs)
        if legs.register_us is not None:
            later(legs.register_us, self.consumers[transfer.consumer].dispatch, transfer, legs)

    # --- the phases ---

    def run(self) -> SeedResult:
        started = time.perf_counter()
        broken = None
        try:
            self._safety()
            self._liveness()
        except SimViolation as violation:
            broken = self._broken(str(violation), violation.transfer)
        except Violation as violation:
            broken = self._broken(str(violation), "")
        except Exception as error:  # noqa: BLE001 - the core must never raise, whatever it is fed
            broken = self._broken(f"X1: {type(error).__name__}: {error}", self._latest())
        for node in self.wires.nodes.values():
            if node.alive:
                self.scene.count(node.session.ctx.counters)
        return SeedResult(
            seed=self.seed,
            transfers=self.made,
            unended=self._unended(),
            tables_empty=self._full_tables() == "",
            digest=self.scene.history.digest(),
            broken=broken,
            hits=self.scene.hits,
            steps=self.scene.agenda.steps,
            seconds=time.perf_counter() - started,
        )

    def _safety(self) -> None:
        span_us = self.transfers * self.scene.knobs.spacing_us
        self.chaos.start_all()
        self.chaos.plan(self.transfers, span_us)
        self.scene.agenda.later(0, self._start)
        step_us = reach_us = span_us // 4 + 1
        while self.made < self.transfers:
            steps = self.scene.agenda.steps
            self.scene.agenda.run(self.scene.agenda.now_us + reach_us)
            # Time stands still where nothing happens: look further until something does.
            reach_us = step_us if self.scene.agenda.steps > steps else 2 * reach_us
        self.scene.agenda.run(self.scene.agenda.now_us + 50_000)

    def _liveness(self) -> None:
        agenda = self.scene.agenda
        self.scene.calm()
        self.chaos.end()
        if not agenda.run(agenda.now_us + REST_US):
            raise SimViolation("C2: the world does not come to rest", self._first_live())
        self._check_rest()
        for producer in range(len(self.producers)):
            for consumer in range(len(self.consumers)):
                if self.producers[producer].name != self.consumers[consumer].name:
                    self._probe(producer, consumer)
        if not agenda.run(agenda.now_us + REST_US):
            raise SimViolation("C2: the world does not come to rest again", self._first_live())
        self._check_rest()

    def _probe(self, producer: int, consumer: int, tries: int = 1) -> None:
        """With no fault left, a pair that fits serves at once, whatever happened before."""
        if not fits(self.producers[producer].shape, self.consumers[consumer].shape):
            return
        self.made += 1
        transfer = draw_transfer(self.scene, self.made, producer, consumer)
        self.redispatch(transfer)
        self.scene.agenda.later(PROBE_US, self._check_probe, transfer, tries)

    def _check_probe(self, transfer: Transfer, tries: int) -> None:
        if transfer.landed == 1:
            return
        # A link to a host that died without a word is found dead by the first use of it.
        if tries == 1 and self.scene.hits["silent deaths"]:
            self._probe(transfer.producer, transfer.consumer, tries + 1)
            return
        raise SimViolation("I-06: a pair serves no more after faults have stopped", transfer.id)

    # --- at rest ---

    def _check_rest(self) -> None:
        unended = self._unended()
        if unended:
            raise SimViolation(f"C2: {unended} without an end", self._first_live())
        full = self._full_tables()
        if full:
            raise SimViolation(f"L1: tables not empty: {full}", self._first_live())
        for engine in self.engines:
            for part in engine.parts:
                if len(part.pool.free) != len(part.slabs) or part.pool.waiting:
                    raise SimViolation(f"L1: {engine.name} has not got all its blocks back")
                if part.started != part.ended + part.dropped:
                    raise SimViolation(f"C1: {engine.name}: ends do not add up")
            for node in engine.nodes:
                self._check_books(node)

    def _check_books(self, node: Node) -> None:
        """Outcome counters of an agent add up (R1)."""
        counts = node.session.ctx.counters
        if counts["registered"] != counts["landed"] + counts["lost"] + counts["cancelled"]:
            raise SimViolation(f"R1: {node.name}: registrations do not add up: {dict(counts)}")
        if counts["offered"] != counts["sent"] + counts["unsent"]:
            raise SimViolation(f"R1: {node.name}: offers do not add up: {dict(counts)}")
        if node.owner.any():
            raise SimViolation(f"A1: {node.name} has bytes that somebody may still write")

    def _unended(self) -> int:
        """Registrations and offers that no engine was told the end of."""
        return sum(len(taker.regs) for taker in self.consumers) + sum(
            len(source.offers) for source in self.producers
        )

    def _full_tables(self) -> str:
        """Which agents hold something that must be gone at rest; "" where none does."""
        found = []
        for engine in self.engines:
            for node in engine.nodes:
                if node.alive:
                    session = node.session
                    counts = session.live(), session.consumer.quarantined(), len(session.ctx.timers)
                    if any(counts):
                        found.append(f"{node.name} live, quarantined, timers = {counts}")
        return "; ".join(found)

    def _first_live(self) -> str:
        for engine in self.consumers:
            for reg in engine.regs.values():
                return reg.leg.transfer.id
        for source in self.producers:
            for offered in source.offers.values():
                return offered.leg.transfer.id
        return ""

    def _latest(self) -> str:
        return next((r[3] for r in reversed(self.scene.history.records) if r[3]), "")

    def _broken(self, rule: str, transfer: str) -> Broken:
        return Broken(
            seed=self.seed,
            transfers=self.transfers,
            rule=rule,
            transfer=transfer,
            transcript=self.scene.history.transcript(transfer),
        )


def run_seed(seed: int, transfers: int) -> SeedResult:
    """Run one seed from its beginning to its rest."""
    return Run(seed, transfers).run()
