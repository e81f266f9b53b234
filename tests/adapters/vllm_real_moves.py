"""One request moved twice: by plan, and through the tensors that vLLM's kernels index.

Owns the two moves and their comparison. Needs torch when called. A cache is whatever has
`bytes_of()` (all of its memory as one tensor of bytes) and `bound(layer)` (what a kernel
reads: a tensor, or a tuple of tensors where a layer has states).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Group, GroupKind, Shard
from kvxfer.layout.tokens import wanted_tokens
from kvxfer.layout.translate import plan_edge

CHANCE = np.random.default_rng(4)


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


def fill(engine: Any) -> None:
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
    p: Any,
    d: Any,
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
    p: Any, d: Any, src: Shard, dst: Shard, tokens: int, *, wrong: bool = False
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
