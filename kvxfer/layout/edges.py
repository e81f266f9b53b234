"""Who writes what to whom: edges between the ranks of two engines.

Owns the intersection of head intervals, layer sets and shares of tokens, and the
choice of one owner among replicas. Knows no address. Invariant (H2, H3): for every
consumer rank, each of its (plane, layer, head, token) lies on exactly one edge,
replicas of a consumer get an edge of their own, and what nobody holds is refused by
name.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Holding, RankHolding, Shard
from kvxfer.layout.match import check_alike
from kvxfer.layout.tokens import Share, share_meets, share_of

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
    plane: str = ""
    """The plane with a split of its own that moves here; empty: all the others."""


@attrs.frozen
class _Holder:
    """One rank's holding of the planes at hand; `index` is the group's index at that rank."""

    rank: int
    index: int
    head_start: int
    head_stop: int
    layers: tuple[str, ...]
    share: Share


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
            check_alike(theirs[group.name], group)
    sources, targets = _holdings(producer.ranks), _holdings(consumer.ranks)
    found: list[Edge] = []
    for name, takers in targets.items():
        givers = sources.get(name, [])
        planes = {split.plane: None for _, _, h in takers for split in h.splits}
        for plane in ("", *planes):
            pair = (_holders(givers, plane), _holders(takers, plane))
            found += _plane_edges(name, plane, *pair, EDGES_MAX - len(found))
    return tuple(found)


def edges_of(
    producer: Shard, consumer: Shard, producer_rank: int, consumer_rank: int
) -> tuple[Edge, ...]:
    """The edges of one pair of ranks; empty where the two exchange nothing."""
    pair = (producer_rank, consumer_rank)
    edges = edges_between(producer, consumer)
    return tuple(e for e in edges if (e.producer_rank, e.consumer_rank) == pair)


_Ranked = tuple[int, int, Holding]
"""(rank, the group's index there, what it holds)."""


def _holdings(ranks: Iterable[RankHolding]) -> dict[str, list[_Ranked]]:
    """Group name -> who holds a part of it, ordered by rank."""
    found: dict[str, list[_Ranked]] = defaultdict(list)
    for entry in sorted(ranks, key=lambda r: r.rank):
        for index, holding in enumerate(entry.holdings):
            found[holding.group].append((entry.rank, index, holding))
    return found


def _holders(holdings: list[_Ranked], plane: str) -> list[_Holder]:
    """The intervals of one plane with a split of its own, or of all the others."""
    found = []
    for rank, index, holding in holdings:
        spans = [(s.start, s.stop) for s in holding.splits if s.plane == plane]
        if not plane:
            spans = [(holding.head_start, holding.head_stop)]
        for start, stop in spans:
            found.append(_Holder(rank, index, start, stop, holding.layers, share_of(holding)))
    return found


def _plane_edges(
    name: str, plane: str, sources: list[_Holder], targets: list[_Holder], edges_max: int
) -> list[Edge]:
    pieces: _Pieces = defaultdict(list)
    order: dict[str, int] = {}
    for holder in targets:
        for layer in holder.layers:
            order.setdefault(layer, len(order))
    needed = _needed_shares(sources, targets)
    what = f"group {name!r}" + (f", plane {plane!r}" if plane else "")
    for layers, givers, takers in _classes(order, sources, targets):
        from_here = [(n, sources[n]) for n in givers]
        to_here = [(n, targets[n]) for n in takers]
        for start, stop, active_givers, active_takers in _sweep(from_here, to_here):
            here = [(n, sources[n].share) for n in active_givers]
            there = [(n, needed[targets[n].share]) for n in active_takers]
            where = f"{what}: no producer holds layer {layers[0]!r}, heads {start} to {stop - 1}"
            for giver, taker in _owners(here, there, where):
                pieces[giver, taker, start, stop] += layers
                if len(pieces) > edges_max:
                    raise LayoutMismatch(f"group {name!r}: more than {EDGES_MAX} edges")
    return _merge(plane, pieces, order, sources, targets)


def _needed_shares(
    sources: list[_Holder], targets: list[_Holder]
) -> dict[Share, tuple[Share, ...]]:
    """For each share of tokens at the consumer, those at the producer that it meets."""
    first = sources[0].share if sources else Share()
    theirs = [attrs.evolve(first, rank=rank) for rank in range(first.size)]
    return {
        mine: tuple(share for share in theirs if share_meets(share, mine))
        for mine in {holder.share for holder in targets}
    }


def _owners(
    givers: list[tuple[int, Share]], takers: list[tuple[int, tuple[Share, ...]]], where: str
) -> Iterator[tuple[int, int]]:
    """The owner rule: consumers of the same content take its replicas in turn.

    Ranks with different shares of the tokens hold different content, so each taker has
    one owner for every share that meets its own.
    """
    if not givers:
        raise LayoutMismatch(where)
    by_share: dict[Share, list[int]] = defaultdict(list)
    for giver, share in givers:
        by_share[share].append(giver)
    turns: dict[tuple[Share, ...], int] = defaultdict(int)
    for taker, shares in takers:
        number = turns[shares]
        turns[shares] += 1
        for share in shares:
            if share not in by_share:
                lost = f"tokens of context rank {share.rank} of {share.size}"
                raise LayoutMismatch(f"{where}, {lost}")
            replicas = by_share[share]
            yield replicas[number % len(replicas)], taker


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
    plane: str,
    pieces: _Pieces,
    order: dict[str, int],
    sources: list[_Holder],
    targets: list[_Holder],
) -> list[Edge]:
    """Join neighbouring head intervals of one pair that have the same layers."""
    edges: list[Edge] = []
    for (giver, taker, start, stop), layers in sorted(pieces.items()):
        ordered = tuple(sorted(layers, key=order.__getitem__))
        from_, to = sources[giver], targets[taker]
        edge = Edge(from_.rank, to.rank, from_.index, to.index, start, stop, ordered, plane)
        if edges and edges[-1].head_stop == start:
            joined = attrs.evolve(edges[-1], head_stop=stop)
            if attrs.evolve(edge, head_start=joined.head_start) == joined:
                edges[-1] = joined
                continue
        edges.append(edge)
    return edges
