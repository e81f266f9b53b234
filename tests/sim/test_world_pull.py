"""Pull and streamed offers over real agents, virtual time, the loopback, and faults.

The producer's engine overwrites its blocks the moment they return to it, so a
READ that still counts after that shows as wrong bytes.
"""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from kvxfer.core.ids import Initiator, Reason, Role, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.layout.orders import area_bytes, engine_shards
from kvxfer.limits import Limits, Timings
from kvxfer.status import Status
from kvxfer.testing.engines import Pool, ToyConsumer, ToyProducer
from kvxfer.testing.world import Node, World, table
from kvxfer.transport.faults import Fail, Hold, Refuse

TOKENS, CONTENT, BLOCKS = 4, 16, 48
PULL, PUSH = Initiator.CONSUMER, Initiator.PRODUCER


def make_node(world: World, name: str, role: Role) -> Node:
    size = area_bytes(
        layers=1, blocks=BLOCKS, heads=1, tokens_per_block=TOKENS, content_bytes=CONTENT
    )
    memory = np.zeros(size, np.uint8)
    (shard,) = engine_shards(
        bases=[int(memory.ctypes.data)],
        layers=("0",),
        blocks=BLOCKS,
        tokens_per_block=TOKENS,
        heads_total=1,
        content_bytes=CONTENT,
        null_block=0,
    )
    return world.add(name, role, memory, shard)


@attrs.define
class Bench:
    world: World
    producer: ToyProducer
    consumer: ToyConsumer

    def quiet(self) -> bool:
        self.producer.collect()
        self.consumer.collect()
        return not self.producer.held and not self.consumer.held

    def leg_d(self, n: int, blocks: int = 3, initiator: Initiator = PULL) -> None:
        tid, node = TransferId(f"t{n}"), self.producer.node
        assert self.consumer.register(tid, n, blocks, f"d{n}", node, initiator)

    def leg_p(self, n: int, blocks: int = 3) -> None:
        assert self.producer.prefill(TransferId(f"t{n}"), n, blocks, f"p{n}")

    def stream_p(self, n: int, blocks: int = 3, chunk_ms: float = 20.0) -> None:
        assert self.producer.stream(TransferId(f"t{n}"), n, blocks, f"p{n}", chunk_ms)

    def assert_empty(self) -> None:
        for node in self.world.nodes.values():
            counters = node.pump.counters()
            assert (counters["live"], counters["quarantined"]) == (0, 0), counters
            assert not node.pump.poster.active
        self.consumer.check_watched()
        assert len(self.consumer.pool.free) == len(self.producer.pool.free) == BLOCKS - 1


def bench(
    seed: int, *, part_tokens: int = 0, limits: Limits | None = None, **timings: int
) -> Bench:
    world = World(
        seed, timings=Timings(**timings), limits=limits or Limits(), part_tokens=part_tokens
    )
    p, d = make_node(world, "P", Role.PRODUCER), make_node(world, "D", Role.CONSUMER)
    block_bytes = TOKENS * CONTENT
    return Bench(
        world,
        ToyProducer(world, p, Pool(p.memory, block_bytes), TOKENS),
        ToyConsumer(world, d, Pool(d.memory, block_bytes), TOKENS),
    )


@pytest.mark.parametrize("seed", range(8))
def test_pull_lands_the_same_bytes_in_any_order(seed: int) -> None:
    b = bench(seed)
    for n in range(8):
        legs = [lambda n=n: b.leg_p(n), lambda n=n: b.leg_d(n)]
        b.world.draw.shuffle(legs)
        for leg in legs:
            b.world.later(b.world.draw.uniform(0, 20), leg)
    b.world.run(lambda: len(b.consumer.landed) == 8 and b.quiet() if b.quiet() else False)
    counters = b.consumer.node.pump.counters()
    assert counters["bytes_read"] == 8 * 3 * TOKENS * CONTENT
    assert b.producer.node.pump.counters()["bytes_written"] == 0
    b.assert_empty()
    b.world.close()


