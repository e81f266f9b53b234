"""Real agents over the loopback under virtual time: bytes are checked, faults are real.

Every seed draws its own workload and faults; held writes land late for real, so
a block that returned too early shows as wrong bytes in its next owner.
"""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from kvxfer.core.ids import Reason, Role, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Holding,
    Plane,
    RankHolding,
    Shard,
)
from kvxfer.limits import Limits, Timings
from kvxfer.status import Status
from kvxfer.testing.engines import Pool, ToyConsumer, ToyProducer
from kvxfer.testing.world import Node, World, table
from kvxfer.transport.faults import Drop, Duplicate, Fail, Hold, Refuse

TOKENS, SLOT_BYTES, BLOCKS = 4, 16, 48
BLOCK_BYTES = TOKENS * SLOT_BYTES


def make_node(world: World, name: str, role: Role) -> Node:
    memory = np.zeros(BLOCKS * BLOCK_BYTES, np.uint8)
    base = int(memory.ctypes.data)
    group = Group(
        name="kv",
        kind=GroupKind.FULL,
        tokens_per_block=TOKENS,
        physical_per_block=1,
        physical_blocks=BLOCKS,
        heads_total=1,
        head_start=0,
        head_stop=1,
        layers=("0",),
        planes=(Plane(name="kv", area=0, offset=0, content_bytes=SLOT_BYTES),),
        stride_layer=BLOCKS * BLOCK_BYTES,
        stride_block=BLOCK_BYTES,
        stride_head=BLOCK_BYTES,
        stride_slot=SLOT_BYTES,
        null_block=0,
    )
    holding = Holding(group="kv", head_start=0, head_stop=1, layers=("0",))
    shard = Shard(
        rank=0,
        areas=(Area(base=base, length=memory.nbytes),),
        groups=(group,),
        ranks=(RankHolding(rank=0, holdings=(holding,)),),
    )
    return world.add(name, role, memory, shard)


@attrs.define
class Bench:
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

    def assert_empty(self) -> None:
        for node in self.world.nodes.values():
            if node.alive:
                counters = node.pump.counters()
                assert (counters["live"], counters["quarantined"]) == (0, 0), counters
                assert not node.pump.poster.active
        self.consumer.check_watched()
        assert len(self.consumer.pool.free) == BLOCKS - 1


def bench(seed: int, limits: Limits | None = None, **timings: int) -> Bench:
    world = World(seed, timings=Timings(**timings), limits=limits or Limits())
    p, d = make_node(world, "P", Role.PRODUCER), make_node(world, "D", Role.CONSUMER)
    return Bench(
        world,
        ToyProducer(world, p, Pool(p.memory, BLOCK_BYTES), TOKENS),
        ToyConsumer(world, d, Pool(d.memory, BLOCK_BYTES), TOKENS),
    )


def leg_p(b: Bench, n: int, blocks: int = 3) -> None:
    assert b.producer.prefill(TransferId(f"t{n}"), n, blocks, f"p{n}")


def leg_d(b: Bench, n: int, blocks: int = 3) -> None:
    assert b.consumer.register(TransferId(f"t{n}"), n, blocks, f"d{n}", b.producer.node)


@pytest.mark.parametrize("seed", range(12))
def test_no_faults_everything_lands_in_any_order(seed: int) -> None:
    b = bench(seed)
    for n in range(8):
        legs = [lambda n=n: leg_p(b, n), lambda n=n: leg_d(b, n)]
        b.world.draw.shuffle(legs)
        for leg in legs:
            b.world.later(b.world.draw.uniform(0, 20), leg)
    b.world.run(lambda: len(b.consumer.landed) == 8 and b.quiet() if b.quiet() else False)
    assert not b.consumer.lost
    b.assert_empty()
    b.world.close()


