"""Columns of byte ranges against registered regions.

Owns the checks that come before a post: shape and type of the columns, and that
each range lies inside one registered region. Refuses to know peers, sessions
and networks; a transport that must check bounds itself may use it. Invariant:
arithmetic never wraps, whatever 64-bit numbers the columns hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import numpy as np

from kvxfer.transport.ops import U64, Memory, Strided

STRIDED_RANGES_MAX: Final = 1 << 20
"""Ranges that one strided post may stand for where it has to be written out one by one."""

_TOP: Final = np.uint64((1 << 64) - 1)


def column_fault(local: object, remote: object, length: object) -> str:
    """What is wrong with three columns as columns; empty text where nothing is."""
    columns = {"local_addr": local, "remote_addr": remote, "length": length}
    counts = []
    for name, column in columns.items():
        if not isinstance(column, np.ndarray):
            return f"{name} is {type(column).__name__}: must be a numpy array"
        if column.dtype != np.uint64:
            return f"{name} has dtype {column.dtype}: must be uint64"
        if column.ndim != 1:
            return f"{name} has {column.ndim} dimensions: must have 1"
        counts.append(len(column))
    if len(set(counts)) != 1:
        return f"columns have {counts} entries: must be of equal length"
    if isinstance(length, np.ndarray) and not length.all():
        return f"length[{int(np.argmin(length != 0))}] = 0: a range has at least one byte"
    return ""


def strided_fault(columns: object) -> str:
    """What is wrong with the columns of a strided post; empty text where nothing is."""
    if not isinstance(columns, Strided):
        return f"columns are {type(columns).__name__}: must be Strided"
    text = column_fault(columns.local, columns.remote, columns.length)
    if text:
        return text
    for name in ("count", "local_stride", "remote_stride"):
        column = getattr(columns, name)
        if not isinstance(column, np.ndarray) or column.dtype != np.uint64:
            return f"{name}: must be a numpy array of uint64"
        if column.shape != columns.length.shape:
            return f"{name} has shape {column.shape}: must be {columns.length.shape}"
    if not columns.count.all():
        return f"count[{int(np.argmin(columns.count != 0))}] = 0: an entry has at least one range"
    # As floats, because the sum of what a caller may write there does not fit 64 bits.
    total = float(columns.count.astype(np.float64).sum())
    if total > STRIDED_RANGES_MAX:
        return f"count sums up to {total:.0f} ranges: at most {STRIDED_RANGES_MAX}"
    for name, start, stride in (
        ("local", columns.local, columns.local_stride),
        ("remote", columns.remote, columns.remote_stride),
    ):
        steps = columns.count - np.uint64(1)
        wraps = (steps > 0) & (stride > (_TOP - start) // np.maximum(steps, np.uint64(1)))
        if wraps.any():
            return f"{name}_stride[{int(np.argmax(wraps))}]: the last range starts above 2**64"
    return ""


def expand_strided(columns: Strided) -> tuple[U64, U64, U64]:
    """The ranges of a strided post one by one: local address, remote address, length.

    Columns that `strided_fault` finds nothing wrong with give addresses that do not wrap.
    """
    count = columns.count.astype(np.int64)
    first = np.repeat(np.cumsum(count) - count, count)
    step = (np.arange(int(count.sum())) - first).astype(np.uint64)
    return (
        np.repeat(columns.local, count) + step * np.repeat(columns.local_stride, count),
        np.repeat(columns.remote, count) + step * np.repeat(columns.remote_stride, count),
        np.repeat(columns.length, count),
    )


@attrs.frozen(eq=False)
class RegionIndex:
    """An immutable set of regions, ready for many range checks at once.

    `base` is sorted; `reach[i]` is the largest end among the regions 0..i. A
    range is inside one region exactly when the last region that starts at or
    before it has a reach at or beyond its end. Overlapping regions are allowed,
    and two that merely touch do not count as one.
    """

    base: U64
    reach: U64

    @classmethod
    def of(cls, memories: Iterable[Memory]) -> RegionIndex:
        """The regions `memories`, each of which ends below 2**64."""
        spans = sorted((memory.base, memory.base + memory.length) for memory in memories)
        base = np.array([start for start, _ in spans], dtype=np.uint64)
        ends = np.array([stop for _, stop in spans], dtype=np.uint64)
        return cls(base, np.maximum.accumulate(ends) if len(ends) else ends)

    @property
    def empty(self) -> bool:
        """True where nothing is registered."""
        return len(self.base) == 0

    def first_outside(self, start: U64, length: U64) -> int:
        """Index of the first range that no single region holds, or -1."""
        if len(start) == 0:
            return -1
        if self.empty:
            return 0
        if len(self.base) == 1 and self._all_inside(start, length):
            return -1
        at = np.searchsorted(self.base, start, side="right").astype(np.int64) - 1
        end = self.reach[np.maximum(at, 0)]
        # `end - start` may wrap where end < start; that lane is refused before it counts.
        inside = (at >= 0) & (start <= end) & (length <= end - start)
        return -1 if bool(inside.all()) else int(np.argmin(inside))

    def _all_inside(self, start: U64, length: U64) -> bool:
        """Whether one region holds all ranges, by their extremes alone: no search a range."""
        base, reach = int(self.base[0]), int(self.reach[0])
        if int(start.min()) < base or int(start.max()) > reach or int(length.max()) > reach - base:
            return False
        # Now no sum is above 2 * reach - base; where that may wrap, the search decides.
        return 2 * reach - base < 1 << 64 and int((start + length).max()) <= reach


def join_ranges(local: U64, remote: U64, length: U64) -> tuple[U64, U64, U64]:
    """New columns in which ranges that continue each other on both sides are one.

    Order is kept. The result shares no memory with the arguments.
    """
    if len(length) == 0:
        return local.copy(), remote.copy(), length.copy()
    starts_new = np.empty(len(length), dtype=bool)
    starts_new[0] = True
    starts_new[1:] = (local[:-1] + length[:-1] != local[1:]) | (
        remote[:-1] + length[:-1] != remote[1:]
    )
    first = np.flatnonzero(starts_new)
    return local[first], remote[first], np.add.reduceat(length, first)
