"""Tables of lines: a request's tokens in one slot of a contiguous cache.

Owns the numbers that a scheduler of blocks gives to pieces of a line (pseudo blocks), and
their way back to the line. Invariant: a table made here names one line, and its first
token is that line's first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.geometry import BlockTable


def line_table(line: int, group: int = 0) -> BlockTable:
    """The table of a request that has a line to itself."""
    return BlockTable(group=group, first_token=0, blocks=np.array([line], np.int64))


def blocks_per_line(line_tokens: int, block_tokens: int) -> int:
    """Pseudo blocks of one line; the last may be cut short by the line's end."""
    for name, value in (("line_tokens", line_tokens), ("block_tokens", block_tokens)):
        if value < 1:
            raise BadValue(name, value, "at least 1")
    return -(-line_tokens // block_tokens)


def pseudo_blocks(line: int, per_line: int, count: int) -> range:
    """Ids of the first `count` pseudo blocks of a line, in token order."""
    if not 0 <= count <= per_line:
        raise BadValue("count", count, f"from 0 to {per_line}, the blocks of a line")
    return range(line * per_line, line * per_line + count)


def line_of(block_ids: Sequence[int], per_line: int) -> int:
    """The line that pseudo blocks are of.

    Raises LayoutMismatch where they are not the first ones of a line, in order: the tokens
    of a request lie in one line from its start.
    """
    if not block_ids:
        raise LayoutMismatch("a request without blocks has no line")
    line, first = divmod(block_ids[0], per_line)
    count = len(block_ids)
    if first or count > per_line or list(block_ids) != list(pseudo_blocks(line, per_line, count)):
        shown = f"{list(block_ids[:4])}, {count} in all"
        raise LayoutMismatch(f"blocks {shown}: not the first ones of one line of {per_line}")
    return line
