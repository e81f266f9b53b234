"""Shards of the six stride orders, made from plain numbers.

Owns the names of the orders and the usual split of heads and layers over ranks.
For engines that lay out their own cache, demos and tests; an adapter of an engine
reads strides from the engine's tensors instead (H1).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Holding,
    Plane,
    RankHolding,
    Shard,
)

ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
"""Outermost axis first: Layer, Block, Head, slot (N), Content."""


def strides_for(order: str, counts: Mapping[str, int], content_bytes: int) -> dict[str, int]:
    """Byte stride of each axis of `order`; `counts` has a number for each of its letters.

    One letter P may stand anywhere in an order: the axis of the content planes.
    """
    if order.count("P") > 1 or order.replace("P", "") not in ORDERS or order[-1] != "C":
        raise BadValue("order", order, f"one of {', '.join(ORDERS)}, with or without one P")
    strides = {}
    step = content_bytes
    for axis in reversed(order[:-1]):
        strides[axis] = step
        step *= counts[axis]
    return strides


def head_intervals(heads_total: int, tp_size: int) -> list[tuple[int, int]]:
    """Heads of each rank: replicas where there are fewer heads than ranks, near-equal else."""
    if heads_total < tp_size:
        owner = [rank * heads_total // tp_size for rank in range(tp_size)]
        return [(head, head + 1) for head in owner]
    return [
        (rank * heads_total // tp_size, (rank + 1) * heads_total // tp_size)
        for rank in range(tp_size)
    ]


def area_bytes(
    *,
    layers: int,
    blocks: int,
    heads: int,
    tokens_per_block: int,
    content_bytes: int,
    planes: int = 1,
) -> int:
    """Bytes of one rank's cache; `blocks` are manager blocks."""
    return layers * blocks * heads * tokens_per_block * content_bytes * planes


def engine_shards(
    *,
    bases: Sequence[int],
    order: str = "LBHNC",
    layers: Sequence[str],
    blocks: int,
    tokens_per_block: int,
    heads_total: int,
    content_bytes: int,
    planes: Sequence[str] = ("kv",),
    physical_per_block: int = 1,
    stages: int = 1,
    group: str = "kv",
    null_block: int | None = None,
) -> tuple[Shard, ...]:
    """One shard per rank of an engine with len(bases) ranks.

    Layers are split over `stages` pipeline stages, heads over the ranks of each;
    rank = stage * (ranks per stage) + position in the stage. Every rank has one area
    at its base. Several planes of `content_bytes` each lie where the letter P
    stands in `order`, outermost where there is none. Raises BadValue for an unknown
    order or a number of ranks that the stages do not divide.
    """
    if stages < 1 or len(bases) < stages or len(bases) % stages:
        raise BadValue("stages", stages, f"a divisor of the {len(bases)} ranks")
    held = [
        Holding(group=group, head_start=a, head_stop=b, layers=names)
        for names in _stage_layers(tuple(layers), stages)
        for a, b in head_intervals(heads_total, len(bases) // stages)
    ]
    ranks = tuple(RankHolding(rank=rank, holdings=(own,)) for rank, own in enumerate(held))
    shards = []
    for rank, own in enumerate(held):
        described = _group(
            own,
            order if "P" in order else f"P{order}",
            blocks=blocks,
            tokens_per_block=tokens_per_block,
            physical_per_block=physical_per_block,
            heads_total=heads_total,
            content_bytes=content_bytes,
            planes=planes,
            null_block=null_block,
        )
        length = area_bytes(
            layers=len(own.layers),
            blocks=blocks,
            heads=own.head_stop - own.head_start,
            tokens_per_block=tokens_per_block,
            content_bytes=content_bytes,
            planes=len(planes),
        )
        area = Area(base=bases[rank], length=length)
        shards.append(Shard(rank=rank, areas=(area,), groups=(described,), ranks=ranks))
    return tuple(shards)


def _stage_layers(layers: tuple[str, ...], stages: int) -> list[tuple[str, ...]]:
    borders = [stage * len(layers) // stages for stage in range(stages + 1)]
    return [layers[a:b] for a, b in itertools.pairwise(borders)]


def _group(
    own: Holding,
    order: str,
    *,
    blocks: int,
    tokens_per_block: int,
    physical_per_block: int,
    heads_total: int,
    content_bytes: int,
    planes: Sequence[str],
    null_block: int | None,
) -> Group:
    counts = {
        "L": len(own.layers),
        "B": blocks * physical_per_block,
        "H": own.head_stop - own.head_start,
        "N": tokens_per_block // physical_per_block,
        "P": len(planes),
    }
    strides = strides_for(order, counts, content_bytes)
    return Group(
        name=own.group,
        kind=GroupKind.FULL,
        tokens_per_block=tokens_per_block,
        physical_per_block=physical_per_block,
        physical_blocks=counts["B"],
        heads_total=heads_total,
        head_start=own.head_start,
        head_stop=own.head_stop,
        layers=own.layers,
        planes=tuple(
            Plane(name=name, area=0, offset=i * strides["P"], content_bytes=content_bytes)
            for i, name in enumerate(planes)
        ),
        stride_layer=strides["L"],
        stride_block=strides["B"],
        stride_head=strides["H"],
        stride_slot=strides["N"],
        null_block=null_block,
    )
