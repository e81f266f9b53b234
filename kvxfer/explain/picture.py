"""What the picture shows of one consumer block: panels, ranges, who writes what.

Owns the choice of the block, its producers and the ranges between them. Knows no SVG.
Invariant: every range drawn is one of a plan, and a cell that no plan writes stays
without one.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.explain.cells import LAYERS_MAX, Cell, Key, Panel, panel_of
from kvxfer.explain.report import group_edges
from kvxfer.explain.sample import Sample, sample_blocks
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import Group, Shard
from kvxfer.layout.sheets import planes_of


@attrs.frozen
class Arrow:
    """One byte range: the cells it takes, in the order of memory, at either side."""

    number: int
    source: tuple[Cell, ...]
    target: tuple[Cell, ...]
    bytes: int


@attrs.frozen(kw_only=True)
class Source:
    """A producer rank that writes a part of the block."""

    edge: Edge
    panel: Panel
    arrows: tuple[Arrow, ...]
    ranges: int
    """All ranges of the plan for this block, shown or not."""
    taken: frozenset[Key]
    """Cells of its panel that the plan reads."""
    written: frozenset[Key]
    """Cells of the target's panel that the plan writes."""


@attrs.frozen(kw_only=True)
class Picture:
    """One consumer block and all that is known of where its bytes come from."""

    group: Group
    block: int
    token_start: int
    token_stop: int
    layers_shown: tuple[str, ...]
    target: Panel
    sources: tuple[Source, ...]
    unknown: tuple[str, ...]
    """Producer ranks whose shard is not at hand, in words."""


def picture_of(
    producers: Sequence[Shard],
    consumer: Shard,
    group_name: str,
    block: int = 0,
) -> Picture:
    """Consumer block number `block` of a request, with whoever writes into it.

    Raises LayoutMismatch where the group cannot be served or the consumer has none such.
    """
    group = next((g for g in consumer.groups if g.name == group_name), None)
    if group is None:
        names = [g.name for g in consumer.groups]
        raise LayoutMismatch(f"the consumer has no group {group_name!r}, only {names}")
    edges = [
        edge
        for edge in group_edges(producers[0], consumer, group_name)
        if edge.consumer_rank == consumer.rank
    ]
    by_rank = {shard.rank: shard for shard in producers}
    known = [edge for edge in edges if edge.producer_rank in by_rank]
    if not known:
        ranks = sorted({edge.producer_rank for edge in edges})
        raise LayoutMismatch(
            f"consumer rank {consumer.rank} is served by producer ranks {ranks}: none of "
            "their shards is at hand"
        )
    layers = tuple(dict.fromkeys(name for edge in known for name in edge.layers[:LAYERS_MAX]))
    # Planes with a split of their own have edges of their own; one picture has one kind.
    plane = known[0].plane
    known = [edge for edge in known if edge.plane == plane]
    planes = [p.name for p in planes_of(group, known[0])]
    sources, target = [], None
    for edge in known:
        src = by_rank[edge.producer_rank]
        sample = sample_blocks(src, consumer, edge, block, 1)
        span = (sample.token_start, sample.token_stop)
        target = panel_of(consumer, sample.target, *span, layers, planes)
        shown = panel_of(src, sample.source, *span, layers, planes)
        sources.append(_source(edge, sample, shown, target))
    assert target is not None
    start = block * group.tokens_per_entry
    return Picture(
        group=group,
        block=block,
        token_start=start,
        token_stop=start + group.tokens_per_entry,
        layers_shown=layers,
        target=target,
        sources=tuple(sources),
        unknown=tuple(
            f"heads {e.head_start} to {e.head_stop - 1}: from producer rank {e.producer_rank}"
            for e in edges
            if e.producer_rank not in by_rank
        ),
    )


def _source(edge: Edge, sample: Sample, panel: Panel, target: Panel) -> Source:
    here, there = _Shown(panel), _Shown(target)
    arrows, taken, written = [], set[Key](), set[Key]()
    plan = sample.plan
    for number, (start_src, start_dst, length) in enumerate(
        zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
    ):
        read, landed = here.within(start_src, length), there.within(start_dst, length)
        taken |= {cell.key for cell in read}
        written |= {cell.key for cell in landed}
        if read and landed:
            arrows.append(Arrow(number, read, landed, length))
    return Source(
        edge=edge,
        panel=panel,
        arrows=tuple(arrows),
        ranges=plan.descriptor_count,
        taken=frozenset(taken),
        written=frozenset(written),
    )


class _Shown:
    """The shown cells of a panel, found by address."""

    def __init__(self, panel: Panel) -> None:
        self._cells = [cell for row in panel.rows for cell in row.cells]
        self._addresses = [cell.address for cell in self._cells]

    def within(self, address: int, length: int) -> tuple[Cell, ...]:
        first = bisect.bisect_left(self._addresses, address)
        stop = bisect.bisect_left(self._addresses, address + length)
        return tuple(self._cells[first:stop])
