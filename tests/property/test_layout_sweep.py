"""Every pair of small layouts, carried out on real bytes: none wrong, missing or written twice.

All six orders on both sides, 1 to 4 ranks on both sides, three pairs of block sizes,
heads split and replicated. As a program the sweep is wider, and tells what it did:

    python tests/property/test_layout_sweep.py --full
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.layout.translate import EdgeGeometry

I64 = npt.NDArray[np.int64]
LAYERS = ("a", "b")
TOKENS, START, CONTENT = 12, 1, 2
BLOCK_SIZES = ((4, 4), (4, 6), (6, 4))


@attrs.frozen(eq=False)
class Side:
    """One engine: shards, one table, and each rank's memory with the wanted bytes spelled out."""

    shards: tuple[Shard, ...]
    table: BlockTable
    memory: tuple[I64, ...]


@functools.cache
def side(order: str, ranks: int, stages: int, tokens: int, heads: int, seed: int) -> Side:
    pool = TOKENS // tokens + 5
    shards = engine_shards(
        bases=[0] * (ranks * stages),
        order=order,
        stages=stages,
        layers=LAYERS,
        blocks=pool,
        tokens_per_block=tokens,
        heads_total=heads,
        content_bytes=CONTENT,
        null_block=0,
    )
    ids = np.random.default_rng(seed).permutation(np.arange(1, pool))
    # Some ids follow each other, so that runs of blocks are met as well.
    ids[:2] = (3, 4)
    ids = np.array(list(dict.fromkeys(ids.tolist())), np.int64)
    table = BlockTable(group=0, first_token=0, blocks=ids[: -(-TOKENS // tokens)])
    return Side(shards, table, tuple(spelled(shard, table) for shard in shards))


def spelled(shard: Shard, table: BlockTable) -> I64:
    """Memory, one number for each byte: what it is, or 0 where nothing is wanted.

    The formula of the specification (7.2), once for all bytes.
    """
    group = shard.groups[0]
    token = np.arange(START, TOKENS)
    layer = np.array([LAYERS.index(name) for name in group.layers])
    head = np.arange(group.head_start, group.head_stop)
    byte = np.arange(CONTENT)
    places = np.arange(layer.size)[:, None, None, None] * group.stride_layer
    block = table.blocks[token // group.tokens_per_block]
    at = (
        places
        + (block * group.stride_block)[None, :, None, None]
        + (token % group.tokens_per_block * group.stride_slot)[None, :, None, None]
        + ((head - group.head_start) * group.stride_head)[None, None, :, None]
        + byte[None, None, None, :]
    )
    name = ((layer[:, None, None, None] * 100 + token[None, :, None, None]) * 100) + 1
    name = (name + head[None, None, :, None]) * CONTENT + byte[None, None, None, :]
    memory = np.zeros(shard.areas[0].length, np.int64)
    memory[at] = name
    return memory


def wrong_bytes(source: Side, target: Side) -> tuple[int, int]:
    """(bytes that are wrong, missing, stray or written twice; edges walked)."""
    edges = edges_between(source.shards[0], target.shards[0])
    wrong = 0
    for shard, expected in zip(target.shards, target.memory, strict=True):
        got = np.zeros_like(expected)
        written = np.zeros_like(expected)
        for edge in edges:
            if edge.consumer_rank != shard.rank:
                continue
            geometry = EdgeGeometry.build(source.shards[edge.producer_rank], shard, edge)
            plan = geometry.plan(source.table, target.table, START, TOKENS)
            size = plan.length.astype(np.int64)
            within = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            to = np.repeat(plan.dst.astype(np.int64), size) + within
            from_ = np.repeat(plan.src.astype(np.int64), size) + within
            got[to] = source.memory[edge.producer_rank][from_]
            written += np.bincount(to, minlength=written.size)
        wrong += int((got != expected).sum()) + int((written != (expected > 0)).sum())
    return wrong, len(edges)


def pairs(
    orders: tuple[str, str], heads: int, blocks: tuple[tuple[int, int], ...], stages: int = 1
) -> Iterator[tuple[Side, Side]]:
    sizes = itertools.product(range(1, 5), range(1, 5), blocks, *[range(1, stages + 1)] * 2)
    for p_ranks, d_ranks, (p_tokens, d_tokens), p_stages, d_stages in sizes:
        yield (
            side(orders[0], p_ranks, p_stages, p_tokens, heads, 1),
            side(orders[1], d_ranks, d_stages, d_tokens, heads, 2),
        )


@pytest.mark.parametrize("heads", [2, 4], ids=["replicated", "split"])
@pytest.mark.parametrize("producer", ORDERS)
def test_no_byte_is_wrong(producer: str, heads: int) -> None:
    for consumer in ORDERS:
        for source, target in pairs((producer, consumer), heads, BLOCK_SIZES):
            assert wrong_bytes(source, target)[0] == 0, (consumer, source.table, target.table)


def test_the_sweep_can_fail() -> None:
    """A byte of the source that is not what it should be is counted."""
    source = side("LBHNC", 1, 1, 4, 2, 1)
    target = side("LBNHC", 1, 1, 6, 2, 2)
    assert wrong_bytes(source, target)[0] == 0
    (memory,) = (m.copy() for m in source.memory)
    memory[np.flatnonzero(memory)[0]] += 1
    assert wrong_bytes(attrs.evolve(source, memory=(memory,)), target)[0] == 1


def full_sweep() -> str:
    """More head counts, block sizes and pipeline stages; some minutes."""
    blocks = ((1, 1), (2, 3), (4, 4), (4, 6), (6, 4), (3, 12), (5, 2))
    cases = edges = wrong = 0
    for orders in itertools.product(ORDERS, ORDERS):
        for heads in (1, 2, 3, 4, 6):
            for source, target in pairs(orders, heads, blocks, stages=2):
                bad, walked = wrong_bytes(source, target)
                cases, edges, wrong = cases + 1, edges + walked, wrong + bad
    return f"{cases} pairs of engines, {edges} edges, {wrong} wrong bytes\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--full"]:
        sys.exit("usage: test_layout_sweep.py --full")
    sys.stdout.write(full_sweep())
