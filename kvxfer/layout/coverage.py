"""Is every byte written exactly once, and which bytes stay as they were.

Owns interval arithmetic on columns. Knows shards only to find the bytes of a
box. Invariant (H2): `check_exactly_once` passes only where the plans tile the
wanted bytes of the consumer without gap, overlap or stray byte. `wanted_ranges`
shares no code with `translate`, so that one cannot hide the other's mistake.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.plan import Plan
from kvxfer.layout.table import check_table
from kvxfer.layout.translate import EdgeGeometry

U64 = npt.NDArray[np.uint64]
Ranges = tuple[U64, U64]
"""Two columns of shape (n,): address and length, in bytes."""


@attrs.frozen(eq=False, kw_only=True)
class Coverage:
    """What is wrong with a set of plans; three empty columns where nothing is."""

    gaps: Ranges
    """Wanted and not written."""
    overlaps: Ranges
    """Written more than once."""
    strays: Ranges
    """Written and not wanted."""

    @property
    def exact(self) -> bool:
        return not any(address.size for address, _ in (self.gaps, self.overlaps, self.strays))


def wanted_ranges(shard: Shard, table: BlockTable, token_start: int, token_stop: int) -> Ranges:
    """The bytes that tokens [token_start, token_stop) have in a shard, sorted and joined.

    One range for each plane, layer, head and token before they are joined: for
    checks, not for the path of a request.
    """
    group = shard.groups[table.group]
    tokens = np.arange(token_start - table.first_token, token_stop - table.first_token)
    slots = group.slots_per_physical
    physical = table.blocks.astype(np.int64)[tokens // group.tokens_per_block]
    physical = physical * group.physical_per_block + tokens % group.tokens_per_block // slots
    at = physical.astype(np.uint64) * np.uint64(group.stride_block)
    at += (tokens % slots).astype(np.uint64) * np.uint64(group.stride_slot)
    for count, stride in (
        (group.head_stop - group.head_start, group.stride_head),
        (len(group.layers), group.stride_layer),
    ):
        steps = np.arange(count, dtype=np.uint64) * np.uint64(stride)
        at = (steps[:, None] + at[None, :]).ravel()
    bases = [shard.areas[plane.area].base + plane.offset for plane in group.planes]
    address = np.concatenate([at + np.uint64(base) for base in bases])
    sizes = np.array([plane.content_bytes for plane in group.planes], np.uint64)
    return _union(address, np.repeat(sizes, at.size))


def covered_exactly_once(plans: Sequence[Plan], wanted: Ranges) -> Coverage:
    """Compare what `plans` write with `wanted`, whose ranges do not overlap."""
    plan = Plan.concat(list(plans))
    edges = np.concatenate(
        (plan.dst, plan.dst + plan.length, wanted[0], wanted[0] + wanted[1])
    ).astype(np.uint64)
    written = np.zeros(edges.size, np.int64)
    asked = np.zeros(edges.size, np.int64)
    count = plan.descriptor_count
    written[:count], written[count : 2 * count] = 1, -1
    half = 2 * count + wanted[0].size
    asked[2 * count : half], asked[half:] = 1, -1
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    # Between two neighbouring borders nothing changes: how often written, how often wanted.
    depth, want = np.cumsum(written[order])[:-1], np.cumsum(asked[order])[:-1]
    start, length = edges[:-1], np.diff(edges)

    def pick(chosen: npt.NDArray[np.bool_]) -> Ranges:
        chosen = chosen & (length > 0)
        return _union(start[chosen], length[chosen])

    return Coverage(
        gaps=pick((want > 0) & (depth == 0)),
        overlaps=pick(depth > 1),
        strays=pick((depth > 0) & (want == 0)),
    )


def check_exactly_once(
    shard: Shard, table: BlockTable, token_start: int, token_stop: int, plans: Sequence[Plan]
) -> None:
    """Raise LayoutMismatch naming the first byte that is written twice, not, or wrongly."""
    wanted = wanted_ranges(shard, table, token_start, token_stop)
    found = covered_exactly_once(plans, wanted)
    for (address, length), what in (
        (found.overlaps, "written twice"),
        (found.gaps, "only wanted"),
        (found.strays, "only written"),
    ):
        if address.size:
            raise LayoutMismatch(f"{int(length[0])} bytes at {int(address[0])} are {what}")


def uncovered(shard: Shard, table: BlockTable, token_start: int, token_stop: int) -> Ranges:
    """Bytes behind `token_stop` in the table's blocks: no transfer writes them, D may zero them.

    Slots before `token_start` are not among them. They hold tokens that the consumer
    has already, and zeroing those would destroy its own prefix. Raises BadValue where
    the table does not cover the tokens.
    """
    check_table(shard, table, token_start, token_stop)
    group = shard.groups[table.group]
    end = table.first_token + table.blocks.size * group.tokens_per_block
    whole = Edge(
        shard.rank,
        shard.rank,
        table.group,
        table.group,
        group.head_start,
        group.head_stop,
        group.layers,
    )
    plan = EdgeGeometry.build(shard, shard, whole).plan(table, table, token_stop, end)
    return _union(plan.dst, plan.length)


def _union(address: U64, length: U64) -> Ranges:
    """Sorted, with neighbours joined; the ranges do not overlap."""
    if address.size == 0:
        return address, length
    order = np.argsort(address, kind="stable")
    start, size = address[order], length[order]
    apart = np.flatnonzero(start[1:] != start[:-1] + size[:-1]) + 1
    first = np.concatenate(([0], apart))
    return start[first], np.add.reduceat(size, first)
