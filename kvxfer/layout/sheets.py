"""What an edge needs of two shards, before any request: the fixed axes, on both sides.

Owns the pairing of layers, planes, heads and elements. Knows no block table.
Invariant: the sheets of an edge together hold each of its (plane, layer, head,
element) once.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import attrs

from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import Group, Plane, Shard
from kvxfer.layout.grid import Grid, grid_of
from kvxfer.layout.pieces import SlotAxes, SlotAxis
from kvxfer.layout.tokens import WHOLE, Share

Point = tuple[int, int]
"""Absolute address on the producer's and on the consumer's side."""

Areas = tuple[int, int]
"""Index of the area on either side: a range never leaves its area, adjacent or not."""


@attrs.frozen(cache_hash=True)
class Axis:
    """One axis of a box: how many positions, and the step on either side, in bytes."""

    count: int
    src: int
    dst: int


@attrs.frozen(cache_hash=True)
class Form:
    """What planes must share to be walked by one set of axes."""

    run_bytes: int
    """Bytes that lie side by side on both sides whatever the axes."""
    axes: tuple[Axis, ...]
    """Of (layers, planes), heads and elements; an axis of one position changes nothing."""
    slots: SlotAxes


@attrs.frozen
class Sheet:
    """Planes and layers that one set of axes can walk, and where they start."""

    src: int
    dst: int
    form: Form


def sheets_of(src: Shard, dst: Shard, edge: Edge, only: Share = WHOLE) -> tuple[Sheet, ...]:
    """`src` and `dst` are the checked shards of the edge's two ranks; tokens not in `only`
    are left out."""
    source, target = src.groups[edge.producer_group], dst.groups[edge.consumer_group]
    here = {plane.name: plane for plane in source.planes}
    planes: dict[Form, list[list[tuple[Areas, Point]]]] = defaultdict(list)
    for plane in planes_of(target, edge):
        grids = grid_of(src, source, here[plane.name]), grid_of(dst, target, plane)
        points = _points(source, target, edge, *grids)
        areas = zip(
            _areas(source, here[plane.name], edge), _areas(target, plane, edge), strict=True
        )
        form = _form(source, target, edge, *grids, only)
        planes[form].append(list(zip(areas, points, strict=True)))
    return tuple(
        Sheet(*start, attrs.evolve(form, axes=(*outer, *form.axes)))
        for form, points in planes.items()
        for start, outer in _lattices(points)
    )


def planes_of(group: Group, edge: Edge) -> list[Plane]:
    """The planes of the consumer's or the producer's group that an edge moves."""
    if edge.plane:
        return [plane for plane in group.planes if plane.name == edge.plane]
    return [plane for plane in group.planes if plane.split is None]


def _form(source: Group, target: Group, edge: Edge, here: Grid, there: Grid, only: Share) -> Form:
    heads = Axis(edge.head_stop - edge.head_start, here.stride_head, there.stride_head)
    slots = SlotAxes(SlotAxis.of(source, here), SlotAxis.of(target, there), only)
    run = min(here.element_bytes, there.element_bytes)
    return Form(run, (heads, *_element_axes(here, there)), slots)


def _element_axes(here: Grid, there: Grid) -> tuple[Axis, Axis]:
    """Elements of the larger size, and the smaller ones inside each."""
    small, large = sorted((here.element_bytes, there.element_bytes))
    inner, outer = [], []
    for grid in (here, there):
        # A larger element is one run: its parts lie side by side.
        inner.append(grid.stride_element if grid.element_bytes == small else small)
        outer.append(grid.stride_element * (large // grid.element_bytes))
    return Axis(large // small, *inner), Axis(here.content_bytes // large, *outer)


def _points(source: Group, target: Group, edge: Edge, here: Grid, there: Grid) -> list[Point]:
    """Where each of the edge's layers starts on both sides, at the edge's first head."""
    places_here = {layer: place for place, layer in enumerate(source.layers)}
    places_there = {layer: place for place, layer in enumerate(target.layers)}
    head_src = (edge.head_start - here.head_start) * here.stride_head
    head_dst = (edge.head_start - there.head_start) * there.stride_head
    return [
        (here.starts[places_here[la]] + head_src, there.starts[places_there[la]] + head_dst)
        for la in edge.layers
    ]


def _areas(group: Group, plane: Plane, edge: Edge) -> list[int]:
    """The area of each of the edge's layers."""
    if not plane.layer_areas:
        return [plane.area] * len(edge.layers)
    places = {layer: place for place, layer in enumerate(group.layers)}
    return [plane.layer_areas[places[layer]] for layer in edge.layers]


def _lattices(
    planes: list[list[tuple[Areas, Point]]],
) -> Iterator[tuple[Point, tuple[Axis, Axis]]]:
    """Planes and layers as two axes where they are evenly spaced on both sides.

    `planes` has one list of areas and points, by layer, for each plane.
    """
    planes = sorted(planes, key=lambda points: points[0][1][1])
    steps = {
        _step(a, b)
        for one, two in itertools.pairwise(planes)
        for a, b in zip(one, two, strict=True)
    }
    step = next(iter(steps), (0, 0))
    even = len(steps) == 1 and min(step) > 0
    for points in planes[:1] if even else planes:
        across = Axis(len(planes), *step) if even else Axis(1, 0, 0)
        for start, layers in _runs(points):
            yield start, (layers, across)


def _runs(points: list[tuple[Areas, Point]]) -> Iterator[tuple[Point, Axis]]:
    """Runs of evenly spaced points, by ascending address at the consumer."""
    left = sorted(points, key=lambda point: point[1][1])
    start = 0
    while start < len(left):
        step = _step(*left[start : start + 2]) if start + 1 < len(left) else (0, 0)
        stop = start + 1
        if min(step) > 0:
            while stop < len(left) and _step(left[stop - 1], left[stop]) == step:
                stop += 1
        yield left[start][1], Axis(stop - start, *(step if stop - start > 1 else (0, 0)))
        start = stop


def _step(first: tuple[Areas, Point], second: tuple[Areas, Point]) -> Point:
    """Bytes between two points on either side; none where they lie in different areas."""
    if first[0] != second[0]:
        return 0, 0
    return second[1][0] - first[1][0], second[1][1] - first[1][1]
