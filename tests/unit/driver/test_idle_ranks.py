"""Producer ranks of which nobody reads anything: they are told, and need not wait for a lease."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from driver_rig import Side, config, new_memory, table

from kvxfer.core.ids import Initiator, Role
from kvxfer.driver import Agent, Landed, LetGo, ProducerAddress, Sent, TransferId
from kvxfer.layout.geometry import RankHolding, holding_of
from kvxfer.limits import Timings

T = TransferId("t")
BLOCKS = (3, 1)
LEASE_MS = 600_000
"""Longer than a test may take: whoever waits for it fails."""


def start(engine_id: str, role: Role, rank: int, ranks: int, memory: np.ndarray) -> Side:
    """Rank `rank` of an engine whose ranks all hold the one head there is."""
    plain = config(engine_id, role, memory)
    holdings = tuple(holding_of(group) for group in plain.shard.groups)
    everybody = tuple(RankHolding(rank=n, holdings=holdings) for n in range(ranks))
    shard = attrs.evolve(plain.shard, rank=rank, ranks=everybody)
    timings = Timings(offer_lease_ms=LEASE_MS, transfer_deadline_ms=LEASE_MS)
    return Side(Agent.start(config(engine_id, role, memory, shard=shard, timings=timings)), memory)


@pytest.fixture(params=[(2, 1), (4, 2), (2, 2)])
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[list[Side], list[Side]]]:
    at_p, at_d = request.param
    producers = [start("P", Role.PRODUCER, n, at_p, new_memory(7)) for n in range(at_p)]
    consumers = [start("D", Role.CONSUMER, n, at_d, new_memory()) for n in range(at_d)]
    yield producers, consumers
    for side in (*producers, *consumers):
        side.agent.close(timeout_s=0.5)


def addresses(producers: list[Side]) -> tuple[ProducerAddress, ...]:
    found = []
    for rank, side in enumerate(producers):
        assert side.agent.address is not None
        host, port = side.agent.address
        found.append(ProducerAddress(engine_id="P", rank=rank, host=host, port=port))
    return tuple(found)


@pytest.mark.parametrize("initiator", list(Initiator))
@pytest.mark.parametrize("offered_first", [True, False])
def test_every_rank_ends_its_offer_without_its_lease(
    engines: tuple[list[Side], list[Side]], initiator: Initiator, *, offered_first: bool
) -> None:
    producers, consumers = engines
    if offered_first:
        offer_all(producers)
    for side in consumers:
        side.agent.register(
            T,
            producers=addresses(producers),
            tables=table(*BLOCKS),
            token_start=0,
            token_stop=8,
            tag="d",
            initiator=initiator,
        )
    if not offered_first:
        offer_all(producers)
    for side in consumers:
        landed, let_go = side.collect(2)
        assert isinstance(landed, Landed)
        assert isinstance(let_go, LetGo)
        for block in BLOCKS:
            np.testing.assert_array_equal(side.block(block), producers[0].block(block))
    for side in producers:
        (sent,) = side.collect(1)
        assert isinstance(sent, Sent)


def offer_all(producers: list[Side]) -> None:
    for side in producers:
        side.agent.offer(T, tables=table(*BLOCKS), token_count=8, tag="p")


def test_a_decline_reaches_idle_ranks_too(engines: tuple[list[Side], list[Side]]) -> None:
    producers, consumers = engines
    for side in consumers:
        side.agent.decline(T, addresses(producers))
    for side in producers:
        side.agent.offer(T, tables=table(*BLOCKS), token_count=8, tag="p")
        assert len(side.collect(1)) == 1
