"""The caches that vLLM really allocates: bytes moved by plan are those that vLLM reads.

For every kind of cache two engines are started in this process, with pools of different
sizes. P's memory is filled with chance bytes; a plan between the two descriptors moves a
request's blocks to other block ids at D. The same move is then made through vLLM's own
views (tensor[block, head, slot]), and all of D's memory must be equal, byte for byte.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_tiny_engines import MODELS, TinyEngine, start

from kvxfer.errors import LayoutMismatch
from kvxfer.explain.files import dump_shards, load_shards
from kvxfer.layout.check import check_shard
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Group, GroupKind, Shard
from kvxfer.layout.tokens import wanted_tokens
from kvxfer.layout.translate import plan_edge
from kvxfer.limits import Limits
from kvxfer_vllm import compat
from kvxfer_vllm.geometry import cache_groups, describe_groups

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
pytest.importorskip("vllm")

CHANCE = np.random.default_rng(4)
KINDS = {
    "dense": {"full": GroupKind.PAGE},
    "latent": {"latent": GroupKind.LATENT},
    "window": {"full": GroupKind.PAGE, "window": GroupKind.PAGE},
    "mamba1": {"full": GroupKind.PAGE, "state": GroupKind.STATE},
    "mamba2": {"full": GroupKind.PAGE, "state": GroupKind.STATE},
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: Any, tmp_path_factory: Any) -> Iterator[tuple[str, TinyEngine, TinyEngine]]:
    folder = tmp_path_factory.mktemp(request.param)
    engines = start(request.param, folder, 4), start(request.param, folder, 6)
    yield request.param, *engines
    for engine in engines:
        engine.close()


def describe(engine: TinyEngine, *, packed: bool = True) -> Shard:
    groups = cache_groups(engine.config)
    packing = ""
    if packed:
        attention = [name for g in groups if not g.states for name in g.layers]
        packing = compat.page_packing(engine.runner.vllm_config, attention)
    heads = engine.runner.model_config.get_total_num_kv_heads()
    shard, _ = describe_groups(engine.caches, groups, heads, packing)
    check_shard(shard, Limits())
    return shard


def tables(shard: Shard, tokens: int) -> list[BlockTable]:
    """A block table per group as vLLM keeps them: no block in two groups, null where a
    group no longer needs one."""
    pool = shard.groups[0].manager_blocks
    free = iter((CHANCE.permutation(pool - 1) + 1).tolist())
    made = []
    for index, group in enumerate(shard.groups):
        first, _ = wanted_tokens(group, 0, tokens)
        entries = -(-tokens // group.tokens_per_block)
        blocks = [
            next(free) if (entry + 1) * group.tokens_per_block > first else 0
            for entry in range(entries)
        ]
        made.append(BlockTable(group=index, first_token=0, blocks=np.array(blocks)))
    return made


def fill(engine: TinyEngine) -> None:
    import torch

    memory = engine.bytes_of()
    memory.copy_(torch.from_numpy(CHANCE.integers(0, 256, memory.numel(), np.uint8)))


def move(
    src: Shard, dst: Shard, source: list[BlockTable], target: list[BlockTable], tokens: int
) -> int:
    """Copy by plan; returns the bytes moved."""
    moved = 0
    for edge in edges_between(src, dst):
        span = wanted_tokens(dst.groups[edge.consumer_group], 0, tokens)
        here, there = source[edge.producer_group], target[edge.consumer_group]
        plan = plan_edge(src, dst, edge, here, there, *span)
        for start_src, start_dst, length in zip(
            plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True
        ):
            ctypes.memmove(start_dst, start_src, length)
        moved += plan.bytes_total
    return moved


def move_by_views(
    p: TinyEngine,
    d: TinyEngine,
    groups: tuple[tuple[Group, Group], ...],
    source: list[BlockTable],
    target: list[BlockTable],
    tokens: int,
) -> None:
    """The same through the tensors that vLLM's kernels index."""
    for index, (here, there) in enumerate(groups):
        first, stop = wanted_tokens(there, 0, tokens)
        grain = there.tokens_per_state
        for token in range(first - first % grain, stop, grain):
            at_p, at_d = place(here, source[index], token), place(there, target[index], token)
            for layer in there.layers:
                copy_slot(p.bound(layer), d.bound(layer), at_p, at_d, there)


