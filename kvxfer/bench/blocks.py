"""Block tables as an allocator leaves them after a while.

Owns the draw of block ids for benchmarks. Knows no shard. Invariant: the tables of
one draw have exactly the asked number of joint runs, wherever the runs lie.

A pool that has served requests for hours hands out ids of which few are neighbours: a
simulation of vLLM's free list gives joint runs (neighbours at the producer and at the
consumer) of 1.1 to 1.3 blocks on average (research: vllm-contract 4.6).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue

I64 = npt.NDArray[np.int64]
STEADY_RUN = 1.2
"""Mean length of a joint run in a pool that has been in use for long, in blocks."""


def draw_tables(blocks: int, pool: int, mean_run: float, seed: int) -> tuple[I64, I64]:
    """Source and target ids of one request: two columns of shape (blocks,), int64.

    Ids are from 1 to pool - 1 (0 is vLLM's null block). The table is cut in
    round(blocks / mean_run) runs of random length, and each side puts them in an order
    and at places of its own, never next to each other. Raises BadValue where the pool has
    no room for that.
    """
    if not 1 <= mean_run <= blocks:
        raise BadValue("mean_run", mean_run, f"from 1 to {blocks}")
    runs = round(blocks / mean_run)
    if pool < blocks + runs + 1:
        raise BadValue("pool", pool, f"at least {blocks + runs + 1} blocks")
    rng = np.random.default_rng(seed)
    borders = np.sort(rng.choice(np.arange(1, blocks), runs - 1, replace=False))
    lengths = np.diff(np.concatenate(([0], borders, [blocks]))).astype(np.int64)
    return _placed(lengths, pool, rng), _placed(lengths, pool, rng)


def _placed(lengths: I64, pool: int, rng: np.random.Generator) -> I64:
    """Ids of runs that lie in a random order with at least one free id between them."""
    order = rng.permutation(lengths.size)
    spare = pool - 1 - int(lengths.sum()) - (lengths.size - 1)
    # Free ids before each run: cuts of `spare` at random, and one id between two runs.
    cuts = np.sort(rng.integers(0, spare + 1, lengths.size))
    before = np.concatenate(([0], np.cumsum(lengths[order])[:-1]))
    starts = np.empty(lengths.size, np.int64)
    starts[order] = 1 + cuts + before + np.arange(lengths.size)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids: I64 = np.repeat(starts, lengths) + within
    return ids


def joint_runs(source: I64, target: I64) -> int:
    """How many pieces of the table are neighbours on both sides, in whatever order.

    Counted from the other end than the draw: sorted by target, a block starts a run
    unless it follows its predecessor on both sides.
    """
    if source.size == 0:
        return 0
    order = np.argsort(target)
    follows = (np.diff(target[order]) == 1) & (np.diff(source[order]) == 1)
    return 1 + int(np.count_nonzero(~follows))
