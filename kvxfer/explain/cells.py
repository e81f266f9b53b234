"""One block of one shard as cells in the order of its memory.

Owns which cells are shown and how they are laid in rows. Knows no colour and no SVG.
Invariant: cells of a panel stand in the order of their addresses; a row is the innermost
axis of that memory, so a transpose shows as rows turned into columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from kvxfer.layout.geometry import BlockTable, Group, Plane, Shard
from kvxfer.layout.grid import Grid, grid_of, layer_stride
from kvxfer.layout.tokens import share_of

ROW_CELLS_MAX = 64
ROWS_MAX = 64
LAYERS_MAX = 2
ELEMENTS_MAX = 4
"""Shown of a slot whose elements do not lie side by side (a transposed cache)."""

Key = tuple[str, str, int, int, int]
"""What a cell is, wherever it lies: plane, layer, head, token, first byte of the content."""


@attrs.frozen
class Cell:
    """The content of one slot of one head, or one element of it, at absolute `address`."""

    plane: str
    layer: str
    head: int
    token: int
    """The first one, where a slot stands for several."""
    byte: int
    address: int
    bytes: int

    @property
    def key(self) -> Key:
        return (self.plane, self.layer, self.head, self.token, self.byte)


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
    planes: tuple[str, ...]
    blocks: tuple[int, ...]
    rows: tuple[Row, ...]
    rows_hidden: int


def panel_of(
    shard: Shard,
    table: BlockTable,
    token_start: int,
    token_stop: int,
    layers: Sequence[str],
    planes: Sequence[str],
) -> Panel:
    """All whole blocks of `table` that hold any of the tokens, as rows of cells.

    `layers` are shown where the shard holds them. Rows beyond ROWS_MAX are counted only.
    """
    group = shard.groups[table.group]
    first = (token_start - table.first_token) // group.tokens_per_entry
    stop = -(-(token_stop - table.first_token) // group.tokens_per_entry)
    shown = [plane for plane in group.planes if plane.name in planes]
    held = [name for name in layers if name in group.layers]
    cells = sorted(
        (
            cell
            for plane in shown
            for cell in _cells(shard, group, plane, table, range(first, stop), held)
        ),
        key=lambda cell: cell.address,
    )
    length = min(_row_length(grid_of(shard, group, plane)) for plane in shown)
    rows = list(_rows(cells, length))
    return Panel(
        shard=shard,
        group=group,
        planes=tuple(plane.name for plane in shown),
        blocks=tuple(int(block) for block in table.blocks[first:stop]),
        rows=tuple(rows[:ROWS_MAX]),
        rows_hidden=max(0, len(rows) - ROWS_MAX),
    )


def memory_order(shard: Shard, group: Group) -> str:
    """The axes of the first plane from the outside in, as 'layer > block > head > slot'."""
    plane = group.planes[0]
    axes = grid_of(shard, group, plane).inner_axes
    # An axis of one position has a stride that says nothing.
    if len(group.layers) > 1:
        step = layer_stride(group, plane)
        axes = [*axes, (1 << 64 if plane.layer_areas else step, len(group.layers), "layer")]
    return " > ".join(name for _, _, name in sorted(axes, reverse=True)) or "one cell"


def _cells(
    shard: Shard,
    group: Group,
    plane: Plane,
    table: BlockTable,
    entries: Sequence[int],
    layers: Sequence[str],
) -> Iterator[Cell]:
    grid = grid_of(shard, group, plane)
    size = _cell_bytes(grid)
    pieces = range(min(grid.content_bytes // size, ELEMENTS_MAX))
    heads = range(grid.head_start, grid.head_stop)
    slots = range(group.physical_per_block * grid.slots)
    places = itertools.product(layers, heads, entries, slots, pieces)
    for layer, head, entry, inside, element in places:
        part, slot = divmod(inside, grid.slots)
        block = int(table.blocks[entry]) * group.physical_per_block + part
        address = grid.starts[group.layers.index(layer)] + block * grid.stride_block
        address += (head - grid.head_start) * grid.stride_head + slot * grid.stride_slot
        token = _token(group, table, entry, inside * grid.tokens_per_state)
        byte = element * size
        yield Cell(
            plane.name, layer, head, token, byte, address + element * grid.stride_element, size
        )


def _cell_bytes(grid: Grid) -> int:
    """All of a slot's content where it lies side by side, else one element of it."""
    apart = grid.elements > 1 and grid.stride_element != grid.element_bytes
    return grid.element_bytes if apart else grid.content_bytes


def _token(group: Group, table: BlockTable, entry: int, inside: int) -> int:
    """Token of a position in a table entry, with a context-parallel rank's gaps."""
    share = share_of(group)
    local = share.position(table.first_token) + entry * group.tokens_per_block + inside
    rounds, rest = divmod(local, share.interleave)
    return rounds * share.period + share.rank * share.interleave + rest


def _row_length(grid: Grid) -> int:
    """Positions of the innermost axis that has more than one."""
    inner = [axis for axis in grid.inner_axes if axis[2] not in ("block", "element")]
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
