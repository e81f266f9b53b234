"""Shards of the six stride orders, made from plain numbers.

Owns the names of the orders (vLLM-contract 4.1) and the usual split of heads over
ranks. For engines that lay out their own cache, demos and tests; an adapter of
an engine reads strides from the engine's tensors instead (H1).
"""

from __future__ import annotations

from collections.abc import Sequence

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


def strides_for(order: str, counts: dict[str, int], content_bytes: int) -> dict[str, int]:
    """Byte stride of each axis of L, B, H, N for one order; `counts` has those four keys."""
    if order not in ORDERS:
        raise BadValue("order", order, f"one of {', '.join(ORDERS)}")
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
    group: str = "kv",
    null_block: int | None = None,
) -> tuple[Shard, ...]:
    """One shard per rank of an engine with len(bases) ranks, heads split over them.

    Every rank has one area at its base. Several planes lie one after the other,
    each in the given order.
    """
    intervals = head_intervals(heads_total, len(bases))
    names = tuple(layers)
    ranks = tuple(
        RankHolding(
            rank=rank, holdings=(Holding(group=group, head_start=a, head_stop=b, layers=names),)
        )
        for rank, (a, b) in enumerate(intervals)
    )
    shards = []
    for rank, (start, stop) in enumerate(intervals):
        slots = tokens_per_block // physical_per_block
        counts = {"L": len(names), "B": blocks * physical_per_block, "H": stop - start, "N": slots}
        strides = strides_for(order, counts, content_bytes)
        plane_bytes = area_bytes(
            layers=len(names),
            blocks=blocks,
            heads=stop - start,
            tokens_per_block=tokens_per_block,
            content_bytes=content_bytes,
        )
        described = Group(
            name=group,
            kind=GroupKind.FULL,
            tokens_per_block=tokens_per_block,
            physical_per_block=physical_per_block,
            physical_blocks=blocks * physical_per_block,
            heads_total=heads_total,
            head_start=start,
            head_stop=stop,
            layers=names,
            planes=tuple(
                Plane(name=name, area=0, offset=i * plane_bytes, content_bytes=content_bytes)
                for i, name in enumerate(planes)
            ),
            stride_layer=strides["L"],
            stride_block=strides["B"],
            stride_head=strides["H"],
            stride_slot=strides["N"],
            null_block=null_block,
        )
        area = Area(base=bases[rank], length=plane_bytes * len(planes))
        shards.append(Shard(rank=rank, areas=(area,), groups=(described,), ranks=ranks))
    return tuple(shards)
