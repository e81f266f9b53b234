"""Block tables between their two forms: ids as the engine has them, runs as messages do.

Owns the translation. Knows no shard: what a table may name is checked where it
is used. Invariant: a table survives the way there and back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvxfer.core.messages import BlockRuns, Column
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.table import blocks_of, runs_of


def block_runs(tables: Iterable[BlockTable]) -> tuple[BlockRuns, ...]:
    """Tables as they go into GRANT and OFFER."""
    found = []
    for table in tables:
        starts, lengths = runs_of(table.blocks)
        found.append(
            BlockRuns(
                group=table.group,
                first_token=table.first_token,
                starts=_column(starts),
                lengths=_column(lengths),
            )
        )
    return tuple(found)


def block_table(runs: BlockRuns, blocks_max: int) -> BlockTable:
    """A table that came in a message. BadValue where it has more than `blocks_max` blocks."""
    blocks = blocks_of(_values(runs.starts), _values(runs.lengths), blocks_max)
    return BlockTable(group=runs.group, first_token=runs.first_token, blocks=blocks)


def _column(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> Column:
    width = 4 if values.size == 0 or int(values.max()) < 1 << 32 else 8
    return Column(width, values.astype(f"<u{width}").tobytes())


def _values(column: Column) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(column.data, f"<u{column.width}").astype(np.uint64)
