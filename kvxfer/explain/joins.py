"""Which axes of an edge join to one range, and why the others do not.

Owns the reasons in words. Knows no table. Invariant: the length of a joined run is that
of the longest range of a plan whose blocks are no neighbours (tests compare the two).
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import Group, Plane, Shard
from kvxfer.layout.grid import Grid, grid_of
from kvxfer.layout.sheets import Form, Sheet, planes_of, sheets_of

SIDES = ("producer", "consumer")
AXES = ("layer", "plane", "head", "part of an element", "element")
"""What the axes of a sheet are, in their order."""


@attrs.frozen
class Lane:
    """One axis of an edge's box: positions that move, and the step on either side."""

    name: str
    count: int
    steps: tuple[int, int]
    """Bytes from one position to the next at the producer and at the consumer."""
    held: tuple[int, int]
    """Positions that either side has in its memory; more than `count` where not all move."""


@attrs.frozen
class NotJoined:
    """An axis that ends the run, and why."""

    axis: str
    count: int
    reason: str


@attrs.frozen
class Join:
    """The longest range of some planes of an edge, for one pair of blocks."""

    planes: tuple[str, ...]
    content_bytes: int
    """Bytes that lie side by side on both sides whatever the axes."""
    joined: tuple[str, ...]
    """Names of the axes inside the range, inner first."""
    run_bytes: int
    left: tuple[NotJoined, ...]
    starts: int
    """How often all this occurs: planes and layers that are not evenly spaced."""
    blocks_apart: str
    """Why neighbouring blocks stay apart; empty where they join."""


def joins_of(src: Shard, dst: Shard, edge: Edge) -> tuple[Join, ...]:
    """Walk the axes from the inside, as the translation does; one for each set of axes."""
    alike: dict[Form, list[Sheet]] = defaultdict(list)
    for sheet in sheets_of(src, dst, edge):
        alike[sheet.form].append(sheet)
    return tuple(_join(src, dst, edge, form, sheets) for form, sheets in alike.items())


def _join(src: Shard, dst: Shard, edge: Edge, form: Form, sheets: list[Sheet]) -> Join:
    planes = _planes(dst, edge, form, sheets)
    lanes = _lanes(src, dst, edge, form, planes[0])
    run, joined = form.run_bytes, list[str]()
    rest = [lane for lane in lanes if lane.count > 1]
    while (inner := next((x for x in rest if x.steps == (run, run)), None)) is not None:
        rest.remove(inner)
        joined.append(inner.name)
        run *= inner.count
    steps = (form.slots.src.stride_block, form.slots.dst.stride_block)
    block = Lane("block", 2, steps, (2, 2))
    return Join(
        planes=planes,
        content_bytes=form.run_bytes,
        joined=tuple(joined),
        run_bytes=run,
        left=tuple(NotJoined(x.name, x.count, _reason(x, run, lanes, joined)) for x in rest),
        starts=len(sheets),
        blocks_apart="" if steps == (run, run) else _reason(block, run, lanes, joined),
    )


def _planes(dst: Shard, edge: Edge, form: Form, sheets: list[Sheet]) -> tuple[str, ...]:
    """Names of the planes that start where one of the sheets does, at the consumer."""
    group = dst.groups[edge.consumer_group]
    moved = planes_of(group, edge)
    layers, across = form.axes[0], form.axes[1]
    starts = {
        sheet.dst + number * across.dst + place * layers.dst
        for sheet in sheets
        for number in range(across.count)
        for place in range(layers.count)
    }
    return tuple(plane.name for plane in moved if _first(dst, group, edge, plane) in starts)


def _first(dst: Shard, group: Group, edge: Edge, plane: Plane) -> int:
    """Address of the edge's first layer and head in a plane."""
    grid = grid_of(dst, group, plane)
    start = grid.starts[group.layers.index(edge.layers[0])]
    return start + (edge.head_start - grid.head_start) * grid.stride_head


def _lanes(src: Shard, dst: Shard, edge: Edge, form: Form, plane: str) -> list[Lane]:
    """The axes of an edge's box. A piece lies in one physical block on both sides."""
    source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
    here, there = _grid(src, source, plane), _grid(dst, target, plane)
    held = {
        "layer": (len(source.layers), len(target.layers)),
        "head": (here.head_stop - here.head_start, there.head_stop - there.head_start),
    }
    lanes = [
        Lane(name, axis.count, (axis.src, axis.dst), held.get(name, (axis.count, axis.count)))
        for name, axis in zip(AXES, form.axes, strict=True)
    ]
    slots = (form.slots.src, form.slots.dst)
    lanes.insert(
        0,
        Lane(
            "slot",
            min(axis.slots for axis in slots),
            (slots[0].stride_slot, slots[1].stride_slot),
            (slots[0].slots, slots[1].slots),
        ),
    )
    blocks = (source.physical_blocks, target.physical_blocks)
    lanes.append(Lane("block", 1, (slots[0].stride_block, slots[1].stride_block), blocks))
    return lanes


def _grid(shard: Shard, group: Group, name: str) -> Grid:
    return grid_of(shard, group, next(p for p in group.planes if p.name == name))


def _reason(lane: Lane, run: int, lanes: list[Lane], joined: list[str]) -> str:
    """One clause for each side at which the next position does not touch the run."""
    words = []
    for side, name in enumerate(SIDES):
        step = lane.steps[side]
        if step == run:
            continue
        if step < run:
            words.append(f"at the {name} {lane.name}s lie inside the run, {step:,} bytes apart")
            continue
        between = _between(lane, side, lanes, joined) or "padding or bytes of other groups"
        words.append(f"at the {name} the next is {step:,} bytes on: {between} in between")
    if len(words) == 1:
        side = 1 if lane.steps[0] == run else 0
        words.append(f"at the {SIDES[1 - side]} it would follow at once")
    return "; ".join(words)


def _between(lane: Lane, side: int, lanes: list[Lane], joined: list[str]) -> str:
    """What lies between two neighbours of `lane` in one side's memory."""
    found = []
    for other in lanes:
        inside = 0 < other.steps[side] < lane.steps[side]
        if other.name == lane.name or not inside or other.held[side] == 1:
            continue
        unmoved = other.held[side] - other.count
        if other.name == "block" or (unmoved == 0 and other.name not in joined):
            found.append(f"the other {other.name}s")
        elif unmoved > 0:
            one = "one" if unmoved == 1 else str(unmoved)
            noun = other.name if unmoved == 1 else f"{other.name}s"
            what = "of another piece" if other.name == "slot" else "not of this edge"
            found.append(f"{one} {noun} {what}")
    return " and ".join(found)
