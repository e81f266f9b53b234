"""Is every byte written exactly once, and which bytes stay as they were.

Owns interval arithmetic on columns. Knows shards only to find the bytes of a
box. Invariant (H2): `check_exactly_once` passes only where the plans tile the
wanted bytes of the consumer without gap, overlap or stray byte. `wanted_ranges`
shares no code with `translate`, so that one cannot hide the other's mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import BlockTable, Group, Plane, Shard
from kvxfer.layout.grid import grid_of
from kvxfer.layout.match import state_tokens
from kvxfer.layout.plan import Plan
from kvxfer.layout.table import check_table, entries_of
from kvxfer.layout.tokens import wanted_tokens

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

    One range for each plane, layer, head, slot and element before they are joined: for
    checks, not for the path of a request.
    """
    group = shard.groups[table.group]
    # One token of each slot is enough: a state may stand for very many.
    step = math.gcd(*(state_tokens(group, plane) for plane in group.planes))
    tokens = np.arange(token_start - token_start % step, token_stop, step)
    tokens = tokens[tokens // group.context_interleave % group.context_size == group.context_rank]
    rounds = tokens // (group.context_interleave * group.context_size)
    local = rounds * group.context_interleave + tokens % group.context_interleave
    local -= table.first_token // group.context_size
    ranges = [_plane_ranges(shard, group, plane, table, local) for plane in group.planes]
    return joined(*_all(ranges))


def _plane_ranges(
    shard: Shard, group: Group, plane: Plane, table: BlockTable, tokens: npt.NDArray[np.int64]
) -> Ranges:
    """Bytes of one plane; `tokens` count those of this rank from the table's first on."""
    grid = grid_of(shard, group, plane)
    entry, inside = np.divmod(tokens, group.tokens_per_block)
    part, inside = np.divmod(inside, group.tokens_per_block // group.physical_per_block)
    slot = inside // grid.tokens_per_state
    physical = table.blocks.astype(np.int64)[entry] * group.physical_per_block + part
    at = physical.astype(np.uint64) * np.uint64(grid.stride_block)
    at += slot.astype(np.uint64) * np.uint64(grid.stride_slot)
    at = np.unique(at)
    axes = [
        np.arange(grid.elements, dtype=np.uint64) * np.uint64(grid.stride_element),
        np.arange(grid.head_stop - grid.head_start, dtype=np.uint64) * np.uint64(grid.stride_head),
        np.array(grid.starts, np.uint64),
    ]
    for steps in axes:
        at = (steps[:, None] + at).ravel()
    return at, np.full(at.size, grid.element_bytes, np.uint64)


def covered_exactly_once(plans: Sequence[Plan], wanted: Ranges) -> Coverage:
    """Compare what `plans` write with `wanted`, whose ranges do not overlap."""
    plan = Plan.concat(list(plans))
    start, length, depth, want = _levels((plan.dst, plan.length), wanted)

    def pick(chosen: npt.NDArray[np.bool_]) -> Ranges:
        chosen = chosen & (length > 0)
        return joined(start[chosen], length[chosen])

    return Coverage(
        gaps=pick((want > 0) & (depth == 0)),
        overlaps=pick(depth > 1),
        strays=pick((depth > 0) & (want == 0)),
    )


def _levels(
    first: Ranges, second: Ranges
) -> tuple[U64, U64, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Stretches of memory with, for each, how many ranges of either kind hold it."""
    edges = np.concatenate((first[0], first[0] + first[1], second[0], second[0] + second[1]))
    steps = np.zeros((2, edges.size), np.int64)
    count, half = first[0].size, 2 * first[0].size + second[0].size
    steps[0, :count], steps[0, count : 2 * count] = 1, -1
    steps[1, 2 * count : half], steps[1, half:] = 1, -1
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    # Between two neighbouring borders nothing changes.
    levels = np.cumsum(steps[:, order], axis=1)[:, :-1]
    return edges[:-1], np.diff(edges), levels[0], levels[1]


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
    """Bytes of the table's blocks that a request for these tokens leaves as they were.

    Those behind `token_stop`, and, in a block where a window begins, those before the
    window. No transfer writes them, D may zero them. Slots before `token_start` are not
    among them: they hold tokens that the consumer has already, and zeroing those would
    destroy its own prefix. Raises BadValue where the table does not cover the tokens.
    """
    group = shard.groups[table.group]
    start, stop = wanted_tokens(group, token_start, token_stop)
    check_table(shard, table, start, stop)
    if start >= stop:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    first, last = entries_of(group, table, start, stop)
    size = group.tokens_per_entry
    before = max(token_start, table.first_token + first * size)
    spans = [(before, start), (stop, table.first_token + last * size)]
    # Blocks behind the last token: whatever is there, but no null ones.
    starts = [table.first_token + n * size for n in range(last, table.blocks.size)]
    unused = table.blocks[last:] != (-1 if group.null_block is None else group.null_block)
    spans += [(at, at + size) for at, real in zip(starts, unused, strict=True) if real]
    left = [wanted_ranges(shard, table, *span) for span in spans if span[0] < span[1]]
    # The slots of the first and the last token may stand for tokens outside as well.
    kept = [wanted_ranges(shard, table, token, token + 1) for token in (start, stop - 1)]
    return _without(left, kept)


def _without(ranges: Sequence[Ranges], kept: Sequence[Ranges]) -> Ranges:
    if not ranges:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    start, length, left, keep = _levels(_all(ranges), _all(kept))
    chosen = (left > 0) & (keep == 0) & (length > 0)
    return joined(start[chosen], length[chosen])


def _all(ranges: Sequence[Ranges]) -> Ranges:
    address, length = (np.concatenate(column) for column in zip(*ranges, strict=True))
    return address, length


def joined(address: U64, length: U64) -> Ranges:
    """Sorted, with neighbours joined; the ranges do not overlap."""
    if address.size == 0:
        return address, length
    order = np.argsort(address, kind="stable")
    start, size = address[order], length[order]
    apart = np.flatnonzero(start[1:] != start[:-1] + size[:-1]) + 1
    first = np.concatenate(([0], apart))
    return start[first], np.add.reduceat(size, first)
