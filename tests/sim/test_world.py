"""Real agents over the loopback under virtual time: bytes are checked, faults are real.

Every seed draws its own workload and faults; held writes land late for real, so
a block that returned too early shows as wrong bytes in its next owner.
"""

from __future__ import annotations

from functools import partial

import pytest

from kvxfer.core import senders, tables
from kvxfer.core.ids import Reason, Role, TransferId
from kvxfer.core.machine import row
from kvxfer.core.machine import table as build_table
from kvxfer.driver import commands as cmd
from kvxfer.limits import Limits, Timings
from kvxfer.status import Status
from kvxfer.testing.engines import Pool, ToyProducer
from kvxfer.testing.sim import run_agents, simulate
from kvxfer.testing.sim.agents import BLOCK_BYTES, BLOCKS, TOKENS, Bench, make_bench, make_node
from kvxfer.testing.world import table
from kvxfer.transport.faults import Hold, Refuse


def assert_empty(b: Bench) -> None:
    assert b.tables_empty()
    b.consumer.check_watched()
    assert len(b.consumer.pool.free) == BLOCKS - 1


def bench(seed: int, limits: Limits | None = None, **timings: int) -> Bench:
    return make_bench(seed, limits, Timings(**timings))


@pytest.mark.parametrize("seed", range(12))
def test_no_faults_everything_lands_in_any_order(seed: int) -> None:
    b = bench(seed)
    for n in range(8):
        legs = [partial(b.prefill, n), partial(b.register, n)]
        b.world.draw.shuffle(legs)
        for leg in legs:
            b.world.later(b.world.draw.uniform(0, 20), leg)
    b.world.run(lambda: len(b.consumer.landed) == 8 and b.quiet() if b.quiet() else False)
    assert not b.consumer.lost
    assert_empty(b)
    b.world.close()


def test_held_write_keeps_the_block_until_it_has_landed() -> None:
    """[A-02] The slow write lands after the cancel: into a block that nobody else has."""
    b = bench(1)
    b.world.faults.add(Hold())
    b.register(1)
    b.prefill(1)
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
    assert_empty(b)
    b.world.close()


def test_unknown_end_is_fenced_and_its_late_write_hits_nobody() -> None:
    """[A-07] P is told 'unknown', the bytes come later: D fences before it takes the blocks."""
    b = bench(2)
    b.world.faults.add(Hold(report=Status.OP_UNKNOWN))
    b.register(1)
    b.prefill(1)
    b.world.run(b.quiet)
    assert b.consumer.lost["d1"] in (Reason.TRANSPORT_FAILED, Reason.PEER_LOST)
    b.world.faults.release_all()
    b.register(2)
    b.prefill(2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    assert_empty(b)
    b.world.close()


def test_unproven_fence_means_quarantine_until_there_is_proof() -> None:
    b = bench(3)
    b.world.faults.add(Hold(report=Status.OP_UNKNOWN))
    b.world.faults.refuse_fences(2)
    b.register(1)
    b.prefill(1)
    b.world.run(lambda: b.consumer.node.pump.counters()["quarantined"] == 1)
    b.collect()
    assert "d1" in b.consumer.lost
    assert not b.consumer.let_go
    b.world.run(b.quiet)
    b.world.faults.release_all()
    assert_empty(b)
    b.world.close()


def test_killed_producer_ends_the_request_and_the_next_one_serves() -> None:
    """[b, b2] Same engine id, same address, another life."""
    b = bench(4)
    b.world.faults.add(Hold())
    b.register(1)
    b.prefill(1)
    b.world.run(lambda: bool(b.world.faults.held()))
    b.world.kill(b.producer.node)
    started_ms = b.world.now_ms
    b.world.run(lambda: "d1" in b.consumer.let_go if not b.consumer.collect() else False)
    assert b.consumer.lost["d1"] is Reason.PEER_LOST
    assert b.world.now_ms - started_ms < 1000
    again = make_node(b.world, "P", Role.PRODUCER)
    b.producer = ToyProducer(b.world, again, Pool(again.memory, BLOCK_BYTES), TOKENS)
    b.register(2)
    b.prefill(2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    b.world.faults.release_all()
    assert_empty(b)
    b.world.close()


def test_a_peer_that_the_transport_gives_up_is_made_anew() -> None:
    """[I-06, I-08] The pair is not lost for good: both sides drop the link and connect again."""
    b = bench(5)
    b.world.faults.add(Refuse(status=Status.PEER_FAILED))
    b.register(1)
    b.prefill(1)
    b.world.run(b.quiet)
    assert "d1" in b.consumer.lost
    b.world.run(lambda: b.consumer.node.pump.counters()["links"] == 0)
    b.register(2)
    b.prefill(2)
    b.world.run(b.quiet)
    assert "d2" in b.consumer.landed
    assert_empty(b)
    b.world.close()


def test_cancel_and_register_again_in_one_breath() -> None:
    """The second registration is granted its own blocks, not those of the first."""
    b = bench(6)
    b.register(0)
    b.prefill(0)
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
    b.world.later(100, lambda: b.prefill(1, blocks=1))
    b.world.run(b.quiet)
    assert "b" in b.consumer.landed
    assert b.consumer.lost == {"a": Reason.CANCELLED_BY_CONSUMER}
    assert_empty(b)
    b.world.close()


@pytest.mark.parametrize("seed", range(150))
def test_swarm_of_faults(seed: int) -> None:
    """Safety: bytes and books hold at every step. Liveness: faults stop, all ends."""
    result = run_agents(seed, 12)
    assert result.broken is None, result.broken.text()
    assert (result.unended, result.tables_empty) == (0, True)


def test_swarm_reaches_its_faults_and_repeats_itself() -> None:
    total = simulate(range(40), 12, world="agents")
    assert total.hits["landed"]
    assert total.hits["lost: CANCELLED_BY_CONSUMER"]
    assert total.hits["lost: TRANSPORT_FAILED"]
    assert run_agents(3, 12).digest == run_agents(3, 12).digest


def test_canary_a_block_that_returns_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P says that it has drained while an operation runs: bytes land in another's block."""
    state, event, action = tables.SendState, tables.SendEvent, tables.SendAction
    rows = []
    for r in tables.SEND.rows:
        on = dict(r.on)
        if r.state is state.SENDING:
            on[event.CANCEL] = (state.ENDED, (action.TELL_DRAINED,))
        rows.append(row(r.state, on, r.ignored))
    whole = tables.SEND
    planted = build_table("send", state, event, whole.initial, whole.terminal, rows)
    monkeypatch.setattr(senders, "SEND", planted)
    total = simulate(range(40), 12, world="agents")
    assert total.violations
    assert total.broken[0].command.endswith("--world agents")
