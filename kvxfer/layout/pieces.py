"""The wanted tokens of one request, cut so that each piece is one step on both sides.

Owns the joint cuts of the token axis: where a physical block ends on either side, and
where context-parallel ownership changes (spec 7.2). Knows no layers, heads or planes.
Invariant: the pieces hold every slot that a wanted token of both sides lies in, once,
and each lies in one physical block of either side.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import BlockTable, Group
from kvxfer.layout.grid import Grid
from kvxfer.layout.tokens import WHOLE, Share, distinct, share_of, shared_segments

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Ints = Any
"""A Python int, or a column of them: one segment is the usual case, and numpy is slow on it."""


@attrs.frozen(cache_hash=True)
class SlotAxis:
    """How one side lays the slots of a request into memory."""

    tokens_per_state: int
    slots: int
    """Slots of one physical block."""
    physical_per_block: int
    stride_block: int
    stride_slot: int
    share: Share

    @classmethod
    def of(cls, group: Group, grid: Grid) -> SlotAxis:
        return cls(
            grid.tokens_per_state,
            grid.slots,
            group.physical_per_block,
            grid.stride_block,
            grid.stride_slot,
            share_of(group),
        )

    def slots_of(self, token: Ints, count: Ints, first_token: int) -> tuple[Ints, Ints]:
        """First slot, from the table's start, and number of slots of owned tokens."""
        start = token - first_token
        if not self.share.whole:
            # An owned token's position, as by `Share.position`.
            rounds, inside = token // self.share.period, token % self.share.period
            start = rounds * self.share.interleave + inside
            start = start - self.share.rank * self.share.interleave
            start = start - self.share.position(first_token)
        first = start // self.tokens_per_state
        return first, -((-start - count) // self.tokens_per_state) - first

    def offsets(self, table: BlockTable, slots: I64) -> U64:
        """Byte offset of each slot from (layer 0, block 0, head 0, slot 0)."""
        if self.physical_per_block == 1:
            entry, slot = np.divmod(slots, self.slots)
            block = table.blocks[entry]
        else:
            entry, inside = np.divmod(slots, self.slots * self.physical_per_block)
            part, slot = np.divmod(inside, self.slots)
            block = table.blocks[entry] * self.physical_per_block + part
        offsets: U64 = block.astype(np.uint64) * np.uint64(self.stride_block)
        if self.slots > 1:
            offsets += slot.astype(np.uint64) * np.uint64(self.stride_slot)
        return offsets

    def block_offsets(self, table: BlockTable, first_slot: int, count: int) -> U64:
        """`offsets` of a first slot and of the starts of the blocks behind it, one a block.

        The usual case, with one physical block to a manager block: no slot is looked up.
        """
        entry, slot = divmod(first_slot, self.slots)
        blocks = table.blocks[entry : entry + count]
        offsets: U64 = blocks.astype(np.uint64) * np.uint64(self.stride_block)
        offsets[:1] += np.uint64(slot * self.stride_slot)
        return offsets


@attrs.frozen(cache_hash=True)
class SlotAxes:
    """Both sides' slots of the planes that are laid out alike."""

    src: SlotAxis
    dst: SlotAxis
    only: Share = WHOLE
    """A third share that narrows both: what a staging buffer holds of its shard."""

    @property
    def by_block(self) -> bool:
        """May the two sides' manager blocks be walked in step?"""
        same = self.src.slots == self.dst.slots
        return same and self.src.physical_per_block == self.dst.physical_per_block == 1


@attrs.frozen(eq=False)
class Pieces:
    """Columns of shape (n,): byte offset of the piece's first slot on either side,
    before layer, plane and head are added, and the number of slots."""

    src: U64
    dst: U64
    slots: I64


def cut(
    axes: SlotAxes,
    source: BlockTable,
    target: BlockTable,
    token_start: int,
    token_stop: int,
    pieces_max: int,
) -> Pieces:
    """Cut tokens [token_start, token_stop), of which the tables cover all.

    Raises LayoutMismatch where more than `pieces_max` pieces would be needed, or where
    the tokens do not lie in as many slots on both sides.
    """
    tokens, counts = _segments(axes, token_start, token_stop, pieces_max)
    here, slots = axes.src.slots_of(tokens, counts, source.first_token)
    there, also = axes.dst.slots_of(tokens, counts, target.first_token)
    in_step = isinstance(slots, int) and slots == also and axes.by_block
    if in_step and here % axes.src.slots == there % axes.dst.slots:
        return _whole_blocks(axes, source, target, (here, there), slots)
    here, slots, there, also = (_column(n) for n in (here, slots, there, also))
    if slots.tolist() != also.tolist():
        raise LayoutMismatch(
            f"tokens {token_start} to {token_stop - 1} lie in {int(slots.sum())} states at the "
            f"producer and {int(also.sum())} at the consumer"
        )
    places, segment, length = _cut_slots(axes, here, there, slots, pieces_max)
    return Pieces(
        axes.src.offsets(source, here[segment] + places),
        axes.dst.offsets(target, there[segment] + places),
        length,
    )


def _whole_blocks(
    axes: SlotAxes, source: BlockTable, target: BlockTable, first: tuple[int, int], slots: int
) -> Pieces:
    """One piece a block: both sides change their block at the same tokens."""
    size = axes.src.slots
    phase = first[0] % size
    count = -(-(phase + slots) // size)
    length = np.full(count, size, np.int64)
    length[0] -= phase
    length[-1] -= count * size - phase - slots
    return Pieces(
        axes.src.block_offsets(source, first[0], count),
        axes.dst.block_offsets(target, first[1], count),
        length,
    )


def _column(values: Ints) -> I64:
    return values if isinstance(values, np.ndarray) else np.array([values], np.int64)


def _segments(axes: SlotAxes, start: int, stop: int, segments_max: int) -> tuple[Ints, Ints]:
    """Tokens that lie side by side on both sides: first token and count."""
    shares = {axes.src.share, axes.dst.share, axes.only} - {WHOLE}
    if not shares:
        return start, stop - start
    if shares == {axes.src.share} == {axes.dst.share}:
        # Both own the same tokens, at the same positions: one piece, however they alternate.
        here = axes.src.share
        first, count = here.position(start), here.position(stop) - here.position(start)
        rounds, inside = divmod(first, here.interleave)
        token = rounds * here.period + here.rank * here.interleave + inside
        return (token, count) if count else (_NONE, _NONE)
    return shared_segments(shares, start, stop, segments_max)


_NONE = np.zeros(0, np.int64)


def _cut_slots(
    axes: SlotAxes, here: I64, there: I64, slots: I64, pieces_max: int
) -> tuple[I64, I64 | int, I64]:
    """First slot of each piece within its segment, the segment, and the piece's slots."""
    total = int(slots.sum())
    smallest = min(axes.src.slots, axes.dst.slots)
    least = total // smallest + slots.size
    if least > pieces_max:
        raise LayoutMismatch(
            f"the two block sizes need {least} ranges, at most {pieces_max} are allowed"
        )
    before = np.cumsum(slots) - slots
    phase_here, phase_there = -here % axes.src.slots, -there % axes.dst.slots
    cuts = [before, _multiples(phase_here, slots, before, axes.src.slots)]
    one_grid = axes.src.slots == axes.dst.slots and phase_here.tolist() == phase_there.tolist()
    if not one_grid:
        cuts.append(_multiples(phase_there, slots, before, axes.dst.slots))
    if one_grid and slots.size == 1:
        # The usual case: one column, in order already.
        places = cuts[1] if not phase_here[0] else np.concatenate(cuts)
    else:
        places = distinct(np.concatenate(cuts))
    length = np.empty_like(places)
    np.subtract(places[1:], places[:-1], out=length[:-1])
    length[-1:] = total - places[-1:]
    if slots.size == 1:
        return places, 0, length
    segment = np.searchsorted(before, places, side="right") - 1
    return places - before[segment], segment, length


def _multiples(phase: I64, slots: I64, before: I64, step: int) -> I64:
    """Positions phase, phase + step, .. below `slots` of each segment, counted over all."""
    if slots.size == 1:
        return np.arange(int(phase[0]), int(slots[0]), step, dtype=np.int64)
    counts = np.maximum(0, -((phase - slots) // step))
    which = np.repeat(np.arange(slots.size), counts)
    within = np.arange(which.size) - (np.cumsum(counts) - counts)[which]
    found: I64 = before[which] + phase[which] + within * step
    return found
