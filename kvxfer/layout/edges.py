"""Who writes what to whom: edges between the ranks of two engines.

Owns the intersection of head intervals and layer sets, and the choice of one
owner among replicas. Knows no address. Invariant (H2, H3): for every consumer
rank, each of its (layer, head) pairs lies on exactly one edge, replicas of a
consumer get an edge of their own, and what nobody holds is refused by name.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Group, RankHolding, Shard

EDGES_MAX = 1 << 18
"""Edges between two engines. A pair of rank maps that asks for more is refused (M1)."""


@attrs.frozen
class Edge:
    """Heads [head_start, head_stop) in `layers` of one group, from one rank to another."""

    producer_rank: int
    consumer_rank: int
    producer_group: int
    """Index of the group in the producer rank's own shard."""
    consumer_group: int
    """Index of the group in the consumer rank's own shard: the number on the wire."""
    head_start: int
    head_stop: int
    layers: tuple[str, ...]


@attrs.frozen
class _Holder:
    """One rank's holding of the group at hand; `index` is the group's index at that rank."""

    rank: int
    index: int
    head_start: int
    head_stop: int
    layers: tuple[str, ...]


_Pieces = dict[tuple[int, int, int, int], list[str]]
"""(producer, consumer, head_start, head_stop) -> layers; the first two are positions in
the lists of holders."""


def edges_between(producer: Shard, consumer: Shard) -> tuple[Edge, ...]:
    """All edges between the two engines, for every rank of the consumer.

    `producer` and `consumer` are any one shard of each engine: the rank maps say
    what the others hold. Groups that both shards describe are compared here; a
    group that only the maps name is compared by the ranks that do hold it. Raises
    LayoutMismatch naming the part that nobody can serve, or the field in which the
    two descriptors disagree.
    """
    theirs = {group.name: group for group in producer.groups}
    for group in consumer.groups:
        if group.name in theirs:
            _check_alike(theirs[group.name], group)
    sources, targets = _holders(producer.ranks), _holders(consumer.ranks)
    found: list[Edge] = []
    for name, takers in targets.items():
        found += _group_edges(name, sources.get(name, []), takers, EDGES_MAX - len(found))
    return tuple(found)


def edges_of(
    producer: Shard, consumer: Shard, producer_rank: int, consumer_rank: int
) -> tuple[Edge, ...]:
    """The edges of one pair of ranks; empty where the two exchange nothing."""
    pair = (producer_rank, consumer_rank)
    edges = edges_between(producer, consumer)
    return tuple(e for e in edges if (e.producer_rank, e.consumer_rank) == pair)


def _check_alike(source: Group, target: Group) -> None:
    mine = (source.kind, source.heads_total, _contents(source))
    other = (target.kind, target.heads_total, _contents(target))
    for name, a, b in zip(("kind", "heads_total", "planes"), mine, other, strict=True):
        if a != b:
            raise LayoutMismatch(
                f"group {target.name!r}: {name} is {a} at the producer and {b} at the consumer"
            )


def _contents(group: Group) -> dict[str, int]:
    """Planes are matched by name; their order is each side's own affair."""
    return {plane.name: plane.content_bytes for plane in group.planes}


def _holders(ranks: Iterable[RankHolding]) -> dict[str, list[_Holder]]:
    """Group name -> who holds a part of it, ordered by rank."""
    found: dict[str, list[_Holder]] = defaultdict(list)
    for entry in sorted(ranks, key=lambda r: r.rank):
        for index, h in enumerate(entry.holdings):
            holder = _Holder(entry.rank, index, h.head_start, h.head_stop, h.layers)
            found[h.group].append(holder)
    return found


def _group_edges(
    name: str, sources: list[_Holder], targets: list[_Holder], edges_max: int
) -> list[Edge]:
    pieces: _Pieces = defaultdict(list)
    order: dict[str, int] = {}
    for holder in targets:
        for layer in holder.layers:
            order.setdefault(layer, len(order))
    for layers, givers, takers in _classes(order, sources, targets):
        from_here = [(n, sources[n]) for n in givers]
        to_here = [(n, targets[n]) for n in takers]
        for start, stop, active_givers, active_takers in _sweep(from_here, to_here):
            if not active_givers:
                raise LayoutMismatch(
                    f"group {name!r}: no producer holds layer {layers[0]!r}, "
                    f"heads {start} to {stop - 1}"
                )
            # The owner rule: consumers of the same content take its replicas in turn.
            for number, taker in enumerate(active_takers):
                giver = active_givers[number % len(active_givers)]
                pieces[giver, taker, start, stop] += layers
            if len(pieces) > edges_max:
                raise LayoutMismatch(f"group {name!r}: more than {EDGES_MAX} edges")
    return _merge(pieces, order, sources, targets)


def _classes(
    order: dict[str, int], sources: list[_Holder], targets: list[_Holder]
) -> Iterator[tuple[list[str], tuple[int, ...], tuple[int, ...]]]:
    """Layers that the same ranks hold on both sides, together, and who those are."""
    givers: dict[str, list[int]] = {layer: [] for layer in order}
    takers: dict[str, list[int]] = {layer: [] for layer in order}
    for held, holders in ((givers, sources), (takers, targets)):
        for number, holder in enumerate(holders):
            for layer in holder.layers:
                if layer in held:
                    held[layer].append(number)
    classes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    for layer in order:
        classes[tuple(givers[layer]), tuple(takers[layer])].append(layer)
    for (those, these), layers in classes.items():
        yield layers, those, these


def _sweep(
    sources: list[tuple[int, _Holder]], targets: list[tuple[int, _Holder]]
) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Head intervals between all borders that a target holds: (start, stop, givers, takers).

    Both lists stay ordered by rank. One pass over the borders, so that the cost is
    that of the answer.
    """
    opening: dict[int, list[tuple[int, int]]] = defaultdict(list)
    closing: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for side, holders in enumerate((sources, targets)):
        for number, holder in holders:
            opening[holder.head_start].append((side, number))
            closing[holder.head_stop].append((side, number))
    active: tuple[list[int], list[int]] = ([], [])
    borders = sorted(opening.keys() | closing.keys())
    for start, stop in itertools.pairwise(borders):
        for side, number in closing.get(start, ()):
            del active[side][bisect.bisect_left(active[side], number)]
        for side, number in opening.get(start, ()):
            bisect.insort(active[side], number)
        if active[1]:
            yield start, stop, *active


def _merge(
    pieces: _Pieces, order: dict[str, int], sources: list[_Holder], targets: list[_Holder]
) -> list[Edge]:
    """Join neighbouring head intervals of one pair that have the same layers."""
    edges: list[Edge] = []
    for (giver, taker, start, stop), layers in sorted(pieces.items()):
        ordered = tuple(sorted(layers, key=order.__getitem__))
        from_, to = sources[giver], targets[taker]
        edge = Edge(from_.rank, to.rank, from_.index, to.index, start, stop, ordered)
        if edges and edges[-1].head_stop == start:
            joined = attrs.evolve(edges[-1], head_stop=stop)
            if attrs.evolve(edge, head_start=joined.head_start) == joined:
                edges[-1] = joined
                continue
        edges.append(edge)
    return edges