def test_held_write_keeps_the_block_until_it_has_landed() -> None:
    """[A-02] The slow write lands after the cancel: into a block that nobody else has."""
    b = bench(1)
    b.world.faults.add(Hold())
    leg_d(b, 1)
    leg_p(b, 1)
    b.world.run(lambda: bool(b.world.faults.held()))
    b.world.submit(b.consumer.node, cmd.Cancel(transfer_id=TransferId("t1"), tag="d1"))
    b.world.run(lambda: b.ended("d1"))
    b.world.run(lambda: b.world.now_ms > 10_000)
    b.collect()
    assert b.consumer.lost == {"d1": Reason.CANCELLED_BY_CONSUMER}
    assert not b.consumer.let_go
    assert not b.producer.outcomes
    b.world.faults.release_all()
    b.world.run(b.quiet)
    assert b.consumer.let_go == {"d1"}
    b.assert_empty()
    b.world.close()


def test_unknown_end_is_fenced_and_its_late_write_hits_nobody() -> None:
    """[A-07] P is told 'unknown', the bytes come later: D fences before it takes the blocks."""
    b = bench(2)
    b.world.faults.add(Hold(report=Status.OP_UNKNOWN))
    leg_d(b, 1)
    leg_p(b, 1)
    b.world.run(b.quiet)
    assert b.consumer.lost["d1"] in (Reason.TRANSPORT_FAILED, Reason.PEER_LOST)
    b.world.faults.release_all()
    leg_d(b, 2)
    leg_p(b, 2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    b.assert_empty()
    b.world.close()


def test_unproven_fence_means_quarantine_until_there_is_proof() -> None:
    b = bench(3)
    b.world.faults.add(Hold(report=Status.OP_UNKNOWN))
    b.world.faults.refuse_fences(2)
    leg_d(b, 1)
    leg_p(b, 1)
    b.world.run(lambda: b.consumer.node.pump.counters()["quarantined"] == 1)
    b.collect()
    assert "d1" in b.consumer.lost
    assert not b.consumer.let_go
    b.world.run(b.quiet)
    b.world.faults.release_all()
    b.assert_empty()
    b.world.close()


def test_killed_producer_ends_the_request_and_the_next_one_serves() -> None:
    """[b, b2] Same engine id, same address, another life."""
    b = bench(4)
    b.world.faults.add(Hold())
    leg_d(b, 1)
    leg_p(b, 1)
    b.world.run(lambda: bool(b.world.faults.held()))
    b.world.kill(b.producer.node)
    started_ms = b.world.now_ms
    b.world.run(lambda: "d1" in b.consumer.let_go if not b.consumer.collect() else False)
    assert b.consumer.lost["d1"] is Reason.PEER_LOST
    assert b.world.now_ms - started_ms < 1000
    again = make_node(b.world, "P", Role.PRODUCER)
    b.producer = ToyProducer(b.world, again, Pool(again.memory, BLOCK_BYTES), TOKENS)
    leg_d(b, 2)
    leg_p(b, 2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    b.world.faults.release_all()
    b.assert_empty()
    b.world.close()


def test_a_peer_that_the_transport_gives_up_is_made_anew() -> None:
    """[I-06, I-08] The pair is not lost for good: both sides drop the link and connect again."""
    b = bench(5)
    b.world.faults.add(Refuse(status=Status.PEER_FAILED))
    leg_d(b, 1)
    leg_p(b, 1)
    b.world.run(b.quiet)
    assert "d1" in b.consumer.lost
    b.world.run(lambda: b.consumer.node.pump.counters()["links"] == 0)
    leg_d(b, 2)
    leg_p(b, 2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    b.assert_empty()
    b.world.close()


def test_cancel_and_register_again_in_one_breath() -> None:
    """The second registration is granted its own blocks, not those of the first."""
    b = bench(6)
    leg_d(b, 0)
    leg_p(b, 0)
    b.world.run(b.quiet)
    node, tid = b.consumer.node, TransferId("t1")
    (address,) = (cmd.ProducerAddress(engine_id="P", rank=0, host="P", port=1),)
    first, second = b.consumer.pool.take(b.world, 1), b.consumer.pool.take(b.world, 1)
    assert first is not None
    assert second is not None
    for number in (*first, *second):
        del b.consumer.watched[number]

    def register(tag: str, blocks: list[int]) -> cmd.Register:
        b.consumer.held[tag] = (1, blocks)
        return cmd.Register(
            transfer_id=tid,
            producers=(address,),
            tables=table(blocks),
            token_start=0,
            token_stop=TOKENS,
            tag=tag,
        )

    now_ms = b.world.now_ms
    node.pump.submit(register("a", first), now_ms)
    node.pump.submit(cmd.Cancel(transfer_id=tid, tag="a"), now_ms)
    node.pump.submit(register("b", second), now_ms)
    # P's prefill ends later: an offer that met the first grant would end with its cancel.
    b.world.later(100, lambda: leg_p(b, 1, blocks=1))
    b.world.run(b.quiet)
    assert "b" in b.consumer.landed
    assert b.consumer.lost == {"a": Reason.CANCELLED_BY_CONSUMER}
    b.assert_empty()
    b.world.close()


FAULTS = (
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


@pytest.mark.parametrize("seed", range(150))
def test_swarm_of_faults(seed: int) -> None:
    """Safety: bytes and books hold at every step. Liveness: faults stop, all ends."""
    knobs = random.Random(f"knobs {seed}")
    # Small windows cut a part into several posts; the notice must wait for all of them.
    window = knobs.choice((2, 5, 4096))
    limits = Limits(post_window_descriptors_max=window)
    b = bench(seed, limits, transfer_deadline_ms=3000, offer_lease_ms=2000)
    faults = knobs.sample(FAULTS, knobs.randrange(4))
    cuts = knobs.choice((0, 0, 1, 3))
    cancels = knobs.choice((0.0, 0.3))
    withdraws = knobs.choice((0.0, 0.2))
    if knobs.random() < 0.3:
        b.world.faults.refuse_fences(knobs.randrange(1, 4))
    for fault in faults:
        b.world.faults.add(fault, skip=knobs.randrange(4), times=knobs.randrange(1, 4))
    for n in range(12):
        start = knobs.uniform(0, 400)
        b.world.later(start + knobs.uniform(0, 60), lambda n=n: leg_p(b, n))
        b.world.later(start + knobs.uniform(0, 60), lambda n=n: leg_d(b, n))
        if knobs.random() < cancels:
            cancel = cmd.Cancel(transfer_id=TransferId(f"t{n}"), tag=f"d{n}")
            b.world.later(
                start + knobs.uniform(0, 90), lambda c=cancel: b.world.submit(b.consumer.node, c)
            )
        if knobs.random() < withdraws:
            back = cmd.Withdraw(transfer_id=TransferId(f"t{n}"))
            b.world.later(
                start + knobs.uniform(0, 90), lambda c=back: b.world.submit(b.producer.node, c)
            )
    for _ in range(cuts):
        b.world.later(knobs.uniform(0, 400), lambda: cut_one(b))
    for _ in range(6):
        b.world.later(knobs.uniform(0, 3000), b.world.faults.release_all)
    b.world.run(lambda: b.world.now_ms > 450 and (b.collect() or True))
    b.world.later(4000, lambda: None)
    b.world.run(lambda: b.world.now_ms > 4000 and (b.collect() or True))
    b.world.faults.clear()
    b.world.faults.release_all()
    b.world.run(lambda: b.quiet() and not b.world.faults.held())
    ended = len(b.consumer.landed) + len(b.consumer.lost)
    assert ended == 12
    assert len(b.producer.outcomes) == 12
    b.assert_empty()
    b.world.close()


def cut_one(b: Bench) -> None:
    live = [line for line in b.world.lines if all(line.open_at.values())]
    if live:
        b.world.cut(b.world.draw.choice(live))
