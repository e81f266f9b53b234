"""Parts through the producer's staging buffer: few ranges, the same bytes, one part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from driver_rig import Side, address, config, new_memory

from kvxfer.core.ids import Role
from kvxfer.driver import Agent, Landed, LetGo, Memory, Sent, TransferId
from kvxfer.errors import BadValue
from kvxfer.layout.choice import Costs
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.naive import naive_plan
from kvxfer.layout.orders import engine_shards

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 2, 12, 4, 4, 8
PAGE = HEADS * TOKENS * CONTENT
SIZE = LAYERS * BLOCKS * PAGE
DEAR_RANGES = Costs(range_ns=1e6, byte_ns=0, permuted_byte_ns=1)
Pair = tuple[Side, Side]


@pytest.fixture
def start() -> Iterator[Callable[..., Pair]]:
    sides: list[Side] = []

    def one(engine_id: str, role: Role, order: str, **changes: object) -> Side:
        memory = np.zeros(SIZE, np.uint8)
        if role is Role.PRODUCER:
            memory[:] = np.random.default_rng(7).integers(1, 256, SIZE, dtype=np.uint8)
        (shard,) = engine_shards(
            bases=[int(memory.ctypes.data)],
            order=order,
            layers=("a", "b"),
            blocks=BLOCKS,
            tokens_per_block=TOKENS,
            heads_total=HEADS,
            content_bytes=CONTENT,
        )
        settings = config(engine_id, role, memory, shard=shard, **changes)
        sides.append(Side(Agent.start(settings), memory))
        return sides[-1]

    def pair(room: int, consumer_order: str = "LBNHC", **changes: object) -> Pair:
        raw = np.zeros(room, np.uint8)
        staging = Memory(base=int(raw.ctypes.data), length=room, keepalive=raw)
        settings = {"staging": staging, "staging_costs": DEAR_RANGES}
        producer = one("P", Role.PRODUCER, "LBHNC", **(settings | changes))
        return producer, one("D", Role.CONSUMER, consumer_order)

    yield pair
    for side in sides:
        side.agent.close(timeout_s=0.5)


def table(*blocks: int) -> BlockTable:
    return BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64))


def move(p: Side, d: Side, tid: str, source: BlockTable, target: BlockTable, stop: int) -> None:
    d.agent.register(
        TransferId(tid),
        producers=address(p),
        tables=(target,),
        token_start=0,
        token_stop=stop,
        tag=tid,
    )
    p.agent.offer(TransferId(tid), tables=(source,), token_count=stop, tag=tid)


def expected(p: Side, d: Side, moves: list[tuple[BlockTable, BlockTable, int]]) -> np.ndarray:
    memory = np.zeros(SIZE, np.uint8)
    here, there = p.agent.config.shard, d.agent.config.shard
    for source, target, stop in moves:
        for to, from_ in naive_plan(here, there, source, target, 0, stop).items():
            memory[to - there.areas[0].base] = p.memory[from_ - here.areas[0].base]
    return memory


@pytest.mark.parametrize("blocks_at_once", [1, 2, 5])
def test_pages_are_permuted_first_in_as_many_rounds_as_it_takes(
    start: Callable[..., Pair], blocks_at_once: int
) -> None:
    p, d = start(blocks_at_once * LAYERS * PAGE)
    source, target = table(3, 7, 5, 9), table(8, 2, 4, 1)
    move(p, d, "t", source, target, 15)
    landed, _ = d.collect(2)
    assert isinstance(landed, Landed)
    (sent,) = p.collect(1)
    assert isinstance(sent, Sent)
    np.testing.assert_array_equal(d.memory, expected(p, d, [(source, target, 15)]))
    # One range for each page, where slot by slot they would be LAYERS * 15 * HEADS.
    assert sent.descriptors == LAYERS * 4
    assert sent.bytes_written == landed.bytes_received == LAYERS * 15 * HEADS * CONTENT


def test_transfers_take_the_buffer_in_turn(start: Callable[..., Pair]) -> None:
    p, d = start(LAYERS * PAGE)
    moves = [
        (table(3, 7, 5), table(8, 2, 4), 12),
        (table(9, 1), table(1, 5), 7),
        (table(0, 2, 4), table(10, 3, 0), 11),
    ]
    for number, (source, target, stop) in enumerate(moves):
        move(p, d, f"t{number}", source, target, stop)
    results = d.collect(6)
    assert sorted(type(r).__name__ for r in results) == [Landed.__name__] * 3 + [LetGo.__name__] * 3
    np.testing.assert_array_equal(d.memory, expected(p, d, moves))


@pytest.mark.parametrize(
    ("order", "room", "ranges"),
    [("LBHNC", 1 << 16, LAYERS * 3), ("LBNHC", LAYERS * PAGE - 1, LAYERS * 12 * HEADS)],
    ids=["like orders", "no room for a block"],
)
def test_otherwise_bytes_go_directly(
    start: Callable[..., Pair], order: str, room: int, ranges: int
) -> None:
    p, d = start(room, order)
    source, target = table(3, 7, 5), table(8, 2, 4)
    move(p, d, "t", source, target, 12)
    assert isinstance(d.collect(2)[0], Landed)
    (sent,) = p.collect(1)
    assert sent.descriptors == ranges
    np.testing.assert_array_equal(d.memory, expected(p, d, [(source, target, 12)]))


def test_a_withdrawn_transfer_leaves_the_buffer_to_the_next(start: Callable[..., Pair]) -> None:
    p, d = start(LAYERS * PAGE)
    source, target = table(3, 7, 5), table(8, 2, 4)
    for number in range(4):
        move(p, d, f"gone{number}", source, target, 12)
        d.agent.cancel(TransferId(f"gone{number}"), f"gone{number}")
    d.collect(8)
    d.memory[:] = 0
    move(p, d, "t", source, target, 12)
    assert isinstance(d.collect(2)[0], Landed)
    np.testing.assert_array_equal(d.memory, expected(p, d, [(source, target, 12)]))


def test_only_host_memory_can_be_permuted() -> None:
    memory = new_memory()
    staging = Memory(base=int(memory.ctypes.data), length=64, kind="cuda")
    with pytest.raises(BadValue, match="staging"):
        config("P", Role.PRODUCER, memory, staging=staging)
