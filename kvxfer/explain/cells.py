"""One block of one shard as cells in the order of its memory.

Owns which cells are shown and how they are laid in rows. Knows no colour and no SVG.
Invariant: cells of a panel stand in the order of their addresses; a row is the innermost
axis of that memory, so a transpose shows as rows turned into columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from kvxfer.layout.geometry import BlockTable, Group, Shard

ROW_CELLS_MAX = 64
ROWS_MAX = 64
LAYERS_MAX = 2

Key = tuple[str, str, int, int]
"""What a cell is, wherever it lies: plane, layer, head, token."""


@attrs.frozen
class Cell:
    """The content of one slot of one head: `bytes` at absolute `address`."""

    plane: str
    layer: str
    head: int
    token: int
    address: int
    bytes: int

    @property
    def key(self) -> Key:
        return (self.plane, self.layer, self.head, self.token)


@attrs.frozen
class Row:
    """Neighbours in memory, and the bytes between the row above and this one."""

    cells: tuple[Cell, ...]
    gap_bytes: int


@attrs.frozen(kw_only=True)
class Panel:
    """What one shard holds of some tokens, in some of its blocks."""

    shard: Shard
    group: Group
    blocks: tuple[int, ...]
    rows: tuple[Row, ...]
    rows_hidden: int
    base: int
    """Address of the first cell; the picture shows addresses relative to it."""


def panel_of(
    shard: Shard, table: BlockTable, token_start: int, token_stop: int, layers: Sequence[str]
) -> Panel:
    """All whole blocks of `table` that hold any of the tokens, as rows of cells.

    `layers` are shown where the shard holds them. Rows beyond ROWS_MAX are counted only.
    """
    group = shard.groups[table.group]
    size = group.tokens_per_block
    first = (token_start - table.first_token) // size
    stop = -(-(token_stop - table.first_token) // size)
    cells = sorted(
        _cells(shard, group, table, first, stop, [n for n in layers if n in group.layers]),
        key=lambda cell: cell.address,
    )
    rows = list(_rows(cells, _row_length(group)))
    return Panel(
        shard=shard,
        group=group,
        blocks=tuple(int(block) for block in table.blocks[first:stop]),
        rows=tuple(rows[:ROWS_MAX]),
        rows_hidden=max(0, len(rows) - ROWS_MAX),
        base=cells[0].address if cells else 0,
    )


def memory_order(group: Group) -> str:
    """The axes from the outside in, as 'layer > block > head > slot'."""
    axes = (
        (group.stride_layer, len(group.layers), "layer"),
        (group.stride_block, group.physical_blocks, "block"),
        (group.stride_head, group.head_stop - group.head_start, "head"),
        (group.stride_slot, group.slots_per_physical, "slot"),
    )
    # An axis of one position has a stride that says nothing.
    shown = sorted(axis for axis in axes if axis[1] > 1)
    return " > ".join(name for _, _, name in reversed(shown))


def _cells(
    shard: Shard, group: Group, table: BlockTable, first: int, stop: int, layers: list[str]
) -> Iterator[Cell]:
    slots = group.slots_per_physical
    heads = range(group.head_start, group.head_stop)
    places = itertools.product(group.planes, layers, heads, range(first, stop))
    for plane, layer, head, entry in places:
        base = shard.areas[plane.area].base + plane.offset
        base += group.layers.index(layer) * group.stride_layer
        base += (head - group.head_start) * group.stride_head
        for inside in range(group.tokens_per_block):
            part, slot = divmod(inside, slots)
            block = int(table.blocks[entry]) * group.physical_per_block + part
            yield Cell(
                plane.name,
                layer,
                head,
                table.first_token + entry * group.tokens_per_block + inside,
                base + block * group.stride_block + slot * group.stride_slot,
                plane.content_bytes,
            )


def _row_length(group: Group) -> int:
    """Positions of the innermost axis that has more than one."""
    axes = (
        (group.stride_head, group.head_stop - group.head_start),
        (group.stride_slot, group.slots_per_physical),
    )
    inner = sorted(axis for axis in axes if axis[1] > 1)
    return min(ROW_CELLS_MAX, inner[0][1]) if inner else ROW_CELLS_MAX


def _rows(cells: Sequence[Cell], length: int) -> Iterator[Row]:
    """Rows of at most `length` cells; a gap in memory always starts a new one."""
    row: list[Cell] = []
    end = cells[0].address if cells else 0
    gap = 0
    for cell in cells:
        apart = cell.address - end
        if row and (apart > 0 or len(row) == length):
            yield Row(tuple(row), gap)
            row, gap = [], apart
        row.append(cell)
        end = cell.address + cell.bytes
    if row:
        yield Row(tuple(row), gap)
