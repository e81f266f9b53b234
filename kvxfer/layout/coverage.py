"""Is every byte written exactly once, and which bytes stay as they were.

Owns interval arithmetic on columns. Knows shards only to find the bytes of a
box. Invariant (H2): `check_exactly_once` passes only where the plans tile the
wanted bytes of the consumer without gap, overlap or stray byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry

U64 = npt.NDArray[np.uint64]


def wanted_ranges(
    shard: Shard, table: BlockTable, token_start: int, token_stop: int
) -> tuple[U64, U64]:
    """(address, length) of the bytes that tokens [token_start, token_stop) have in a shard."""
    group = shard.groups[table.group]
    whole = Edge(
        shard.rank,
        shard.rank,
        table.group,
        table.group,
        group.head_start,
        group.head_stop,
        group.layers,
    )
    plan = EdgeGeometry.build(shard, shard, whole).plan(table, table, token_start, token_stop)
    return _union(plan.dst, plan.length)


def check_exactly_once(
    shard: Shard, table: BlockTable, token_start: int, token_stop: int, plans: Sequence[Plan]
) -> None:
    """Raise LayoutMismatch naming the first byte that is written twice, not, or wrongly."""
    plan = Plan.concat(list(plans))
    order = np.argsort(plan.dst, kind="stable")
    start, stop = plan.dst[order], plan.dst[order] + plan.length[order]
    twice = np.flatnonzero(start[1:] < stop[:-1])
    if twice.size:
        raise LayoutMismatch(f"byte {int(start[1:][twice[0]])} is written twice")
    got = _union(plan.dst, plan.length)
    want = wanted_ranges(shard, table, token_start, token_stop)
    if not (np.array_equal(got[0], want[0]) and np.array_equal(got[1], want[1])):
        raise LayoutMismatch(
            f"written bytes are not the wanted ones: {_first_difference(got, want)}"
        )


def uncovered(
    shard: Shard, table: BlockTable, token_start: int, token_stop: int
) -> tuple[U64, U64]:
    """(address, length) of the bytes of the table's blocks that a transfer leaves untouched."""
    group = shard.groups[table.group]
    first = table.first_token
    end = first + table.blocks.size * group.tokens_per_block
    address, length = wanted_ranges(shard, table, first, min(token_start, end))
    after = wanted_ranges(shard, table, max(token_stop, first), end)
    return _union(np.concatenate((address, after[0])), np.concatenate((length, after[1])))


def _union(address: U64, length: U64) -> tuple[U64, U64]:
    """Sorted, with neighbours joined; the ranges do not overlap."""
    if address.size == 0:
        return address, length
    order = np.argsort(address, kind="stable")
    start, size = address[order], length[order]
    apart = np.flatnonzero(start[1:] != start[:-1] + size[:-1]) + 1
    first = np.concatenate(([0], apart))
    return start[first], np.add.reduceat(size, first)


def _first_difference(got: tuple[U64, U64], want: tuple[U64, U64]) -> str:
    mine = list(zip(got[0].tolist(), got[1].tolist(), strict=True))
    other = list(zip(want[0].tolist(), want[1].tolist(), strict=True))
    extra = sorted(set(mine) ^ set(other))[0]
    side = "written" if extra in set(mine) else "wanted"
    return f"{extra[1]} bytes at {extra[0]} are only {side}"
