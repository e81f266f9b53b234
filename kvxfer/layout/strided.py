"""A plan whose evenly spaced ranges stand in one row, for transports with STRIDED.

Owns the form. Knows no shard. Invariant: `expand` gives the ranges of the plan that
it stands for, each once.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.layout.plan import Plan

U64 = npt.NDArray[np.uint64]


@attrs.frozen(eq=False, kw_only=True)
class StridedPlan:
    """Columns of shape (n,), uint64. Row k stands for count[k] ranges of length[k] bytes,
    stride_src[k] and stride_dst[k] bytes apart; strides are 0 where count is 1."""

    src: U64
    dst: U64
    length: U64
    count: U64
    stride_src: U64
    stride_dst: U64

    @classmethod
    def concat(cls, plans: Sequence[StridedPlan]) -> StridedPlan:
        """All rows of several plans, in order."""
        names = [field.name for field in attrs.fields(cls)]
        empty = np.zeros(0, np.uint64)
        return cls(**{n: np.concatenate([empty, *(getattr(p, n) for p in plans)]) for n in names})

    @property
    def row_count(self) -> int:
        return int(self.src.size)

    @property
    def descriptor_count(self) -> int:
        """Ranges that the rows stand for."""
        return int(self.count.sum(dtype=np.uint64))

    @property
    def bytes_total(self) -> int:
        return int((self.count * self.length).sum(dtype=np.uint64))

    def expand(self) -> Plan:
        """Every range on its own."""
        row = np.repeat(np.arange(self.row_count), self.count.astype(np.int64))
        before: U64 = np.cumsum(self.count, dtype=np.uint64) - self.count
        step: U64 = np.arange(row.size, dtype=np.uint64) - before[row]
        return Plan(
            self.src[row] + step * self.stride_src[row],
            self.dst[row] + step * self.stride_dst[row],
            self.length[row],
        )
