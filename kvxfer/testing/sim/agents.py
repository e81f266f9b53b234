"""The second level: real agents, codec, driver and loopback transport, under one seed.

Owns a small workload over `kvxfer.testing.world`: two agents, all the code that a
process runs but threads and sockets. Slower than `run_seed` by several times and
with fewer engines; it covers the driver, the codec and the transport table that
the fast level replaces. Invariant: as there, a run is a function of its seed.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from functools import partial

import attrs
import numpy as np

from kvxfer.core.ids import Role, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.layout.geometry import Shard
from kvxfer.layout.orders import engine_shards
from kvxfer.limits import Limits, Timings
from kvxfer.record.transcript import words
from kvxfer.status import Status
from kvxfer.testing.between import Violation
from kvxfer.testing.engines import Pool, ToyConsumer, ToyProducer
from kvxfer.testing.outcomes import check_outcomes
from kvxfer.testing.sim.run import Broken, SeedResult
from kvxfer.testing.world import Bytes, Node, World
from kvxfer.transport.faults import Action, Drop, Duplicate, Fail, Hold, Refuse

TOKENS, SLOT_BYTES, BLOCKS = 4, 16, 48
BLOCK_BYTES = TOKENS * SLOT_BYTES
TRANSFER_BLOCKS = 3

FAULTS: tuple[Action, ...] = (
    Hold(),
    Hold(report=Status.OP_UNKNOWN),
    Fail(),
    Fail(after_bytes=40),
    Fail(status=Status.OP_UNKNOWN, after_bytes=40),
    Drop(data=False),
    Drop(status=Status.OP_FAILED),
    Duplicate(),
    Refuse(),
    Refuse(status=Status.OP_INVALID),
)


def make_node(world: World, name: str, role: Role) -> Node:
    """An agent with one rank and a cache of `BLOCKS` blocks, block 0 never used."""
    memory, shard = make_cache()
    return world.add(name, role, memory, shard)


def make_cache() -> tuple[Bytes, Shard]:
    memory = np.zeros(BLOCKS * BLOCK_BYTES, np.uint8)
    (shard,) = engine_shards(
        bases=[int(memory.ctypes.data)],
        layers=("0",),
        blocks=BLOCKS,
        tokens_per_block=TOKENS,
        heads_total=1,
        content_bytes=SLOT_BYTES,
        null_block=0,
    )
    return memory, shard


@attrs.define(eq=False)
class Bench:
    """A producer and a consumer in one world."""

    world: World
    producer: ToyProducer
    consumer: ToyConsumer

    def collect(self) -> None:
        self.producer.collect()
        self.consumer.collect()

    def quiet(self) -> bool:
        self.collect()
        return not self.producer.held and not self.consumer.held

    def ended(self, tag: str) -> bool:
        self.collect()
        return tag in self.consumer.landed or tag in self.consumer.lost

    def tables_empty(self) -> bool:
        """True where no living agent holds anything of a transfer."""
        counts = [n.pump.counters() for n in self.world.nodes.values() if n.alive]
        posting = any(n.pump.poster.active for n in self.world.nodes.values() if n.alive)
        return not posting and not any(c["live"] or c["quarantined"] for c in counts)

    def prefill(self, number: int, blocks: int = TRANSFER_BLOCKS) -> bool:
        tid = TransferId(f"t{number}")
        return self.producer.prefill(tid, number, blocks, f"p{number}")

    def register(self, number: int, blocks: int = TRANSFER_BLOCKS) -> bool:
        tid = TransferId(f"t{number}")
        node = self.producer.node
        return self.consumer.register(tid, number, blocks, f"d{number}", node)

    def cut_one(self) -> None:
        live = [line for line in self.world.lines if all(line.open_at.values())]
        if live:
            self.world.cut(self.world.draw.choice(live))


def make_bench(seed: int, limits: Limits | None = None, timings: Timings | None = None) -> Bench:
    world = World(seed, timings=timings or Timings(), limits=limits or Limits())
    p, d = make_node(world, "P", Role.PRODUCER), make_node(world, "D", Role.CONSUMER)
    return Bench(
        world,
        ToyProducer(world, p, Pool(p.memory, BLOCK_BYTES), TOKENS),
        ToyConsumer(world, d, Pool(d.memory, BLOCK_BYTES), TOKENS),
    )


@attrs.define(eq=False)
class AgentsRun:
    """One seed: faults in its first part, then they stop and everything must end."""

    seed: int
    transfers: int
    bench: Bench = attrs.field(init=False)
    draw: random.Random = attrs.field(init=False)
    hits: Counter[str] = attrs.field(factory=Counter)
    asked: Counter[str] = attrs.field(factory=Counter)
    span_ms: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(f"kvxfer sim agents {self.seed}")
        # Small windows cut a part into several posts; the notice must wait for all of them.
        window = self.draw.choice((2, 5, 4096))
        timings = Timings(transfer_deadline_ms=3000, offer_lease_ms=2000)
        limits = Limits(post_window_descriptors_max=window)
        self.bench = make_bench(self.seed, limits, timings)
        self.span_ms = self.transfers * 35.0

    def run(self) -> SeedResult:
        started = time.perf_counter()
        broken = None
        try:
            self._safety()
            self._liveness()
        except Violation as violation:
            broken = self._broken(str(violation))
        except Exception as error:  # noqa: BLE001 - no agent may raise, whatever happens to it
            broken = self._broken(f"X1: {type(error).__name__}: {error}")
        bench = self.bench
        empty = bench.tables_empty()
        bench.world.close()
        return SeedResult(
            seed=self.seed,
            transfers=self.transfers,
            unended=len(bench.consumer.held) + len(bench.producer.held),
            tables_empty=empty,
            digest=self._digest(),
            broken=broken,
            hits=self.hits,
            steps=0,
            seconds=time.perf_counter() - started,
        )

    def _safety(self) -> None:
        bench, draw = self.bench, self.draw
        world = bench.world
        for fault in draw.sample(FAULTS, draw.randrange(4)):
            self.hits[f"{fault}"] += 1
            world.faults.add(fault, skip=draw.randrange(4), times=draw.randrange(1, 4))
        if draw.random() < 0.3:
            world.faults.refuse_fences(draw.randrange(1, 4))
        cancels, withdraws = draw.choice((0.0, 0.3)), draw.choice((0.0, 0.2))
        for number in range(self.transfers):
            start = draw.uniform(0, self.span_ms)
            world.later(start + draw.uniform(0, 60), partial(self._leg, "prefill", number))
            world.later(start + draw.uniform(0, 60), partial(self._leg, "register", number))
            tid = TransferId(f"t{number}")
            if draw.random() < cancels:
                cancel = cmd.Cancel(transfer_id=tid, tag=f"d{number}")
                self._submit_later(bench.consumer.node, start, cancel)
            if draw.random() < withdraws:
                self._submit_later(bench.producer.node, start, cmd.Withdraw(transfer_id=tid))
        for _ in range(draw.choice((0, 0, 1, 3))):
            world.later(draw.uniform(0, self.span_ms), bench.cut_one)
        for _ in range(6):
            world.later(draw.uniform(0, self.span_ms + 2600), self._release)
        for until_ms in (self.span_ms + 60, self.span_ms + 3600):
            world.later(until_ms - world.now_ms + 1, bench.collect)
            world.run(partial(self._past, until_ms))

    def _past(self, until_ms: float) -> bool:
        """Engines look at every step, so that a wrong byte is found where it was written."""
        self.bench.collect()
        for node in self.bench.world.nodes.values():
            check_outcomes(node.pump)
        return self.bench.world.now_ms > until_ms

    def _release(self) -> None:
        self.bench.world.faults.release_all()

    def _leg(self, what: str, number: int) -> None:
        leg = self.bench.prefill if what == "prefill" else self.bench.register
        if leg(number):
            self.asked[what] += 1
        else:
            self.hits["no blocks"] += 1

    def _submit_later(self, node: Node, start: float, command: cmd.Command) -> None:
        world = self.bench.world
        world.later(start + self.draw.uniform(0, 90), lambda: world.submit(node, command))

    def _liveness(self) -> None:
        bench = self.bench
        bench.world.faults.clear()
        bench.world.faults.release_all()
        bench.world.run(lambda: bench.quiet() and not bench.world.faults.held())
        ended = len(bench.consumer.landed) + len(bench.consumer.lost)
        if (ended, len(bench.producer.outcomes)) != (
            self.asked["register"],
            self.asked["prefill"],
        ):
            raise Violation(f"C2: {ended} of {self.asked['register']} registrations ended")
        if not bench.tables_empty():
            raise Violation("L1: tables are not empty")
        bench.consumer.check_watched()
        for node in bench.world.nodes.values():
            check_outcomes(node.pump)
        self.hits["landed"] += len(bench.consumer.landed)
        for reason in bench.consumer.lost.values():
            self.hits[f"lost: {reason.name}"] += 1

    def _digest(self) -> str:
        consumer, producer = self.bench.consumer, self.bench.producer
        ends = (
            sorted(consumer.landed),
            sorted(consumer.lost.items()),
            sorted((tag, type(end).__name__) for tag, end in producer.outcomes.items()),
            self.bench.world.now_ms,
        )
        return hashlib.blake2b(repr(ends).encode(), digest_size=16).hexdigest()

    def _broken(self, rule: str) -> Broken:
        records = [
            f"{record.t_ms:12.3f} ms  {name:<6} {record.transfer_id} {words(record)}"
            for name, node in self.bench.world.nodes.items()
            for record in list(node.pump.watch.ring)[-30:]
        ]
        return Broken(
            seed=self.seed,
            transfers=self.transfers,
            rule=rule,
            transfer="",
            transcript="\n".join(sorted(records)),
            world="agents",
        )


def run_agents(seed: int, transfers: int) -> SeedResult:
    """Run one seed over real agents."""
    return AgentsRun(seed, transfers).run()
