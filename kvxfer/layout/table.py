"""Block tables: runs on the wire, columns in memory, and whether they cover the tokens.

Owns the two forms of a table and its check against a shard. Knows no plan.
Invariant: a table that passed `check_table` covers every wanted token, and the entries
that hold one name blocks of the pool, none of them null, each at most once (G1, M1).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import BlockTable, Group, Shard
from kvxfer.layout.grid import grain_of
from kvxfer.layout.tokens import share_of

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def runs_of(blocks: I64) -> tuple[U64, U64]:
    """Maximal runs of consecutive ids, in table order: (starts, lengths), uint64."""
    if blocks.size == 0:
        empty = np.zeros(0, np.uint64)
        return empty, empty
    breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
    first = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((first, [blocks.size])))
    return blocks[first].astype(np.uint64), lengths.astype(np.uint64)


def blocks_of(starts: U64, lengths: U64, blocks_max: int) -> I64:
    """Runs back to ids. BadValue where the sum of lengths is above `blocks_max`.

    Nothing is allocated before the bound is known to hold.
    """
    if starts.shape != lengths.shape:
        raise BadValue("runs", (starts.size, lengths.size), "as many starts as lengths")
    if lengths.size > blocks_max:
        raise BadValue("runs", lengths.size, f"at most {blocks_max} blocks")
    if lengths.size and (int(lengths.min()) < 1 or int(lengths.max()) > blocks_max):
        low = int(lengths.min())
        wrong = low if low < 1 else int(lengths.max())
        raise BadValue("runs.lengths", wrong, f"from 1 to {blocks_max}")
    # No more than blocks_max lengths of no more than blocks_max each: the sum cannot wrap.
    total = int(lengths.sum(dtype=np.uint64))
    if total > blocks_max:
        raise BadValue("runs", total, f"at most {blocks_max} blocks")
    if starts.size and int(starts.max()) >= 1 << 62:
        raise BadValue("runs.starts", int(starts.max()), "below 2^62")
    counts = lengths.astype(np.int64)
    before = np.concatenate(([0], np.cumsum(counts)[:-1])) if counts.size else counts
    within = np.arange(total, dtype=np.int64) - np.repeat(before, counts)
    ids: I64 = np.repeat(starts.astype(np.int64), counts) + within
    return ids


def check_table(shard: Shard, table: BlockTable, token_start: int, token_stop: int) -> None:
    """Raise BadValue where `table` cannot hold tokens [token_start, token_stop) in `shard`.

    Entries in which none of these tokens lies may be null or repeated: a window's blocks
    before it are.
    """
    if not 0 <= table.group < len(shard.groups):
        raise BadValue("table.group", table.group, f"below {len(shard.groups)}")
    group = shard.groups[table.group]
    blocks = table.blocks
    if blocks.ndim != 1 or blocks.dtype.kind not in "iu":
        raise BadValue("table.blocks", blocks.dtype, "one column of integers")
    if table.first_token < 0 or token_start < 0:
        raise BadValue("table.first_token", min(table.first_token, token_start), "at least 0")
    if table.first_token:
        _check_first_token(group, table.first_token)
    span = (table.first_token, table.first_token + blocks.size * group.tokens_per_entry)
    if token_start < token_stop and not span[0] <= token_start < token_stop <= span[1]:
        bound = f"covering tokens {token_start} to {token_stop - 1}"
        raise BadValue("table", f"tokens {span[0]} to {span[1] - 1}", bound)
    if blocks.size == 0:
        return
    in_order = np.sort(blocks)
    _check_ids(in_order, group)
    first, stop = entries_of(group, table, token_start, token_stop)
    if stop - first < blocks.size:
        in_order = np.sort(blocks[first:stop])
    if group.null_block is not None and bool((in_order == group.null_block).any()):
        raise BadValue("table.blocks", group.null_block, "not the null block")
    if bool((in_order[1:] == in_order[:-1]).any()):
        raise BadValue("table.blocks", blocks.size, "every block once")


def entries_of(
    group: Group, table: BlockTable, token_start: int, token_stop: int
) -> tuple[int, int]:
    """Table entries [first, stop) in which tokens [token_start, token_stop) lie."""
    if token_start >= token_stop:
        return 0, 0
    size = group.tokens_per_entry
    first = (token_start - table.first_token) // size
    return first, -((table.first_token - token_stop) // size)


def _check_first_token(group: Group, first_token: int) -> None:
    step = math.lcm(grain_of(group), 1 if group.context_size == 1 else share_of(group).period)
    if first_token % step:
        bound = f"a multiple of {step}, so that states and shares of tokens stay whole"
        raise BadValue("table.first_token", first_token, bound)


def _check_ids(in_order: npt.NDArray[np.integer], group: Group) -> None:
    low, high = int(in_order[0]), int(in_order[-1])
    if low < 0 or high >= group.manager_blocks:
        bound = f"from 0 to {group.manager_blocks - 1}"
        raise BadValue("table.blocks", low if low < 0 else high, bound)
