"""This library's layout maths as the subject of layout.json.

Owns the way from a case to descriptors, tables and ranges in the file's form. Knows no
formula: `kvxfer.layout` does. Invariant: whatever a case holds, it ends in parts or in
`Rejected` with the reason of the specification.
"""

from __future__ import annotations

import numpy as np

from kvxfer.conformance.vectors import Plain, Rejected
from kvxfer.errors import BadValue, LayoutMismatch, RemoteFault
from kvxfer.layout.coverage import Ranges, uncovered
from kvxfer.layout.edges import Edge, edges_of
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.parts import Box, edges_in, part_boxes
from kvxfer.layout.plain import shard_from_plain
from kvxfer.layout.plan import Plan
from kvxfer.layout.table import check_table
from kvxfer.layout.tokens import wanted_tokens
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

LIMITS = Limits()


def translate(case: Plain) -> list[Plain]:
    """A layout case to its `parts`. Raises `Rejected` with the reason."""
    try:
        source = shard_from_plain(case["source"], LIMITS)
        target = shard_from_plain(case["target"], LIMITS)
        edges = edges_of(source, target, source.rank, target.rank)
    except (RemoteFault, LayoutMismatch):
        raise Rejected("LAYOUT_REFUSED") from None
    try:
        here, there = (_tables(case.get(f"{side}_tables", ())) for side in ("source", "target"))
        return [
            _part(source, target, edges, box, here, there)
            for box in part_boxes(source, target, edges, *case.get("tokens", (0, 0)))
        ]
    except (BadValue, LayoutMismatch):
        raise Rejected("OUT_OF_BOUNDS") from None


def _tables(tables: list[Plain]) -> dict[int, BlockTable]:
    return {
        table["group"]: BlockTable(
            group=table["group"],
            first_token=table["first_token"],
            blocks=np.array(table["blocks"], np.int64),
        )
        for table in tables
    }


def _part(
    source: Shard,
    target: Shard,
    edges: tuple[Edge, ...],
    box: Box,
    here: dict[int, BlockTable],
    there: dict[int, BlockTable],
) -> Plain:
    span = (box.token_start, box.token_stop)
    if box.group not in there:
        raise BadValue("target_tables", box.group, "a table of every group")
    table = there[box.group]
    check_table(target, table, *wanted_tokens(target.groups[box.group], *span))
    plans = []
    for edge in edges_in(source, edges, box):
        if edge.producer_group not in here:
            raise BadValue("source_tables", edge.producer_group, "a table of every group")
        geometry = EdgeGeometry.build(source, target, edge)
        plans.append(geometry.plan(here[edge.producer_group], table, *span))
    part: Plain = {
        "part": [source.rank, box.group, *span],
        "ranges": _ranges(source, target, Plan.concat(plans)),
    }
    left = _left(target, uncovered(target, table, *span))
    return {**part, "uncovered": left} if left else part


def _ranges(source: Shard, target: Shard, plan: Plan) -> list[list[int]]:
    columns = (plan.src.tolist(), plan.dst.tolist(), plan.length.tolist())
    rows = [
        [*_place(source, src), *_place(target, dst), size]
        for src, dst, size in zip(*columns, strict=True)
    ]
    return sorted(rows, key=lambda row: row[2:4])


def _left(target: Shard, ranges: Ranges) -> list[list[int]]:
    rows = zip(ranges[0].tolist(), ranges[1].tolist(), strict=True)
    return sorted([*_place(target, at), size] for at, size in rows)


def _place(shard: Shard, at: int) -> tuple[int, int]:
    """(area, offset in it): areas may lie over each other, the first one counts."""
    return next(
        (number, at - area.base)
        for number, area in enumerate(shard.areas)
        if area.base <= at < area.base + area.length
    )
