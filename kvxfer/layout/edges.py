"""Who writes what to whom: edges between the ranks of two engines.

Owns the intersection of head intervals and layer sets, and the choice of one
owner among replicas. Knows no address. Invariant (H2, H3): for every consumer
rank, each of its (layer, head) pairs lies on exactly one edge, replicas of a
consumer get an edge of their own, and what nobody holds is refused by name.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Group, Holding, RankHolding, Shard


@attrs.frozen
class Edge:
    """Heads [head_start, head_stop) in `layers` of one group, from one rank to another."""

    producer_rank: int
    consumer_rank: int
    producer_group: int
    consumer_group: int
    head_start: int
    head_stop: int
    layers: tuple[str, ...]


@attrs.frozen
class _Holder:
    """One rank's holding of the group at hand."""

    rank: int
    head_start: int
    head_stop: int
    layers: frozenset[str]

    def holds(self, start: int, stop: int) -> bool:
        return self.head_start <= start and stop <= self.head_stop


def edges_between(producer: Shard, consumer: Shard) -> tuple[Edge, ...]:
    """All edges between the two engines, for every rank of the consumer.

    `producer` and `consumer` are any one shard of each engine: the rank maps say
    what the others hold. Raises LayoutMismatch naming the part that nobody can
    serve, or the field in which the two descriptors disagree.
    """
    found: list[Edge] = []
    theirs = {group.name: index for index, group in enumerate(producer.groups)}
    for index, group in enumerate(consumer.groups):
        source = theirs.get(group.name)
        if source is None:
            raise LayoutMismatch(f"group {group.name!r}: the producer has {sorted(theirs)}")
        _check_alike(producer.groups[source], group)
        found += _group_edges(producer.ranks, consumer.ranks, group, source, index)
    return tuple(found)


def _check_alike(source: Group, target: Group) -> None:
    mine = (source.kind, source.heads_total, _contents(source))
    other = (target.kind, target.heads_total, _contents(target))
    for name, a, b in zip(("kind", "heads_total", "planes"), mine, other, strict=True):
        if a != b:
            raise LayoutMismatch(f"group {target.name!r}: {name} is {a} there and {b} here")


def _contents(group: Group) -> tuple[tuple[str, int], ...]:
    return tuple((plane.name, plane.content_bytes) for plane in group.planes)


def _holders(ranks: Iterable[RankHolding], group: str) -> list[_Holder]:
    found = []
    for entry in sorted(ranks, key=lambda r: r.rank):
        found += [_holder(entry.rank, h) for h in entry.holdings if h.group == group]
    return found


def _holder(rank: int, holding: Holding) -> _Holder:
    return _Holder(rank, holding.head_start, holding.head_stop, frozenset(holding.layers))


def _group_edges(
    producers: tuple[RankHolding, ...],
    consumers: tuple[RankHolding, ...],
    group: Group,
    source: int,
    target: int,
) -> list[Edge]:
    sources, targets = _holders(producers, group.name), _holders(consumers, group.name)
    order = {layer: n for n, layer in enumerate(_layer_order(consumers, group.name))}
    # (producer, consumer, start, stop) -> layers; equal layer sets are merged below.
    pieces: dict[tuple[int, int, int, int], list[str]] = defaultdict(list)
    for layers in _classes(order, sources, targets):
        first = layers[0]
        from_here = [s for s in sources if first in s.layers]
        to_here = [t for t in targets if first in t.layers]
        for start, stop in _intervals(from_here, to_here):
            takers = [t for t in to_here if t.holds(start, stop)]
            givers = [s for s in from_here if s.holds(start, stop)]
            if takers and not givers:
                raise LayoutMismatch(
                    f"group {group.name!r}: no producer holds layer {first!r}, "
                    f"heads {start} to {stop - 1}"
                )
            for number, taker in enumerate(takers):
                giver = givers[number % len(givers)]
                pieces[giver.rank, taker.rank, start, stop] += layers
    return _merge(pieces, order, source, target)


def _layer_order(ranks: tuple[RankHolding, ...], group: str) -> list[str]:
    seen: dict[str, None] = {}
    for entry in ranks:
        for holding in entry.holdings:
            if holding.group == group:
                seen |= dict.fromkeys(holding.layers)
    return list(seen)


def _classes(
    order: dict[str, int], sources: list[_Holder], targets: list[_Holder]
) -> list[list[str]]:
    """Layers that the same ranks hold on both sides, together."""
    classes: dict[tuple[frozenset[int], frozenset[int]], list[str]] = defaultdict(list)
    for layer in order:
        givers = frozenset(s.rank for s in sources if layer in s.layers)
        takers = frozenset(t.rank for t in targets if layer in t.layers)
        classes[givers, takers].append(layer)
    return list(classes.values())


def _intervals(sources: list[_Holder], targets: list[_Holder]) -> list[tuple[int, int]]:
    """Head intervals between all borders of either side."""
    borders = sorted({b for h in (*sources, *targets) for b in (h.head_start, h.head_stop)})
    return list(itertools.pairwise(borders))


def _merge(
    pieces: dict[tuple[int, int, int, int], list[str]],
    order: dict[str, int],
    source: int,
    target: int,
) -> list[Edge]:
    """Join neighbouring head intervals of one pair that have the same layers."""
    edges: list[Edge] = []
    for (giver, taker, start, stop), layers in sorted(pieces.items()):
        ordered = tuple(sorted(layers, key=order.__getitem__))
        edge = Edge(giver, taker, source, target, start, stop, ordered)
        last = edges[-1] if edges else None
        if (
            last is not None
            and (last.producer_rank, last.consumer_rank) == (giver, taker)
            and last.head_stop == start
            and last.layers == ordered
        ):
            edges[-1] = attrs.evolve(last, head_stop=stop)
        else:
            edges.append(edge)
    return edges
