"""Which axes of an edge join to one range, and why the others do not.

Owns the reasons in words. Knows no table. Invariant: the length of a joined run is that
of the longest range of a plan whose blocks are no neighbours (tests compare the two).
"""

from __future__ import annotations

import itertools

import attrs

from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import Group, Shard

SIDES = ("producer", "consumer")


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
    """The longest range of one plane of an edge, for one pair of blocks."""

    plane: str
    content_bytes: int
    joined: tuple[str, ...]
    """Names of the axes inside the range, inner first."""
    run_bytes: int
    left: tuple[NotJoined, ...]


def join_of(src: Shard, dst: Shard, edge: Edge, plane: str) -> Join:
    """Walk the axes of one plane from the inside, as the translation does."""
    lanes = lanes_of(src, dst, edge)
    content = _content(dst.groups[edge.consumer_group], plane)
    run, joined = content, []
    rest = [lane for lane in lanes if lane.count > 1]
    while (inner := next((x for x in rest if x.steps == (run, run)), None)) is not None:
        rest.remove(inner)
        joined.append(inner.name)
        run *= inner.count
    left = tuple(NotJoined(x.name, x.count, _reason(x, run, lanes, joined)) for x in rest)
    return Join(plane, content, tuple(joined), run, left)


def blocks_join(src: Shard, dst: Shard, edge: Edge, join: Join) -> bool:
    """Whether neighbouring blocks on both sides become one range: the run fills a block."""
    source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
    return source.stride_block == join.run_bytes == target.stride_block


def block_reason(src: Shard, dst: Shard, edge: Edge, join: Join) -> str:
    """Why neighbouring blocks stay apart; empty where they join."""
    source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
    steps = (source.stride_block, target.stride_block)
    if steps == (join.run_bytes, join.run_bytes):
        return ""
    lane = Lane("block", 2, steps, (2, 2))
    return _reason(lane, join.run_bytes, lanes_of(src, dst, edge), list(join.joined))


def lanes_of(src: Shard, dst: Shard, edge: Edge) -> list[Lane]:
    """The axes of an edge's box. A piece lies in one physical block on both sides."""
    source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
    heads = edge.head_stop - edge.head_start
    slots = (source.slots_per_physical, target.slots_per_physical)
    held_heads = (source.head_stop - source.head_start, target.head_stop - target.head_start)
    held_layers = (len(source.layers), len(target.layers))
    return [
        Lane("slot", min(slots), (source.stride_slot, target.stride_slot), slots),
        Lane("head", heads, (source.stride_head, target.stride_head), held_heads),
        Lane(
            "layer",
            _layer_run(source, target, edge.layers),
            (source.stride_layer, target.stride_layer),
            held_layers,
        ),
        Lane(
            "block",
            1,
            (source.stride_block, target.stride_block),
            (source.physical_blocks, target.physical_blocks),
        ),
    ]


def _layer_run(source: Group, target: Group, layers: tuple[str, ...]) -> int:
    """The longest run of layers that are neighbours in both local orders."""
    places = sorted((target.layers.index(n), source.layers.index(n)) for n in layers)
    longest = run = 1
    for before, after in itertools.pairwise(places):
        run = run + 1 if after == (before[0] + 1, before[1] + 1) else 1
        longest = max(longest, run)
    return longest


def _content(group: Group, plane: str) -> int:
    return next(p.content_bytes for p in group.planes if p.name == plane)


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
        between = _between(lane, side, lanes, joined) or "bytes that this edge does not move"
        words.append(f"at the {name} the next is {step:,} bytes on: {between} in between")
    if len(words) == 1:
        side = 1 if lane.steps[0] == run else 0
        words.append(f"at the {SIDES[1 - side]} it would follow at once")
    return "; ".join(words)


def _between(lane: Lane, side: int, lanes: list[Lane], joined: list[str]) -> str:
    """What lies between two neighbours of `lane` in one side's memory."""
    found = []
    for other in lanes:
        inside = other.steps[side] < lane.steps[side]
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
