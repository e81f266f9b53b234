"""The plan: what is copied from where to where, as columns.

Owns the form of a plan. Knows no shard. Invariant: three columns of one length,
uint64, shape (n,): absolute source address, absolute target address, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]


@attrs.frozen(eq=False)
class Plan:
    """Byte ranges to copy. Ranges of one plan never overlap at the target."""

    src: U64
    dst: U64
    length: U64

    @classmethod
    def empty(cls) -> Plan:
        nothing = np.zeros(0, np.uint64)
        return cls(nothing, nothing, nothing)

    @classmethod
    def concat(cls, plans: Sequence[Plan]) -> Plan:
        """All ranges of several plans, in order."""
        if len(plans) == 1:
            return plans[0]
        if not plans:
            return cls.empty()
        return cls(
            np.concatenate([p.src for p in plans]),
            np.concatenate([p.dst for p in plans]),
            np.concatenate([p.length for p in plans]),
        )

    @property
    def descriptor_count(self) -> int:
        return int(self.length.size)

    @property
    def bytes_total(self) -> int:
        return int(self.length.sum(dtype=np.uint64))

    def window(self, start: int, stop: int) -> Plan:
        """Ranges [start, stop), without a copy."""
        return Plan(self.src[start:stop], self.dst[start:stop], self.length[start:stop])


def coalesce(plan: Plan) -> Plan:
    """Ranges in order of their target, neighbours on both sides joined to one.

    Block tables may run in opposite directions or in no order: what counts is that
    two ranges touch, not that they stand side by side in the columns.
    """
    if plan.descriptor_count < 2:
        return plan
    src, dst, length = plan.src, plan.dst, plan.length
    if not bool((dst[1:] > dst[:-1]).all()):
        order = np.argsort(dst)
        src, dst, length = src[order], dst[order], length[order]
    size = length[:-1]
    starts = np.ones(length.size, np.bool_)
    np.not_equal(src[1:] - src[:-1], size, out=starts[1:])
    starts[1:] |= dst[1:] - dst[:-1] != size
    if bool(starts.all()):
        return Plan(src, dst, length)
    first = np.flatnonzero(starts)
    return Plan(src[first], dst[first], np.add.reduceat(length, first))