@pytest.mark.parametrize("initiator", [PUSH, PULL])
def test_chunks_move_while_the_prefill_runs(initiator: Initiator) -> None:
    b = bench(1, part_tokens=TOKENS)
    b.leg_d(1, blocks=4, initiator=initiator)
    b.stream_p(1, blocks=4, chunk_ms=100.0)
    moved = []

    def look() -> bool:
        here, there = b.producer.node.pump.counters(), b.consumer.node.pump.counters()
        moved.append((b.world.now_ms, here["bytes_written"] + there["bytes_read"]))
        return b.quiet()

    b.world.run(look)
    before_the_seal = max(count for at_ms, count in moved if at_ms < 390)
    assert before_the_seal == 3 * TOKENS * CONTENT
    assert "d1" in b.consumer.landed
    b.assert_empty()
    b.world.close()


def test_a_consumer_that_leaves_in_mid_stream_frees_both_sides() -> None:
    b = bench(2, part_tokens=TOKENS)
    b.leg_d(1, blocks=4)
    b.stream_p(1, blocks=4, chunk_ms=100.0)
    cancel = cmd.Cancel(transfer_id=TransferId("t1"), tag="d1")
    b.world.later(250, lambda: b.world.submit(b.consumer.node, cancel))
    b.world.run(lambda: b.world.now_ms > 200 and b.quiet())
    assert b.consumer.lost == {"d1": Reason.CANCELLED_BY_CONSUMER}
    assert b.producer.outcomes["p1"].reason is Reason.CANCELLED_BY_CONSUMER
    while b.world.step():
        pass
    assert b.world.now_ms < 600
    b.assert_empty()
    b.world.close()


def test_a_held_read_keeps_the_blocks_of_both_sides() -> None:
    """[B1, A-06] The cancel waits at D, the release waits for it, P waits for the release."""
    b = bench(3)
    b.world.faults.add(Hold())
    b.leg_d(1)
    b.leg_p(1)
    b.world.run(lambda: bool(b.world.faults.held()))
    cancel = cmd.Cancel(transfer_id=TransferId("t1"), tag="d1")
    b.world.submit(b.consumer.node, cancel)
    b.world.run(lambda: not b.quiet() and b.world.now_ms > 3_000)
    assert b.consumer.lost == {"d1": Reason.CANCELLED_BY_CONSUMER}
    assert not b.consumer.let_go
    assert not b.producer.outcomes
    b.world.faults.release_all()
    b.world.run(b.quiet)
    assert b.consumer.let_go == {"d1"}
    b.assert_empty()
    b.world.close()


def test_a_read_that_outlives_the_lease_is_never_landed() -> None:
    """[B-02] P's blocks went to somebody else under the READ: lost, not wrong."""
    b = bench(
        4,
        grant_lease_ms=2_000,
        renew_ms=60_000,
        lease_margin_ms=100,
        transfer_deadline_ms=60_000,
    )
    b.world.faults.add(Hold())
    b.leg_d(1)
    b.leg_p(1)
    b.world.run(lambda: not b.quiet() and "p1" in b.producer.outcomes)
    assert b.producer.outcomes["p1"].reason is Reason.GRANT_EXPIRED
    b.world.faults.release_all()
    b.world.run(b.quiet)
    assert b.consumer.lost == {"d1": Reason.GRANT_EXPIRED}
    assert not b.consumer.landed
    b.assert_empty()
    b.world.close()


