"""This library's layout maths as a subject of the vectors.

Owns the way from the absolute addresses of a plan to (area, offset) pairs of the files.
Knows no stride. Invariant: what our own checks refuse is refused with the reason that a
link or a part would be refused with.
"""

from __future__ import annotations

import numpy as np

from kvxfer.conformance.vectors import Plain, Rejected
from kvxfer.errors import BadValue, LayoutMismatch, RemoteFault
from kvxfer.layout.edges import Edge, edges_of
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.parts import Box, edges_in, part_boxes
from kvxfer.layout.plain import shard_from_plain
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

LIMITS = Limits()
Tables = dict[int, BlockTable]


def translate(case: Plain) -> list[Plain]:
    """Our maths as `check_layout` wants it."""
    try:
        source = shard_from_plain(case["source"], LIMITS)
        target = shard_from_plain(case["target"], LIMITS)
        edges = edges_of(source, target, source.rank, target.rank)
    except (RemoteFault, LayoutMismatch) as refusal:
        raise Rejected("LAYOUT_REFUSED") from refusal
    here, there = _tables(case["source_tables"]), _tables(case["target_tables"])
    try:
        return [
            _part(source, target, box, edges, here, there)
            for box in part_boxes(source, target, edges, *case["tokens"])
        ]
    except (BadValue, KeyError) as refusal:
        raise Rejected("OUT_OF_BOUNDS") from refusal


def _tables(tables: list[Plain]) -> Tables:
    return {
        t["group"]: BlockTable(
            group=t["group"],
            first_token=t["first_token"],
            blocks=np.array(t["blocks"], np.int64),
        )
        for t in tables
    }


def _part(
    source: Shard,
    target: Shard,
    box: Box,
    edges: tuple[Edge, ...],
    here: Tables,
    there: Tables,
) -> Plain:
    span = (box.token_start, box.token_stop)
    plan = Plan.concat(
        [
            EdgeGeometry.build(source, target, edge).plan(
                here[edge.producer_group], there[box.group], *span
            )
            for edge in edges_in(source, edges, box)
        ]
    )
    columns = zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
    return {
        "part": [source.rank, box.group, *span],
        "ranges": [[*_place(source, s, n), *_place(target, d, n), n] for s, d, n in columns],
    }


def _place(shard: Shard, address: int, length: int) -> tuple[int, int]:
    """(area, offset) of a range that lies in one area."""
    for number, area in enumerate(shard.areas):
        if area.base <= address and address + length <= area.base + area.length:
            return number, address - area.base
    raise BadValue("range", (address, length), "inside one area")
