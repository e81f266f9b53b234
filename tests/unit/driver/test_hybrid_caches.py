"""A hybrid model through two agents: full attention, a sliding window and a state page."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from driver_rig import Side, address, config

from kvxfer.core.ids import Role
from kvxfer.driver import Agent, Landed, Lost, TransferId
from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import (
    Area,
    BlockTable,
    Group,
    GroupKind,
    Plane,
    RankHolding,
    Shard,
    holding_of,
)
from kvxfer.layout.naive import naive_plan
from kvxfer.limits import Limits

SIZE, BLOCKS, REACH = 4096, 8, 5


def group(
    kind: GroupKind, offset: int, content: int, tokens: int, per_state: int, reach: int | None
) -> Group:
    slots = tokens // per_state
    return Group(
        name=kind.name.lower(),
        kind=kind,
        tokens_per_block=tokens,
        physical_per_block=1,
        physical_blocks=BLOCKS,
        heads_total=1,
        head_start=0,
        head_stop=1,
        layers=(f"{kind.name.lower()}.0",),
        planes=(Plane(name="kv", area=0, offset=offset, content_bytes=content),),
        stride_layer=0,
        stride_block=slots * content,
        stride_head=0,
        stride_slot=content,
        null_block=0,
        tokens_per_state=per_state,
        reach=reach,
    )


def shard(base: int, tokens: int, state_tokens: int) -> Shard:
    groups = (
        group(GroupKind.FULL, 0, 8, tokens, 1, None),
        group(GroupKind.WINDOW, 1024, 8, tokens, 1, REACH),
        group(GroupKind.STATE, 2048, 100, state_tokens, state_tokens, 1),
    )
    ranks = (RankHolding(rank=0, holdings=tuple(holding_of(g) for g in groups)),)
    areas = (Area(base=base, length=SIZE),)
    whole = Shard(rank=0, areas=areas, groups=groups, ranks=ranks)
    check_shard(whole, Limits())
    return whole


@pytest.fixture
def pair() -> Iterator[list[Side]]:
    sides = []
    for engine_id, role, tokens, state_tokens in (
        ("P", Role.PRODUCER, 4, 1 << 20),
        ("D", Role.CONSUMER, 3, 1 << 30),
    ):
        memory = np.zeros(SIZE, np.uint8)
        if role is Role.PRODUCER:
            memory[:] = np.random.default_rng(3).integers(1, 256, SIZE, dtype=np.uint8)
        whole = shard(int(memory.ctypes.data), tokens, state_tokens)
        sides.append(Side(Agent.start(config(engine_id, role, memory, shard=whole)), memory))
    yield sides
    for side in sides:
        side.agent.close(timeout_s=0.5)


def tables(*blocks: list[int]) -> tuple[BlockTable, ...]:
    return tuple(
        BlockTable(group=n, first_token=0, blocks=np.array(ids, np.int64))
        for n, ids in enumerate(blocks)
    )


SOURCES = tables([3, 1, 5], [0, 2, 6], [4])
TARGETS = tables([7, 2, 5, 1], [0, 4, 3, 6], [2])
STOP = 10


def test_each_group_gets_what_it_needs(pair: list[Side]) -> None:
    p, d = pair
    p.agent.offer(TransferId("t"), tables=SOURCES, token_count=STOP, tag="t")
    d.agent.register(
        TransferId("t"),
        producers=address(p),
        tables=TARGETS,
        token_start=0,
        token_stop=STOP,
        tag="t",
    )
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)
    expected = np.zeros(SIZE, np.uint8)
    here, there = p.agent.config.shard, d.agent.config.shard
    for number, start in enumerate((0, STOP - REACH, STOP - 1)):
        pairs = naive_plan(here, there, SOURCES[number], TARGETS[number], start, STOP)
        for to, from_ in pairs.items():
            expected[to - there.areas[0].base] = p.memory[from_ - here.areas[0].base]
    np.testing.assert_array_equal(d.memory, expected)
    assert landed.bytes_received == 8 * STOP + 8 * REACH + 100 == np.count_nonzero(d.memory)


def test_a_state_after_other_tokens_is_not_written(pair: list[Side]) -> None:
    """P has gone one token further than D wants: its running state is of no use to D."""
    p, d = pair
    p.agent.offer(TransferId("t"), tables=SOURCES, token_count=STOP + 1, tag="t")
    d.agent.register(
        TransferId("t"),
        producers=address(p),
        tables=TARGETS,
        token_start=0,
        token_stop=STOP,
        tag="t",
    )
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    state = d.memory[2048:]
    assert not state.any()
