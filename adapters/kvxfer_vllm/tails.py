"""Zeroes the slots of a load that nothing has written, where the model reads such slots.

Owns which slots those are: behind the last token of a load, and before the first one that
a window reaches, in the blocks that the load has touched. vLLM zeroes new blocks of such
models itself, but not those that a connector fills. Knows no agent. Invariant: a slot
that the load has written, or that was there before it, is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from kvxfer.driver.commands import Register
from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import BlockTable, Group, GroupKind, Shard
from kvxfer.layout.tokens import wanted_tokens

WHOLE = (GroupKind.PAGE, GroupKind.STATE)
"""Their blocks arrive whole: what the request has not written there was zeroed at P."""


@attrs.define
class Tails:
    """All loads of one worker whose slots are still to be zeroed, by tag."""

    groups: tuple[Group, ...]
    views: tuple[Sequence[Any], ...]
    """Tensors (physical blocks, heads, slots, content) of each group's layers."""
    _open: dict[str, tuple[tuple[int, slice, slice], ...]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, shard: Shard, caches: Mapping[str, Any]) -> Tails:
        """Raises LayoutMismatch where slots of a packed page would have to be zeroed."""
        for group in shard.groups:
            if any(plane.name == "k" for plane in group.planes):
                raise LayoutMismatch(
                    f"group {group.name!r}: the model reads slots that nothing has written, "
                    "and pages packed by the kernel can only be zeroed whole: pages 'slots' "
                    "is not served for it"
                )
        views = tuple(tuple(caches[layer] for layer in group.layers) for group in shard.groups)
        return cls(shard.groups, views)

    def __len__(self) -> int:
        return len(self._open)

    def note(self, register: Register) -> None:
        """A load begins."""
        found = []
        for table in register.tables:
            group = self.groups[table.group]
            if group.kind not in WHOLE:
                span = (register.token_start, register.token_stop)
                found += [(table.group, *place) for place in _unwritten(group, table, *span)]
        self._open[register.tag] = tuple(found)

    def clean(self, tag: str) -> None:
        """The load has landed: zero what it left."""
        for index, blocks, slots in self._open.pop(tag, ()):
            for view in self.views[index]:
                view[blocks, :, slots].zero_()

    def forget(self, tag: str) -> None:
        """The load was lost."""
        self._open.pop(tag, None)


def _unwritten(
    group: Group, table: BlockTable, token_start: int, token_stop: int
) -> Iterator[tuple[slice, slice]]:
    """Physical blocks and slots of the table's blocks that a load for these tokens leaves."""
    start, stop = wanted_tokens(group, token_start, token_stop)
    size = group.tokens_per_block
    if start > token_start:
        first = (start - table.first_token) // size
        opening = table.first_token + first * size
        hit = max(token_start - opening, 0)
        yield from _slots(group, int(table.blocks[first]), hit, start - opening)
    last = (stop - 1 - table.first_token) // size
    used = stop - table.first_token - last * size
    yield from _slots(group, int(table.blocks[last]), used, size)


def _slots(
    group: Group, block: int, token_start: int, token_stop: int
) -> Iterator[tuple[slice, slice]]:
    """Whole slots of tokens [token_start, token_stop) of a block, by physical block.

    A slot that stands for several tokens is left alone where one of them was written.
    """
    states = group.slots_per_physical
    first = -(-token_start // group.tokens_per_state)
    stop = token_stop // group.tokens_per_state
    for part in range(group.physical_per_block):
        low, high = max(first - part * states, 0), min(stop - part * states, states)
        if low < high:
            at = block * group.physical_per_block + part
            yield slice(at, at + 1), slice(low, high)
