"""The producer's staging buffer, and parts that go through it in rounds.

Owns who has the buffer: one part at a time. Knows no transport. Invariant: bytes in
the buffer are replaced only once no operation of the part reads them any more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from kvxfer.core.ids import OpId
from kvxfer.layout.permute import Buffer, apply_permute
from kvxfer.layout.plan import Plan
from kvxfer.layout.staging import Round
from kvxfer.transport.ops import Memory


@attrs.frozen(eq=False, kw_only=True)
class PartPlan:
    """All that moves for one part: ranges from our blocks, then rounds through the buffer."""

    direct: Plan
    rounds: Iterator[Round] = attrs.field(factory=lambda: iter(()))
    bytes_total: int
    descriptor_count: int

    @classmethod
    def of(cls, direct: Plan) -> PartPlan:
        """A part without rounds."""
        return cls(
            direct=direct,
            bytes_total=direct.bytes_total,
            descriptor_count=direct.descriptor_count,
        )


@attrs.define(eq=False)
class Rounds:
    """The rounds of one part that are still to come; the next one is known beforehand."""

    _iterator: Iterator[Round]
    _next: Round | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = next(self._iterator, None)

    @property
    def left(self) -> bool:
        return self._next is not None

    def take(self) -> Round:
        """The next round. There is one."""
        assert self._next is not None
        turn, self._next = self._next, next(self._iterator, None)
        return turn


@attrs.define(eq=False)
class StagingBuffer:
    """Host memory of this process, registered, in which the producer permutes."""

    _sources: tuple[Buffer, ...]
    _targets: tuple[Buffer, ...]
    _owner: OpId | None = None
    bytes_permuted: int = 0

    @classmethod
    def of(cls, staging: Memory, sources: Sequence[Memory]) -> StagingBuffer:
        """`sources` are the areas of the cache."""
        return cls(tuple(_buffer(memory) for memory in sources), (_buffer(staging),))

    def acquire(self, op: OpId) -> bool:
        """Is the buffer this part's now? False while another part has it."""
        if self._owner is None:
            self._owner = op
        return self._owner == op

    def release(self, op: OpId) -> None:
        """The part has ended: nothing of it reads the buffer."""
        if self._owner == op:
            self._owner = None

    def fill(self, turn: Round) -> Plan:
        """Permute one round's bytes into the buffer; the ranges that take them on."""
        for permute in turn.permutes:
            apply_permute(permute, self._sources, self._targets)
            self.bytes_permuted += permute.bytes_total
        return turn.plan


def _buffer(memory: Memory) -> Buffer:
    raw = (ctypes.c_uint8 * memory.length).from_address(memory.base)
    return Buffer(memory.base, np.ctypeslib.as_array(raw))
