"""Two engines to one explanation: edges, owners, parts, ranges, reasons, refusals.

Owns the facts that the words and the JSON show. Knows no terminal. Invariant: counts
and bytes are those of plans over sample tables, built by the translation itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from kvxfer.errors import KvxferError, LayoutMismatch
from kvxfer.explain.joins import Join, joins_of
from kvxfer.explain.sample import sample_of
from kvxfer.layout.choice import Costs, Room, choose
from kvxfer.layout.edges import Edge, edges_between
from kvxfer.layout.geometry import Shard
from kvxfer.layout.translate import EdgeGeometry


@attrs.frozen(kw_only=True)
class EdgeReport:
    """One edge; what needs both ranks' shards is None where a file lacks one of them."""

    group: str
    edge: Edge
    owner_of: tuple[int, ...]
    """Producer ranks that hold all of the edge's bytes; more than one where they are replicas."""
    missing: str = ""
    """Why there are no ranges to show."""
    joins: tuple[Join, ...] = ()
    blocks: int = 0
    """Consumer blocks of the sample; the ranges below are for so many."""
    ranges: int | None = None
    """Where no two blocks are neighbours."""
    ranges_in_a_row: int | None = None
    """Where all of them are, on both sides."""
    bytes_total: int | None = None
    range_bytes: tuple[int, int] | None = None
    """Shortest and longest range where no two blocks are neighbours."""
    way: str = ""
    """Direct or through a staging buffer, by the cost rule, where there is room for one."""
    way_reason: str = ""

    def to_plain(self) -> dict[str, Any]:
        plain = attrs.asdict(self, filter=lambda field, _: field.name != "edge")
        return {**attrs.asdict(self.edge), **plain}


@attrs.frozen(kw_only=True)
class Report:
    """Everything that `kvxfer layout explain` says."""

    edges: tuple[EdgeReport, ...]
    refused: tuple[str, ...]
    """What no plan can serve, with the part or the field; empty where all is served."""

    def to_plain(self) -> dict[str, Any]:
        return {
            "served": not self.refused,
            "refused": list(self.refused),
            "edges": [edge.to_plain() for edge in self.edges],
        }

    def parts(self, consumer_rank: int) -> list[tuple[int, str]]:
        """(producer rank, group) of each part that this rank waits for."""
        return sorted(
            {
                (one.edge.producer_rank, one.group)
                for one in self.edges
                if one.edge.consumer_rank == consumer_rank
            }
        )


def explain(
    producers: Sequence[Shard], consumers: Sequence[Shard], room: Room | None = None
) -> Report:
    """`producers` and `consumers` are shards of one engine each, at least one of either.

    `room` is what the cost rule may use for staging; none at all where it is left out.
    """
    edges: list[EdgeReport] = []
    refused: list[str] = []
    for name in dict.fromkeys(h.group for entry in consumers[0].ranks for h in entry.holdings):
        try:
            found = group_edges(producers[0], consumers[0], name)
        except LayoutMismatch as error:
            refused.append(str(error))
            continue
        free = room or Room()
        edges += [_edge_report(name, edge, producers, consumers, free) for edge in found]
    return Report(edges=tuple(edges), refused=tuple(refused))


def group_edges(producer: Shard, consumer: Shard, name: str) -> list[Edge]:
    """The edges of one group, as if the engines had no other. Raises LayoutMismatch."""
    alone = edges_between(_only(producer, name), _only(consumer, name))
    # Alone the group has index 0 everywhere; on the wire it keeps its own.
    return [
        attrs.evolve(
            edge,
            producer_group=_index(producer, edge.producer_rank, name),
            consumer_group=_index(consumer, edge.consumer_rank, name),
        )
        for edge in alone
    ]


def _only(shard: Shard, name: str) -> Shard:
    return attrs.evolve(
        shard,
        groups=tuple(group for group in shard.groups if group.name == name),
        ranks=tuple(
            attrs.evolve(entry, holdings=tuple(h for h in entry.holdings if h.group == name))
            for entry in shard.ranks
        ),
    )


def _index(shard: Shard, rank: int, name: str) -> int:
    entry = next(entry for entry in shard.ranks if entry.rank == rank)
    return next(index for index, h in enumerate(entry.holdings) if h.group == name)


def _edge_report(
    name: str, edge: Edge, producers: Sequence[Shard], consumers: Sequence[Shard], room: Room
) -> EdgeReport:
    owners = _owners(producers[0], edge, name)
    src = next((s for s in producers if s.rank == edge.producer_rank), None)
    dst = next((s for s in consumers if s.rank == edge.consumer_rank), None)
    plain = EdgeReport(group=name, edge=edge, owner_of=owners)
    for shard, side, rank in (
        (src, "producer", edge.producer_rank),
        (dst, "consumer", edge.consumer_rank),
    ):
        if shard is None:
            text = f"the shard of {side} rank {rank} is not in its file"
            return attrs.evolve(plain, missing=text)
    assert src is not None
    assert dst is not None
    try:
        return _with_ranges(plain, src, dst, edge, room)
    except KvxferError as error:
        return attrs.evolve(plain, missing=str(error))


def _with_ranges(plain: EdgeReport, src: Shard, dst: Shard, edge: Edge, room: Room) -> EdgeReport:
    apart = sample_of(src, dst, edge, neighbours=False)
    row = sample_of(src, dst, edge, neighbours=True)
    plan = apart.plan
    if plan.descriptor_count == 0:
        return attrs.evolve(plain, missing="these two ranks own none of the same tokens")
    choice = choose(
        EdgeGeometry.build(src, dst, edge),
        apart.source,
        apart.target,
        apart.token_start,
        apart.token_stop,
        room=room,
        costs=Costs(),
    )
    return attrs.evolve(
        plain,
        way=choice.path.value,
        way_reason=choice.reason,
        joins=joins_of(src, dst, edge),
        blocks=int(apart.target.blocks.size),
        ranges=plan.descriptor_count,
        ranges_in_a_row=row.plan.descriptor_count,
        bytes_total=plan.bytes_total,
        range_bytes=(int(plan.length.min()), int(plan.length.max())),
    )


def _owners(producer: Shard, edge: Edge, name: str) -> tuple[int, ...]:
    """Ranks that could have served the edge: they hold its heads and all its layers."""
    return tuple(
        entry.rank
        for entry in sorted(producer.ranks, key=lambda entry: entry.rank)
        for held in entry.holdings
        if held.group == name
        and held.head_start <= edge.head_start
        and edge.head_stop <= held.head_stop
        and set(edge.layers) <= set(held.layers)
    )
