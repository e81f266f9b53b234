"""The paged cache: addresses as described, blocks held once."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kvxfer.demo.cache import Allocator, CacheShape, EngineCache, OutOfBlocks
from kvxfer.demo.model import ModelShape
from kvxfer.errors import BadValue

MODEL = ModelShape(layers=3, heads=5, head_dim=4)


def make(**fields: object) -> EngineCache:
    shape = CacheShape(**{"block_count": 9, "block_tokens": 4, **fields})  # type: ignore[arg-type]
    return EngineCache(MODEL, shape, seed=1)


@pytest.mark.parametrize("order", ["LBHNC", "BLHNC", "LBNHC", "NHBLC"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_described_address_is_where_the_byte_lies(order: str, ranks: int) -> None:
    """The address formula of `kvxfer.layout.geometry`, against bytes written through the store."""
    cache = make(order=order, ranks=ranks)
    blocks = cache.allocator.take(3)
    rng = np.random.default_rng(0)
    content = rng.integers(-128, 128, (11, MODEL.heads, MODEL.content_bytes)).astype(np.int8)
    store = cache.sequence(blocks)
    for layer in range(MODEL.layers):
        store.write(layer, 0, content + np.int8(layer))
    for pool in cache.pools:
        shard = cache.shard(pool.rank)
        group, area = shard.groups[0], shard.areas[0]
        for layer, head, token, byte in [
            (0, pool.head_start, 0, 0),
            (2, pool.head_stop - 1, 10, 7),
        ]:
            address = (
                area.base
                + group.planes[0].offset
                + layer * group.stride_layer
                + int(blocks[token // 4]) * group.stride_block
                + (head - group.head_start) * group.stride_head
                + token % 4 * group.stride_slot
                + byte
            )
            assert area.base <= address < area.base + area.length
            found = ctypes.c_int8.from_address(address).value
            assert found == int((content + np.int8(layer))[token, head, byte])


def test_ranks_share_all_heads_without_gap_or_overlap() -> None:
    cache = make(ranks=3)
    bounds = [(pool.head_start, pool.head_stop) for pool in cache.pools]
    assert bounds == [(0, 1), (1, 3), (3, 5)]
    holdings = cache.shard(1).ranks
    assert [(h.rank, h.holdings[0].head_start, h.holdings[0].head_stop) for h in holdings] == [
        (rank, start, stop) for rank, (start, stop) in enumerate(bounds)
    ]
    assert len({pool.memory.base for pool in cache.pools}) == 3


def test_a_fresh_pool_is_not_zero() -> None:
    assert all((pool.raw == 0x55).all() for pool in make(ranks=2).pools)


def test_read_gives_back_what_was_written_in_pieces() -> None:
    cache = make(ranks=2, order="BNLHC")
    store = cache.sequence(cache.allocator.take(4))
    content = np.arange(13 * 5 * 8).reshape(13, 5, 8).astype(np.int8)
    for start, stop in ((0, 1), (1, 6), (6, 13)):
        store.write(1, start, content[start:stop])
    found = store.read(1, 13)
    assert found.flags.c_contiguous
    assert np.array_equal(found, content.transpose(1, 0, 2))


def test_tables_name_the_blocks_of_the_asked_tokens_only() -> None:
    cache = make()
    blocks = cache.allocator.take(4)
    assert cache.table(blocks, 8).blocks.tolist() == blocks[:2].tolist()
    assert cache.table(blocks, 9).blocks.tolist() == blocks[:3].tolist()


def test_blocks_come_scattered_each_once_and_the_same_for_a_seed() -> None:
    allocator = Allocator(50, seed=7)
    taken = allocator.take(30).tolist()
    assert taken == Allocator(50, seed=7).take(30).tolist()
    assert taken != sorted(taken)
    assert len({*taken, *allocator.take(20).tolist()}) == 50
    assert allocator.held == 50


def test_an_empty_pool_takes_nothing() -> None:
    allocator = Allocator(4, seed=0)
    held = allocator.take(3)
    with pytest.raises(OutOfBlocks, match="2 blocks wanted, 1 free"):
        allocator.take(2)
    allocator.give_back(held.tolist())
    assert allocator.held == 0
    assert sorted(allocator.take(4).tolist()) == [0, 1, 2, 3]


def test_giving_back_twice_is_an_error() -> None:
    allocator = Allocator(4, seed=0)
    blocks = allocator.take(2).tolist()
    allocator.give_back(blocks)
    with pytest.raises(BadValue, match="a block that is held"):
        allocator.give_back(blocks)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"block_tokens": 0}, "block_tokens"),
        ({"block_count": 0}, "block_count"),
        ({"ranks": 6}, "ranks"),
        ({"ranks": 0}, "ranks"),
        ({"order": "LBHN"}, "order"),
        ({"order": "CLBHN"}, "order"),
        ({"order": "LBHHC"}, "order"),
    ],
)
def test_a_bad_shape_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(BadValue) as caught:
        make(**fields)
    assert caught.value.field == field


def test_a_pool_that_would_fill_the_machine_is_refused() -> None:
    with pytest.raises(BadValue, match=r"pool_bytes = .*at most 1073741824"):
        CacheShape(block_count=7, block_tokens=10_000_000).check(ModelShape())
