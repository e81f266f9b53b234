"""The wanted tokens of one request, cut so that each piece is one step on both sides.

Owns the joint cuts of the token axis: where a physical block ends on either side, and
where context-parallel ownership changes (spec 7.2). Knows no layers, heads or planes.
Invariant: the pieces hold every slot that a wanted token of both sides lies in, once,
and each lies in one physical block of either side.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import BlockTable, Group
from kvxfer.layout.grid import Grid
from kvxfer.layout.tokens import WHOLE, Share, distinct, share_of, shared_segments

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@attrs.frozen
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

    def slots_of(self, token: I64, count: I64, first_token: int) -> tuple[I64, I64]:
        """First slot, from the table's start, and number of slots of owned tokens."""
        start = self.position(token) - self.share.position(first_token)
        first = start // self.tokens_per_state
        return first, -((-start - count) // self.tokens_per_state) - first

    def run_of(self, token: int, count: int, first_token: int) -> tuple[int, int]:
        """`slots_of` for tokens that are one run, in whole numbers."""
        start = self.share.position(token) - self.share.position(first_token)
        first = start // self.tokens_per_state
        return first, -((-start - count) // self.tokens_per_state) - first

    def position(self, token: I64) -> I64:
        """`Share.position` of tokens that are owned."""
        if self.share.whole:
            return token
        rounds, inside = np.divmod(token, self.share.period)
        found: I64 = rounds * self.share.interleave + inside
        return found - self.share.rank * self.share.interleave

    def offsets(self, table: BlockTable, slots: I64) -> U64:
        """Byte offset of each slot from (layer 0, block 0, head 0, slot 0)."""
        physical, slot = _divided(slots, self.slots)
        if self.physical_per_block == 1:
            block = table.blocks[physical]
        else:
            entry, part = _divided(physical, self.physical_per_block)
            block = table.blocks[entry] * self.physical_per_block + part
        offsets: U64 = block.astype(np.uint64) * np.uint64(self.stride_block)
        if self.slots > 1:
            offsets += slot.astype(np.uint64) * np.uint64(self.stride_slot)
        return offsets


def _divided(values: I64, by: int) -> tuple[I64, I64]:
    """Quotient and remainder. (numpy divides a column by one number in vectors, but not
    in divmod, which costs ten times as much.)"""
    quotient = values // by
    return quotient, values - quotient * by


@attrs.frozen(cache_hash=True)
class SlotAxes:
    """Both sides' slots of the planes that are laid out alike."""

    src: SlotAxis
    dst: SlotAxis
    only: Share = WHOLE
    """A third share that narrows both: what a staging buffer holds of its shard."""


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
    if tokens.size == 1:
        return _cut_one(axes, source, target, int(tokens[0]), int(counts[0]), pieces_max)
    here, slots = axes.src.slots_of(tokens, counts, source.first_token)
    there, also = axes.dst.slots_of(tokens, counts, target.first_token)
    if bool((slots != also).any()):
        raise _unequal(token_start, token_stop, int(slots.sum()), int(also.sum()))
    borders, segment, length = _cut_slots(axes, here, there, slots, pieces_max)
    return Pieces(
        axes.src.offsets(source, here[segment] + borders),
        axes.dst.offsets(target, there[segment] + borders),
        length,
    )


def _cut_one(
    axes: SlotAxes,
    source: BlockTable,
    target: BlockTable,
    token: int,
    count: int,
    pieces_max: int,
) -> Pieces:
    """`cut` of tokens that lie side by side on both sides, without a column for each number.

    It is the usual case, and its time is that of numpy calls more than of blocks.
    """
    here, slots = axes.src.run_of(token, count, source.first_token)
    there, also = axes.dst.run_of(token, count, target.first_token)
    if slots != also:
        raise _unequal(token, token + count, slots, also)
    _check_least(slots // min(axes.src.slots, axes.dst.slots) + 1, pieces_max)
    borders = _grid(here, slots, axes.src.slots)
    if (axes.src.slots, here % axes.src.slots) != (axes.dst.slots, there % axes.dst.slots):
        borders = distinct(np.concatenate((borders, _grid(there, slots, axes.dst.slots))))
    return Pieces(
        axes.src.offsets(source, borders + here),
        axes.dst.offsets(target, borders + there),
        _lengths(borders, slots),
    )


def _grid(first: int, count: int, step: int) -> I64:
    """0 and the positions below `count` at which slot `first` + position is on a grid."""
    phase = -first % step
    places = np.arange(phase - step if phase else 0, count, step, dtype=np.int64)
    places[:1] = 0
    return places


def _lengths(places: I64, total: int) -> I64:
    """From each place to the next, and from the last one to `total`."""
    length = np.empty_like(places)
    np.subtract(places[1:], places[:-1], out=length[:-1])
    length[-1:] = total - places[-1:]
    return length


def _unequal(start: int, stop: int, here: int, there: int) -> LayoutMismatch:
    return LayoutMismatch(
        f"tokens {start} to {stop - 1} lie in {here} states at the producer and {there} at the "
        "consumer"
    )


def _check_least(least: int, pieces_max: int) -> None:
    if least > pieces_max:
        raise LayoutMismatch(
            f"the two block sizes need {least} ranges, at most {pieces_max} are allowed"
        )


def _segments(axes: SlotAxes, start: int, stop: int, segments_max: int) -> tuple[I64, I64]:
    """Tokens that lie side by side on both sides: first token and count."""
    shares = {axes.src.share, axes.dst.share, axes.only} - {WHOLE}
    if not shares:
        return np.array([start]), np.array([stop - start])
    if shares == {axes.src.share} == {axes.dst.share}:
        # Both own the same tokens, at the same positions: one piece, however they alternate.
        here = axes.src.share
        first, count = here.position(start), here.position(stop) - here.position(start)
        rounds, inside = divmod(first, here.interleave)
        token = rounds * here.period + here.rank * here.interleave + inside
        return (np.array([token]), np.array([count])) if count else (_NONE, _NONE)
    return shared_segments(shares, start, stop, segments_max)


_NONE = np.zeros(0, np.int64)


def _cut_slots(
    axes: SlotAxes, here: I64, there: I64, slots: I64, pieces_max: int
) -> tuple[I64, I64, I64]:
    """First slot of each piece within its segment, the segment, and the piece's slots."""
    total = int(slots.sum())
    smallest = min(axes.src.slots, axes.dst.slots)
    _check_least(total // smallest + slots.size, pieces_max)
    before = np.cumsum(slots) - slots
    phase_here, phase_there = -here % axes.src.slots, -there % axes.dst.slots
    cuts = [before, _multiples(phase_here, slots, before, axes.src.slots)]
    if axes.src.slots != axes.dst.slots or bool((phase_here != phase_there).any()):
        cuts.append(_multiples(phase_there, slots, before, axes.dst.slots))
    places = distinct(np.concatenate(cuts))
    segment = np.searchsorted(before, places, side="right") - 1
    return places - before[segment], segment, _lengths(places, total)


def _multiples(phase: I64, slots: I64, before: I64, step: int) -> I64:
    """Positions phase, phase + step, .. below `slots` of each segment, counted over all."""
    counts = np.maximum(0, -((phase - slots) // step))
    which = np.repeat(np.arange(slots.size), counts)
    within = np.arange(which.size) - (np.cumsum(counts) - counts)[which]
    found: I64 = before[which] + phase[which] + within * step
    return found
