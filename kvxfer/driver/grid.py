"""Where the parts of a transfer are cut: on the producer's grid, known before the grant.

Owns the rule of spec section 6.4. Knows no blocks. Invariant: the parts of one
whole part tile it, in token order, each where the producer expects it; both
sides could work them out, and only the consumer has to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from kvxfer.core.ids import Feature, Part
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import GroupKind, Shard
from kvxfer.layout.grid import grain_of


@attrs.frozen(kw_only=True)
class Grid:
    """What a producer states in DESCRIBE; 0: not cut."""

    part_tokens: int = 0
    part_layers: int = 0

    def within(self, features: Feature) -> Grid:
        """The grid as far as both ends have the features for it."""
        return Grid(
            part_tokens=self.part_tokens if features & Feature.STREAMING else 0,
            part_layers=self.part_layers if features & Feature.LAYER_RANGES else 0,
        )


WHOLE = Grid()


def cut_parts(
    whole: Sequence[Part], grid: Grid, producer: Shard, edges: Sequence[Edge], parts_max: int
) -> tuple[Part, ...]:
    """The parts of one edge pair, cut on the grid; at most `parts_max` of them (6.4).

    They are counted before they are made: the grid is the peer's choice.
    """
    if _count(whole, grid.part_tokens) <= parts_max:
        cut = _cut(whole, grid, producer, edges)
        if len(cut) <= parts_max:
            return cut
    step = grid.part_tokens
    while _count(whole, step) > parts_max:
        step *= 2
    return _cut(whole, Grid(part_tokens=step), producer, edges)


def _count(whole: Sequence[Part], step: int) -> int:
    """Parts by tokens alone."""
    if not step:
        return len(whole)
    return sum((part.token_stop - 1) // step - part.token_start // step + 1 for part in whole)


def _cut(
    whole: Sequence[Part], grid: Grid, producer: Shard, edges: Sequence[Edge]
) -> tuple[Part, ...]:
    parts: list[Part] = []
    for part in whole:
        spans = _token_spans(part, grid.part_tokens, _grain(part, producer, edges))
        parts += [
            attrs.evolve(part, token_start=start, token_stop=stop) for start, stop in spans[:-1]
        ]
        start, stop = spans[-1]
        last = attrs.evolve(part, token_start=start, token_stop=stop)
        parts += _layer_cells(last, grid.part_layers, producer, edges)
    return tuple(parts)


def _token_spans(part: Part, part_tokens: int, grain: int) -> list[tuple[int, int]]:
    start, stop = part.token_start, part.token_stop
    if not part_tokens:
        return [(start, stop)]
    step = -(-part_tokens // grain) * grain
    borders = [start, *range((start // step + 1) * step, stop, step), stop]
    return list(itertools.pairwise(borders))


def _grain(part: Part, producer: Shard, edges: Sequence[Edge]) -> int:
    """Tokens that no cut parts: several may share a slot (7.1)."""
    mine = [edge for edge in edges if edge.consumer_group == part.group]
    return grain_of(producer.groups[mine[0].producer_group]) if mine else 1


def _layer_cells(part: Part, step: int, producer: Shard, edges: Sequence[Edge]) -> list[Part]:
    """The part, cut every `step` layers of the producer's own list; empty cells left out."""
    mine = [edge for edge in edges if edge.consumer_group == part.group]
    if not step or not mine:
        return [part]
    group = producer.groups[mine[0].producer_group]
    layers = group.layers
    if group.kind is GroupKind.STATE:
        # Layers that run ahead of the tokens may hold the state of a later token.
        return [part]
    moved = {layer for edge in mine for layer in edge.layers}
    cells = []
    for start in range(0, len(layers), step):
        stop = min(start + step, len(layers))
        if moved.intersection(layers[start:stop]):
            cells.append(attrs.evolve(part, layer_start=start, layer_stop=stop))
    return cells


def layers_of(part: Part, producer: Shard, edge: Edge) -> Edge:
    """The edge with the layers of the part only; it may be left with none."""
    if not part.layer_stop:
        return edge
    named = producer.groups[edge.producer_group].layers[part.layer_start : part.layer_stop]
    wanted = frozenset(named)
    return attrs.evolve(edge, layers=tuple(x for x in edge.layers if x in wanted))
