"""Engines of one and two tensor ranks, with real agents over the loopback: heads and latents."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from vllm_loopback_pair import DEADLINE_S, Status, request, tensor
from vllm_settings import settings_for

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import GroupKind, RankHolding
from kvxfer_vllm.cache_groups import CacheGroup
from kvxfer_vllm.geometry import describe_groups
from kvxfer_vllm.pd.ports import pick_ports
from kvxfer_vllm.place import Place
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import Tables
from kvxfer_vllm.worker_side import WorkerSide

T, BLOCKS, HEADS, CONTENT = 16, 8, 4, 8
LEASE_MS = 600_000
"""Longer than a test may take: whoever waits for it fails."""
GROUPS = {
    "heads": CacheGroup(layers=("l0",), tokens_per_block=T, manager_blocks=BLOCKS),
    "latent": CacheGroup(
        layers=("l0",), tokens_per_block=T, manager_blocks=BLOCKS, kind=GroupKind.LATENT
    ),
}
SETTINGS = settings_for(
    engine_id="eng", port=0, offer_lease_ms=LEASE_MS, deadline_ms=LEASE_MS, mode_open=True
)


@attrs.define(eq=False)
class Engine:
    """The scheduler side, and a worker and a memory for each rank."""

    scheduler: SchedulerSide
    workers: list[WorkerSide]
    memories: list[np.ndarray]

    @classmethod
    def start(cls, name: str, group: CacheGroup, ranks: int) -> Engine:
        (port,) = pick_ports(1, ranks)
        settings = attrs.evolve(SETTINGS, engine_id=name, port=port, tensor_ranks=ranks)
        heads = 1 if group.kind is GroupKind.LATENT else HEADS // ranks
        workers, memories = [], []
        for rank in range(ranks):
            place = Place(tensor_rank=rank, tensor_size=ranks)
            memory = np.zeros((BLOCKS, heads, T, CONTENT), np.uint16)
            worker = WorkerSide(settings, (group,), HEADS, place, exchanged(group, ranks))
            worker.register_caches({"l0": tensor(memory)})
            workers.append(worker)
            memories.append(memory)
        tables = Tables.of([group], [0], packed=False)
        return cls(SchedulerSide(settings, tables), workers, memories)

    def cache(self) -> np.ndarray:
        """The heads of all ranks side by side; of a latent, each rank's copy."""
        return np.concatenate(self.memories, axis=1)

    def step(self) -> list[Any]:
        orders = self.scheduler.take_orders()
        for worker in self.workers:
            worker.deliver(orders)
        return [worker.take_report() for worker in self.workers]

    def until(self, told: Callable[[Any], bool]) -> None:
        """Make steps until every rank has told it."""
        waiting = set(range(len(self.workers)))
        end = time.monotonic() + DEADLINE_S
        while waiting:
            assert time.monotonic() < end, f"ranks {waiting} never told"
            reports = self.step()
            waiting -= {rank for rank, report in enumerate(reports) if told(report)}
            self.workers[0].agent.wait(0.01)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def exchanged(group: CacheGroup, ranks: int) -> Callable[[RankHolding], tuple[RankHolding, ...]]:
    """What the workers of a real engine tell each other."""

    def everybody(own: RankHolding) -> tuple[RankHolding, ...]:
        (mine,) = own.holdings
        found = []
        for rank in range(ranks):
            held = mine
            if group.kind is GroupKind.FULL:
                count, start = Place(tensor_rank=rank, tensor_size=ranks).heads_of(HEADS)
                held = attrs.evolve(mine, head_start=start, head_stop=start + count)
            found.append(RankHolding(rank=rank, holdings=(held,)))
        return tuple(found)

    return everybody


@pytest.fixture(params=itertools.product(GROUPS, [(2, 1), (1, 2), (2, 2), (4, 2)]))
def pair(request: Any) -> Iterator[tuple[Engine, Engine]]:
    kind, (at_p, at_d) = request.param
    p, d = (Engine.start(n, GROUPS[kind], ranks) for n, ranks in (("P", at_p), ("D", at_d)))
    yield p, d
    p.close()
    d.close()


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_prompt_arrives_at_every_rank_and_every_rank_reports(
    pair: tuple[Engine, Engine], mode: str
) -> None:
    p, d = pair
    latent = p.workers[0].groups[0].kind is GroupKind.LATENT
    chance = np.random.default_rng(1)
    filling = chance.integers(1, 1 << 16, p.memories[0].shape, np.uint16)
    for memory in p.memories:
        memory[:] = filling if latent else chance.integers(1, 1 << 16, memory.shape, np.uint16)
    source, target = [5, 2, 7], [1, 6, 3]
    leg = request({"do_remote_decode": True}, "cmpl-x-0-0badcafe", range(40))
    p.scheduler.on_new_request(leg)
    leg.num_computed_tokens, leg.status = 40, Status.FINISHED_LENGTH_CAPPED
    held, answer = p.scheduler.request_finished(leg, (source,))
    assert held
    taker = request({**answer, "kvx_mode": mode}, "cmpl-x-0-0badd00d", range(40))
    d.scheduler.on_new_request(taker)
    wanted, _ = d.scheduler.matched_tokens(taker, 0)
    d.scheduler.after_alloc(taker, (target,), wanted)
    p.step()
    d.until(lambda report: taker.request_id in report.received - report.failed)
    p.until(lambda report: leg.request_id in report.sent)
    here, there = p.cache(), d.cache()
    for block, (at_p, at_d) in enumerate(zip(source, target, strict=True)):
        slots = min(40 - block * T, T)
        for head in range(there.shape[1]):
            expected = here[at_p, 0 if latent else head, :slots]
            np.testing.assert_array_equal(there[at_d, head, :slots], expected)


def test_states_are_shared_out_over_equally_many_ranks_only() -> None:
    group = CacheGroup(
        layers=("l0",),
        tokens_per_block=T,
        manager_blocks=BLOCKS,
        kind=GroupKind.STATE,
        tokens_per_state=T,
        reach=1,
    )
    caches = {"l0": tensor(np.zeros((BLOCKS, 1, 1, CONTENT), np.uint16))}
    one, two, other = (
        describe_groups(caches, (group,), HEADS, place=Place(tensor_rank=rank, tensor_size=size))[0]
        for rank, size in ((0, 1), (1, 2), (1, 2))
    )
    (edge,) = edges_between(two, other)
    assert (edge.producer_rank, edge.consumer_rank, edge.head_start) == (1, 1, 1)
    with pytest.raises(LayoutMismatch, match="heads_total is 2 at the producer and 1"):
        edges_between(two, one)
    whole = attrs.evolve(group, replicated=True)
    (held,) = describe_groups(caches, (whole,), HEADS, place=Place(tensor_rank=1, tensor_size=2))[
        0
    ].groups
    assert (held.heads_total, held.head_start) == (1, 0)