def place(group: Group, table: BlockTable, token: int) -> tuple[int, int]:
    """Kernel block and slot of a token, as vLLM's slot mapping has them."""
    entry, inside = divmod(token, group.tokens_per_block)
    part, inside = divmod(inside, group.tokens_per_block // group.physical_per_block)
    block = int(table.blocks[entry])
    assert block != 0
    return block * group.physical_per_block + part, inside // group.tokens_per_state


def copy_slot(
    source: Any, target: Any, here: tuple[int, int], there: tuple[int, int], group: Group
) -> None:
    if isinstance(source, tuple | list):
        for one, other in zip(source, target, strict=True):
            other[there[0]] = one[here[0]]
    elif group.kind is GroupKind.PAGE:
        target[there[0]] = source[here[0]]
    elif source.dim() == 3:
        target[there[0], there[1]] = source[here[0], here[1]]
    else:
        target[there[0], :, there[1]] = source[here[0], :, here[1]]


def moved_alike(
    p: TinyEngine, d: TinyEngine, src: Shard, dst: Shard, tokens: int, *, wrong: bool = False
) -> bool:
    """Move by plan and by views, from and to the same blocks; is all of D's memory equal?"""
    fill(p)
    fill(d)
    before = d.bytes_of().clone()
    source, target = tables(src, tokens), tables(dst, tokens)
    assert move(src, dst, source, target, tokens) > 0
    by_plan = d.bytes_of().clone()
    assert not bool((by_plan == before).all())
    d.bytes_of().copy_(before)
    if wrong:
        source = tables(src, tokens)
    pairs = tuple(zip(src.groups, dst.groups, strict=True))
    move_by_views(p, d, pairs, source, target, tokens)
    return bool((by_plan == d.bytes_of()).all())


def test_the_kinds_of_cache_are_what_they_should_be(
    pair: tuple[str, TinyEngine, TinyEngine],
) -> None:
    kind, p, d = pair
    for engine in (p, d):
        groups = describe(engine).groups
        assert {g.name.partition(".")[0]: g.kind for g in groups} == KINDS[kind]
        named = {name for group in groups for name in group.layers}
        assert named == set(engine.caches)
    assert p.config.num_blocks != d.config.num_blocks


@pytest.mark.parametrize("tokens", [1, 128, 300, 1000])
def test_bytes_moved_by_plan_are_those_that_vllm_reads(
    pair: tuple[str, TinyEngine, TinyEngine], tokens: int
) -> None:
    _, p, d = pair
    assert moved_alike(p, d, describe(p), describe(d), tokens)


def test_slot_by_slot_too(pair: tuple[str, TinyEngine, TinyEngine]) -> None:
    """As for a backend that keeps slots apart: the last block is moved in part."""
    _, p, d = pair
    src, dst = describe(p, packed=False), describe(d, packed=False)
    assert GroupKind.PAGE not in {group.kind for group in src.groups}
    assert moved_alike(p, d, src, dst, 300)


def test_the_comparison_can_fail(pair: tuple[str, TinyEngine, TinyEngine]) -> None:
    _, p, d = pair
    assert not moved_alike(p, d, describe(p), describe(d), 300, wrong=True)


def test_the_descriptor_survives_its_file(
    pair: tuple[str, TinyEngine, TinyEngine], tmp_path: Path
) -> None:
    _, p, _ = pair
    shard = describe(p)
    (tmp_path / "p.json").write_text(dump_shards([shard]))
    assert load_shards(tmp_path / "p.json") == (shard,)


def test_unequal_block_sizes(tmp_path: Path) -> None:
    """vLLM lets the user choose the block size on CPU for plain attention only."""
    sizes = (128, 96)
    p, d = (start("dense", tmp_path / str(size), 4, block_size=size) for size in sizes)
    try:
        src, dst = describe(p, packed=False), describe(d, packed=False)
        assert [s.groups[0].tokens_per_block for s in (src, dst)] == list(sizes)
        assert moved_alike(p, d, src, dst, 300)
        # As packed pages the two refuse each other: no page of one is a page of the other.
        with pytest.raises(LayoutMismatch, match="planes"):
            edges_between(describe(p), describe(d))
    finally:
        p.close()
        d.close()
