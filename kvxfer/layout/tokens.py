"""Which tokens: those still needed, those that a rank owns, those that two ranks share.

Owns the arithmetic of `reach` and of context-parallel ownership (spec 7.2, 7.4).
Knows no address. Invariant: over all ranks of one context group every token is
owned exactly once, and a rank's tokens keep their order at consecutive positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Group, Holding

I64 = npt.NDArray[np.int64]


@attrs.frozen
class Share:
    """Token t belongs to context rank (t div interleave) mod size."""

    rank: int = 0
    size: int = 1
    interleave: int = 1

    @property
    def whole(self) -> bool:
        return self.size == 1

    @property
    def period(self) -> int:
        """Tokens after which ownership repeats."""
        return self.interleave * self.size

    def position(self, token: int) -> int:
        """How many of the tokens before `token` are owned: its own position, if it is."""
        if self.whole:
            return token
        rounds, inside = divmod(token, self.period)
        ahead = inside - self.rank * self.interleave
        return rounds * self.interleave + min(max(ahead, 0), self.interleave)


WHOLE = Share()


def share_of(holder: Group | Holding) -> Share:
    """A rank's share of the tokens of one group."""
    if holder.context_size == 1:
        return WHOLE
    return Share(holder.context_rank, holder.context_size, holder.context_interleave)


def wanted_tokens(group: Group, token_start: int, token_stop: int) -> tuple[int, int]:
    """Of tokens [token_start, token_stop) that a request lacks, those that this group needs.

    A window needs its last tokens, a state page the last one only (spec 7.5); where blocks
    serve later requests, too, the first one whole. The answer is in tokens of the whole
    engine, whatever the rank's share of them.
    """
    if group.reach is None:
        return token_start, token_stop
    start = token_stop - group.reach
    if group.whole_blocks:
        start -= start % group.tokens_per_entry
    return min(max(token_start, start), token_stop), token_stop


def share_meets(first: Share, second: Share) -> bool:
    """Is there any token that both own? In closed form, however large the numbers."""
    if first.whole or second.whole:
        return True
    # Two tokens with equal remainders by the common divisor of the periods meet somewhere.
    step = math.gcd(first.period, second.period)
    gap = (second.rank * second.interleave - first.rank * first.interleave) % step
    return gap < first.interleave or step - gap < second.interleave


def shared_tokens(first: Share, second: Share, start: int, stop: int) -> int:
    """How many tokens of [start, stop) both own. Raises as `shared_segments`."""
    if first == second or first.whole or second.whole:
        narrow = second if first.whole else first
        return narrow.position(stop) - narrow.position(start)
    _, counts = shared_segments((first, second), start, stop, SEGMENTS_MAX)
    return int(counts.sum())


SEGMENTS_MAX = 1 << 22


def shared_segments(
    shares: Iterable[Share], start: int, stop: int, segments_max: int
) -> tuple[I64, I64]:
    """Tokens of [start, stop) that are in every share, in pieces that none interrupts.

    First token and count of each, in order. Raises LayoutMismatch where more than
    `segments_max` pieces would have to be looked at.
    """
    cuts = [np.array([start], np.int64)]
    parted = {share for share in shares if not share.whole}
    for share in parted:
        if (stop - start) // share.interleave > segments_max:
            raise LayoutMismatch(
                f"tokens {start} to {stop - 1} change owner more than {segments_max} times"
            )
        border = start - start % share.interleave + share.interleave
        cuts.append(np.arange(border, stop, share.interleave, dtype=np.int64))
    tokens = distinct(np.concatenate(cuts))
    counts = np.diff(np.append(tokens, stop))
    owned = np.ones(tokens.size, np.bool_)
    for share in parted:
        owned &= tokens // share.interleave % share.size == share.rank
    return tokens[owned], counts[owned]


def distinct(values: I64) -> I64:
    """Sorted, each once. (np.unique hashes, which costs twenty times as much here.)"""
    if values.size < 2:
        return values
    values = np.sort(values, kind="stable")
    new = np.empty(values.size, np.bool_)
    new[0] = True
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new]