def test_an_unproven_read_is_fenced_and_its_late_bytes_hit_nobody() -> None:
    b = bench(5)
    b.world.faults.add(Hold(report=Status.OP_UNKNOWN))
    b.leg_d(1)
    b.leg_p(1)
    b.world.run(b.quiet)
    assert b.consumer.lost["d1"] in (Reason.TRANSPORT_FAILED, Reason.PEER_LOST)
    b.world.faults.release_all()
    b.leg_d(2)
    b.leg_p(2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    b.assert_empty()
    b.world.close()


def test_a_killed_producer_ends_the_reads() -> None:
    b = bench(6)
    b.world.faults.add(Hold())
    b.leg_d(1)
    b.leg_p(1)
    b.world.run(lambda: bool(b.world.faults.held()))
    b.world.kill(b.producer.node)
    b.world.run(lambda: "d1" in b.consumer.let_go if not b.consumer.collect() else False)
    # Whichever D sees first: its READ failing, or the link going.
    assert b.consumer.lost["d1"] in (Reason.PEER_LOST, Reason.TRANSPORT_FAILED)
    b.world.close()


def test_read_back_beside_a_push_of_the_same_transfer() -> None:
    """Both agents are both; one name, two directions, every byte in its place."""
    world = World(7, timings=Timings())
    a, c = make_node(world, "A", Role.BOTH), make_node(world, "B", Role.BOTH)
    block_bytes = TOKENS * CONTENT
    gives, takes = [], []
    for node, other, initiator in ((a, c, PUSH), (c, a, PULL)):
        # The first half of a node's blocks is its engine's, the rest is for what comes.
        half = BLOCKS // 2
        producer = ToyProducer(world, node, Pool(node.memory, block_bytes), TOKENS)
        producer.pool.free = list(range(1, half))
        pool = Pool(other.memory, block_bytes)
        pool.free = list(range(half, BLOCKS))
        gives.append(producer)
        takes.append((ToyConsumer(world, other, pool, TOKENS), node, initiator))
    tid = TransferId("same")
    for n, (consumer, node, initiator) in enumerate(takes):
        assert consumer.register(tid, n, 3, f"d{n}", node, initiator)
    for n, producer in enumerate(gives):
        assert producer.prefill(tid, n, 3, f"p{n}")
    seen: dict[str, str] = {}

    def done() -> bool:
        for node in (a, c):
            for result in node.results:
                seen[result.tag + type(result).__name__] = node.name
        return {"p0Sent", "p1Sent", "d0LetGo", "d1LetGo"} <= seen.keys()

    world.run(done)
    assert {"d0Landed", "d1Landed"} <= seen.keys()
    for n, (consumer, _, _) in enumerate(takes):
        consumer._check_landed(f"d{n}")
    assert c.pump.counters()["bytes_read"] == 0
    assert a.pump.counters()["bytes_read"] == a.pump.counters()["bytes_written"] > 0
    world.close()


LAYERS = ("a", "b", "c", "d")


def layered(world: World, name: str, role: Role, seed: int | None) -> tuple[Node, np.ndarray]:
    """A node of four layers; its memory as (layer, block, bytes)."""
    size = area_bytes(layers=4, blocks=8, heads=1, tokens_per_block=TOKENS, content_bytes=CONTENT)
    memory = np.zeros(size, np.uint8)
    if seed is not None:
        memory[:] = np.random.default_rng(seed).integers(1, 256, size)
    (shard,) = engine_shards(
        bases=[int(memory.ctypes.data)],
        layers=LAYERS,
        blocks=8,
        tokens_per_block=TOKENS,
        heads_total=1,
        content_bytes=CONTENT,
    )
    return world.add(name, role, memory, shard), memory.reshape(4, 8, -1)


@pytest.mark.parametrize("initiator", [PUSH, PULL])
def test_the_first_layers_of_the_last_chunk_leave_before_the_rest(initiator: Initiator) -> None:
    world = World(8, part_tokens=TOKENS, part_layers=2)
    p, source = layered(world, "P", Role.PRODUCER, 1)
    d, target = layered(world, "D", Role.CONSUMER, None)
    tid = TransferId("t")
    address = cmd.ProducerAddress(engine_id="P", rank=0, host="P", port=1)
    wanted = cmd.Register(
        transfer_id=tid,
        producers=(address,),
        tables=table([5, 2]),
        token_start=0,
        token_stop=2 * TOKENS,
        initiator=initiator,
    )
    world.submit(d, wanted)
    start = cmd.Offer(transfer_id=tid, tables=table([1, 3]), token_count=0, sealed=False)
    world.submit(p, start)

    def grown(token_count: int, layers_final: int, *, sealed: bool = False) -> np.ndarray:
        """Which (layer, block) of the two are there, once nothing moves any more."""
        grow = cmd.Grow(
            transfer_id=tid,
            tables=table([1, 3]),
            token_count=token_count,
            token_ahead=2 * TOKENS,
            layers_final=layers_final,
            sealed=sealed,
        )
        world.submit(p, grow)
        until_ms = world.now_ms + 500
        world.later(500, lambda: None)
        world.run(lambda: world.now_ms >= until_ms)
        return (target[:, [5, 2]] == source[:, [1, 3]]).all(axis=2)

    assert grown(0, 1).sum() == 0
    assert grown(TOKENS, 1).tolist() == [[True, False]] * 4
    assert grown(TOKENS, 3).tolist() == [[True, True]] * 2 + [[True, False]] * 2
    assert grown(2 * TOKENS, 0, sealed=True).all()
    others = [n for n in range(8) if n not in (5, 2)]
    assert not target[:, others].any()
    world.run(lambda: any(type(r).__name__ == "Sent" for r in p.results))
    world.close()


FAULTS = (
    Hold(),
    Hold(report=Status.OP_UNKNOWN),
    Fail(),
    Fail(after_bytes=40),
    Fail(status=Status.OP_UNKNOWN, after_bytes=40),
    Refuse(),
    Refuse(status=Status.OP_INVALID),
)


@pytest.mark.parametrize("seed", range(100))
def test_swarm_of_pulls_streams_and_faults(seed: int) -> None:
    """Safety: bytes and books hold at every step. Liveness: faults stop, all ends."""
    knobs = random.Random(f"pull knobs {seed}")
    limits = Limits(post_window_descriptors_max=knobs.choice((1, 2, 4096)))
    lease_ms = knobs.choice((400, 1_500, 30_000))
    b = bench(
        seed,
        part_tokens=knobs.choice((0, TOKENS, 2 * TOKENS)),
        limits=limits,
        transfer_deadline_ms=3_000,
        offer_lease_ms=2_000,
        grant_lease_ms=lease_ms,
        renew_ms=knobs.choice((lease_ms // 3, lease_ms // 2, 2_000)),
        lease_margin_ms=20,
    )
    for fault in knobs.sample(FAULTS, knobs.randrange(4)):
        b.world.faults.add(fault, skip=knobs.randrange(4), times=knobs.randrange(1, 4))
    if knobs.random() < 0.3:
        b.world.faults.refuse_fences(knobs.randrange(1, 4))
    cancels, withdraws = knobs.choice((0.0, 0.3)), knobs.choice((0.0, 0.2))
    for n in range(12):
        start = knobs.uniform(0, 400)
        leg = b.stream_p if knobs.random() < 0.5 else b.leg_p
        side = knobs.choice((PULL, PULL, PUSH))
        b.world.later(start + knobs.uniform(0, 60), lambda n=n, leg=leg: leg(n))
        b.world.later(start + knobs.uniform(0, 60), lambda n=n, s=side: b.leg_d(n, initiator=s))
        if knobs.random() < cancels:
            cancel = cmd.Cancel(transfer_id=TransferId(f"t{n}"), tag=f"d{n}")
            at_ms = start + knobs.uniform(0, 120)
            b.world.later(at_ms, lambda c=cancel: b.world.submit(b.consumer.node, c))
        if knobs.random() < withdraws:
            back = cmd.Withdraw(transfer_id=TransferId(f"t{n}"))
            at_ms = start + knobs.uniform(0, 120)
            b.world.later(at_ms, lambda c=back: b.world.submit(b.producer.node, c))
    for _ in range(knobs.choice((0, 0, 1, 3))):
        b.world.later(knobs.uniform(0, 400), lambda: cut_one(b))
    for _ in range(6):
        b.world.later(knobs.uniform(0, 3_000), b.world.faults.release_all)
    b.world.later(4_000, lambda: None)
    b.world.run(lambda: b.world.now_ms >= 4_000 and (b.quiet() or True))
    b.world.faults.clear()
    b.world.faults.release_all()
    b.world.run(lambda: b.quiet() and not b.world.faults.held())
    assert len(b.consumer.landed) + len(b.consumer.lost) == 12
    assert len(b.producer.outcomes) == 12
    b.assert_empty()
    b.world.close()


def cut_one(b: Bench) -> None:
    live = [line for line in b.world.lines if all(line.open_at.values())]
    if live:
        b.world.cut(b.world.draw.choice(live))
