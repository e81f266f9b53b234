"""This library's cutting of parts as a subject of the vectors.

Owns the shards and edges that a case of parts.json stands for. Knows no rule of the
cut. Invariant: only what the case names is looked at.
"""

from __future__ import annotations

import attrs

from kvxfer.conformance.vectors import Plain
from kvxfer.conformance.vectors_core import features_of
from kvxfer.conformance.vectors_plain import part_plain
from kvxfer.core.ids import Part
from kvxfer.driver.grid import Grid, cut_parts
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import Shard
from kvxfer.layout.orders import engine_shards
from kvxfer.limits import Limits


def parts_of(case: Plain) -> list[list[int]]:
    """Our cut as `check_parts` wants it."""
    rank, groups = case["producer_rank"], case["groups"]
    edges = [
        Edge(
            producer_rank=rank,
            consumer_rank=0,
            producer_group=place,
            consumer_group=group["group"],
            head_start=0,
            head_stop=1,
            layers=tuple(group["shared_layers"]),
        )
        for place, group in enumerate(groups)
    ]
    whole = [Part(rank, group["group"], *case["tokens"]) for group in groups]
    grid = Grid(part_tokens=case["part_tokens"], part_layers=case["part_layers"])
    common = grid.within(features_of(case["features"]))
    parts = cut_parts(whole, common, _producer(groups), edges, Limits().parts_per_edge_max)
    return [part_plain(part) for part in parts]


def _producer(groups: list[Plain]) -> Shard:
    (one,) = engine_shards(
        bases=[0], layers=("0",), blocks=1, tokens_per_block=1, heads_total=1, content_bytes=1
    )
    made = tuple(
        attrs.evolve(one.groups[0], name=str(g["group"]), layers=tuple(g["producer_layers"]))
        for g in groups
    )
    return attrs.evolve(one, groups=made)
