"""A made-up request that shows how blocks map: two tables and their plan.

Owns the choice of block ids. Knows no words. Invariant: `neighbours=False` gives tables in
which no block follows its predecessor.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Group, Shard
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry

I64 = npt.NDArray[np.int64]
BLOCKS_MAX = 4
"""Consumer blocks of a sample, where both pools have room for them."""


@attrs.frozen(eq=False)
class Sample:
    """Tables of both sides, the tokens that they hold, and the plan for those."""

    source: BlockTable
    target: BlockTable
    token_start: int
    token_stop: int
    plan: Plan


def sample_of(src: Shard, dst: Shard, edge: Edge, *, neighbours: bool) -> Sample:
    """A few whole consumer blocks from token 0 on."""
    target = dst.groups[edge.consumer_group]
    source = src.groups[edge.producer_group]
    room = _usable(source) * source.tokens_per_entry // target.tokens_per_entry
    count = max(1, min(BLOCKS_MAX, _usable(target), room))
    return sample_blocks(src, dst, edge, 0, count, neighbours=neighbours)


def sample_blocks(
    src: Shard, dst: Shard, edge: Edge, first: int, count: int, *, neighbours: bool = False
) -> Sample:
    """Consumer blocks first to first + count - 1 of a request that starts at token 0.

    Raises BadValue where a pool is too small for the blocks that this takes.
    """
    source = src.groups[edge.producer_group]
    target = dst.groups[edge.consumer_group]
    start, stop = first * target.tokens_per_entry, (first + count) * target.tokens_per_entry
    here = start // source.tokens_per_entry
    needed = math.ceil(stop / source.tokens_per_entry) - here
    for group, blocks in ((source, needed), (target, count)):
        if blocks > _usable(group):
            bound = f"at least {blocks} blocks for {stop - start} tokens"
            raise BadValue(f"group {group.name!r} pool", _usable(group), bound)
    choose = _ids if neighbours else _ids_apart
    tables = (
        BlockTable(
            group=edge.producer_group,
            first_token=here * source.tokens_per_entry,
            blocks=choose(source, needed),
        ),
        BlockTable(group=edge.consumer_group, first_token=start, blocks=choose(target, count)),
    )
    plan = EdgeGeometry.build(src, dst, edge).plan(*tables, start, stop)
    return Sample(*tables, start, stop, plan)


def _usable(group: Group) -> int:
    return group.manager_blocks - (group.null_block is not None)


def _ids(group: Group, count: int) -> I64:
    """The lowest ids that are not the null block."""
    ids = np.arange(count + 1, dtype=np.int64)
    usable: I64 = ids[ids != group.null_block][:count]
    return usable


def _ids_apart(group: Group, count: int) -> I64:
    """Every other id where the pool has room, else backwards: none follows another."""
    if _usable(group) >= 2 * count:
        return _ids(group, 2 * count)[::2].copy()
    return _ids(group, count)[::-1].copy()
