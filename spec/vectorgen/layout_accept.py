"""Pairs that are served: orders, sizes, splits, and one pair of every cache shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from kvxfer.layout.geometry import (
    Area,
    BlockTable,
    Group,
    GroupKind,
    Plane,
    RankHolding,
    Shard,
    Split,
    holding_of,
)
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.layout.plain import shard_to_plain

P_BASE, D_BASE = 1 << 20, 1 << 30


@attrs.frozen(kw_only=True)
class Case:
    """One pair of ranks and one request."""

    id: str
    note: str
    source: Shard
    target: Shard
    tokens: tuple[int, int]
    rules: tuple[str, ...] = ("K-7.2.1",)
    source_blocks: Sequence[Sequence[int]] = ((5, 2, 3, 7),)
    target_blocks: Sequence[Sequence[int]] = ((1, 6, 4, 2),)
    source_first: int = 0
    target_first: int = 0
    extra: bool = False


def tables(case: Case) -> tuple[list[BlockTable], list[BlockTable]]:
    """The tables of both sides, as many entries as the tokens need."""
    found = []
    for shard, blocks, first in (
        (case.source, case.source_blocks, case.source_first),
        (case.target, case.target_blocks, case.target_first),
    ):
        side = []
        for index, ids in enumerate(blocks):
            size = shard.groups[index].tokens_per_block * shard.groups[index].context_size
            count = math.ceil((case.tokens[1] - first) / size)
            assert count <= len(ids), case.id
            column = np.array(ids[:count], np.int64)
            side.append(BlockTable(group=index, first_token=first, blocks=column))
        found.append(side)
    return found[0], found[1]


def heads_of(group: Group, plane: Plane) -> tuple[int, int]:
    """Heads of a plane that its rank holds."""
    if plane.split is not None:
        return plane.split.start, plane.split.stop
    return group.head_start, group.head_stop


def plain(shard: Shard, extra: bool) -> dict[str, Any]:
    """The descriptor; with keys of a newer version where `extra`."""
    whole = shard_to_plain(shard)
    if extra:
        whole["newer"] = {"key": [1, None]}
        whole["groups"][0]["newer"] = "text"
        whole["groups"][0]["planes"][0]["newer"] = 7
        whole["ranks"][0]["holdings"][0]["newer"] = False
    return whole


def engine(order: str = "LBHNC", base: int = P_BASE, ranks: int = 1, **other: Any) -> list[Shard]:
    """All ranks of a small engine."""
    fields: dict[str, Any] = {
        "bases": [base + (rank << 16) for rank in range(ranks)],
        "order": order,
        "layers": ("a", "b"),
        "blocks": 8,
        "tokens_per_block": 4,
        "heads_total": 2,
        "content_bytes": 4,
    }
    return list(engine_shards(**(fields | other)))


def alone(group: Group, base: int = P_BASE, areas: tuple[Area, ...] = (), pad: int = 0) -> Shard:
    """An engine of one rank with one group, in an area that ends with the group."""
    counts = [
        (group.stride_layer, len(group.layers)),
        (group.stride_block, group.physical_blocks),
        (group.stride_head, group.head_stop - group.head_start),
        (group.stride_slot, group.slots_per_physical),
    ]
    end = max(plane.offset + plane.content_bytes for plane in group.planes)
    end += sum(stride * (count - 1) for stride, count in counts) + pad
    areas = areas or (Area(base=base, length=end),)
    ranks = (RankHolding(rank=0, holdings=(holding_of(group),)),)
    return Shard(rank=0, areas=areas, groups=(group,), ranks=ranks)


def group_of(shard: Shard, **changes: Any) -> Group:
    return attrs.evolve(shard.groups[0], **changes)


def together(groups: Sequence[Group], base: int) -> tuple[Shard, ...]:
    """One engine whose ranks hold one group each, every rank in memory of its own."""
    ranks = tuple(
        RankHolding(rank=n, holdings=(holding_of(group),)) for n, group in enumerate(groups)
    )
    return tuple(
        attrs.evolve(alone(group, base + (rank << 16)), rank=rank, ranks=ranks)
        for rank, group in enumerate(groups)
    )


def cases() -> list[Case]:
    return [*_orders(), *_splits(), *_tables(), *_kinds(), *_contents(), *_contexts()]


def _orders() -> list[Case]:
    found = []
    for order in ORDERS:
        one = Case(
            id=f"order-{order.lower()}",
            note=f"Both sides {order}; the last block is not full.",
            source=engine(order)[0],
            target=engine(order, D_BASE)[0],
            tokens=(0, 10),
        )
        found.append(one)
    for mine, theirs in (("LBHNC", "LBNHC"), ("BHLNC", "LHBNC"), ("BLNHC", "LBHNC")):
        found.append(
            Case(
                id=f"orders-{mine.lower()}-{theirs.lower()}",
                note=f"{mine} to {theirs}: no axis but the content joins, or few do.",
                source=engine(mine)[0],
                target=engine(theirs, D_BASE)[0],
                tokens=(1, 7),
            )
        )
    for mine, theirs in ((4, 6), (6, 4), (16, 24)):
        found.append(
            Case(
                id=f"blocks-{mine}-{theirs}",
                note=f"Blocks of {mine} tokens to blocks of {theirs}: cuts at both grids.",
                source=engine(tokens_per_block=mine)[0],
                target=engine("LBNHC", D_BASE, tokens_per_block=theirs)[0],
                tokens=(0, 13 if mine < 16 else 50),
                rules=("K-7.2.1", "K-7.4.1"),
            )
        )
    return found


def _splits() -> list[Case]:
    wide = {"heads_total": 6, "content_bytes": 2}
    three, two = engine(ranks=3, **wide), engine(base=D_BASE, ranks=2, **wide)
    few = engine(ranks=4, heads_total=2), engine(base=D_BASE, ranks=8, heads_total=2)
    late, early = engine(ranks=2, stages=2), engine(base=D_BASE, layers=("b", "a"))
    pages = {"planes": ("k", "v"), "blocks": 8}
    rules = ("K-7.2.1", "K-7.4.2")
    return [
        Case(
            id="ranks-three-to-two",
            note="Rank 1 of three to rank 0 of two: one head of six.",
            source=three[1],
            target=two[0],
            tokens=(0, 6),
            rules=rules,
        ),
        Case(
            id="ranks-that-share-nothing",
            note="Rank 0 of three and rank 1 of two have no head in common: there is no part.",
            source=three[0],
            target=two[1],
            tokens=(0, 6),
            rules=rules,
        ),
        Case(
            id="replicas-in-turn",
            note="Two heads, on two ranks each, to four ranks each: taker 1 is giver 1's.",
            source=few[0][1],
            target=few[1][1],
            tokens=(0, 4),
            rules=rules,
        ),
        Case(
            id="replicas-not-the-owner",
            note="Both hold head 0, but another replica serves this consumer.",
            source=few[0][0],
            target=few[1][1],
            tokens=(0, 4),
            rules=rules,
        ),
        Case(
            id="stages",
            note="The second of two pipeline stages to an engine with its layers in another order.",
            source=late[1],
            target=early[0],
            tokens=(0, 5),
            rules=rules,
        ),
        Case(
            id="planes-apart",
            note="K and V in planes of their own, the consumer's in other places.",
            source=engine("LBPHNC", **pages)[0],
            target=engine("PLBHNC", D_BASE, **pages | {"planes": ("v", "k")})[0],
            tokens=(0, 6),
        ),
        Case(
            id="planes-in-one-block",
            note="K page and V page side by side in every block, at both: one range for each.",
            source=engine("BPLHNC", **pages)[0],
            target=engine("BPLHNC", D_BASE, **pages)[0],
            tokens=(0, 8),
        ),
    ]


def _tables() -> list[Case]:
    return [
        Case(
            id="physical-blocks",
            note="Manager blocks of two and of three physical blocks.",
            source=engine(physical_per_block=2)[0],
            target=engine(base=D_BASE, tokens_per_block=6, physical_per_block=3)[0],
            tokens=(0, 11),
        ),
        Case(
            id="tables-start-late",
            note="Entry 0 stands for token 8 at one side and for token 4 at the other.",
            source=engine()[0],
            target=engine(base=D_BASE)[0],
            tokens=(9, 14),
            source_first=8,
            target_first=4,
            rules=("K-7.2.1", "K-7.2.3"),
        ),
        Case(
            id="prefix-hit",
            note="The consumer has the first five tokens; the slot before is not written.",
            source=engine(null_block=0)[0],
            target=engine(base=D_BASE, null_block=7)[0],
            tokens=(5, 8),
            rules=("K-6.2.7", "K-7.2.1"),
        ),
        Case(
            id="consecutive-blocks",
            note="Blocks follow each other on both sides: the runs join.",
            source=engine("BLHNC")[0],
            target=engine("BLHNC", D_BASE)[0],
            source_blocks=((2, 3, 4),),
            target_blocks=((5, 6, 7),),
            tokens=(0, 12),
        ),
        Case(
            id="top-of-the-address-space",
            note="The last byte of the consumer's area is the last but one that can be named.",
            source=engine()[0],
            target=engine(base=(1 << 64) - 1 - 512)[0],
            tokens=(0, 16),
            rules=("K-7.2.1", "K-7.3.2"),
        ),
        Case(
            id="unknown-keys",
            note="Keys of a newer version are skipped, in every map.",
            source=engine()[0],
            target=engine(base=D_BASE)[0],
            tokens=(0, 3),
            extra=True,
        ),
    ]


def windowed(base: int, **changes: Any) -> Shard:
    fields = {"kind": GroupKind.WINDOW, "reach": 5, "null_block": 0}
    return alone(group_of(engine(base=base, heads_total=1)[0], **(fields | changes)), base)


def _state(tokens: int, ranks: int, base: int) -> tuple[Shard, ...]:
    """Two sub-parts of a convolution and the state, each with its own split, in one page."""
    groups = []
    for rank in range(ranks):
        channels, heads = 8 // ranks, 4 // ranks
        spans = [("ssm", None, heads, 8), ("conv.x", 8, channels, 2), ("conv.b", 1, 1, 4)]
        planes, page = [], 0
        for name, total, count, size in spans:
            start = rank * count if total != 1 else 0
            split = None if total is None else Split(total=total, start=start, stop=start + count)
            planes.append(
                Plane(
                    name=name,
                    area=0,
                    offset=page,
                    content_bytes=size,
                    split=split,
                    stride_head=size,
                )
            )
            page += size * count
        page += 12
        groups.append(
            Group(
                name="mamba",
                kind=GroupKind.STATE,
                tokens_per_block=tokens,
                physical_per_block=1,
                physical_blocks=8,
                heads_total=4,
                head_start=rank * heads,
                head_stop=(rank + 1) * heads,
                layers=("a", "b"),
                planes=tuple(planes),
                stride_layer=page * 8,
                stride_block=page,
                stride_head=8,
                stride_slot=page,
                tokens_per_state=tokens,
                reach=1,
                null_block=0,
            )
        )
    shards = together(groups, base)
    # The page's padding ends the area.
    return tuple(
        attrs.evolve(s, areas=(attrs.evolve(s.areas[0], length=page * 16),)) for s in shards
    )


def _kinds() -> list[Case]:
    latent = {"ranks": 2, "heads_total": 1, "content_bytes": 6}
    ends = (engine(**latent)[1], engine("LBNHC", D_BASE, **latent | {"ranks": 4})[3])
    latents = [
        attrs.evolve(shard, groups=(group_of(shard, kind=GroupKind.LATENT),)) for shard in ends
    ]
    page = {"kind": GroupKind.PAGE, "fingerprint": "amx.bf16", "tokens_per_state": 4}
    pages = []
    for base in (P_BASE, D_BASE):
        (shard,) = engine(
            base=base,
            physical_per_block=1 if base == P_BASE else 2,
            tokens_per_block=4 if base == P_BASE else 8,
        )
        whole = group_of(shard).planes[0]
        plane = attrs.evolve(whole, content_bytes=16)
        pages.append(alone(group_of(shard, planes=(plane,), **page), base))
    rules = ("K-7.2.1", "K-7.5.1")
    return [
        Case(
            id="window",
            note="Of ten tokens the last five are needed; blocks before them are null.",
            source=windowed(P_BASE),
            target=windowed(D_BASE, tokens_per_block=4),
            tokens=(0, 10),
            source_blocks=((0, 3, 4),),
            target_blocks=((0, 5, 2),),
            rules=(*rules, "K-6.2.5", "K-7.3.13"),
        ),
        Case(
            id="window-shorter-than-it-reaches",
            note="Fewer tokens are lacking than the window reaches: all of them move.",
            source=windowed(P_BASE),
            target=windowed(D_BASE),
            tokens=(7, 10),
            source_blocks=((0, 3, 4),),
            target_blocks=((0, 5, 2),),
            rules=rules,
        ),
        Case(
            id="latent",
            note="One head on all ranks: rank 1 of two serves ranks 1 and 3 of four.",
            source=latents[0],
            target=latents[1],
            tokens=(0, 6),
            rules=("K-7.2.1", "K-7.3.14", "K-7.4.2"),
        ),
        Case(
            id="state-running",
            note="The state after 9 tokens: a checkpoint's page to a page for all tokens.",
            source=_state(9, 1, P_BASE)[0],
            target=_state(1 << 40, 1, D_BASE)[0],
            tokens=(0, 9),
            source_blocks=((3,),),
            target_blocks=((2,),),
            rules=(*rules, "K-7.3.15", "K-7.5.3"),
        ),
        Case(
            id="state-split",
            note="Two ranks to one: conv.x by its own split, conv.b from the other rank.",
            source=_state(4, 2, P_BASE)[1],
            target=_state(4, 1, D_BASE)[0],
            tokens=(0, 8),
            source_blocks=((0, 3),),
            target_blocks=((0, 2),),
            rules=(*rules, "K-7.4.2"),
        ),
        Case(
            id="state-replicated-plane",
            note="The other rank of the two: it owns the plane that both hold.",
            source=_state(4, 2, P_BASE)[0],
            target=_state(4, 1, D_BASE)[0],
            tokens=(0, 8),
            source_blocks=((0, 3),),
            target_blocks=((0, 2),),
            rules=(*rules, "K-7.4.2"),
        ),
        Case(
            id="opaque-pages",
            note="Physical blocks of four tokens, whole, though the last one is half used.",
            source=pages[0],
            target=pages[1],
            tokens=(0, 6),
            rules=("K-7.2.1", "K-7.2.2", "K-7.3.16"),
        ),
    ]


def _lines(base: int, stride_slot: int, stride_element: int, rows: bool) -> Shard:
    """One line of 16 tokens for each request; K by rows of elements where `rows`."""
    planes = (
        Plane(
            name="k",
            area=0,
            offset=0,
            content_bytes=8,
            element_bytes=2 if rows else None,
            stride_element=stride_element if rows else None,
            stride_slot=stride_slot,
        ),
        Plane(name="v", area=0, offset=1024, content_bytes=8),
    )
    group = Group(
        name="kv",
        kind=GroupKind.FULL,
        tokens_per_block=16,
        physical_per_block=1,
        physical_blocks=4,
        heads_total=2,
        head_start=0,
        head_stop=2,
        layers=("a",),
        planes=planes,
        stride_layer=0,
        stride_block=256,
        stride_head=128,
        stride_slot=8,
    )
    return alone(group, base)


def _scaled(base: int, scale: int | None, order: str) -> Shard:
    """Bytes of K and V, and a scale for each head of a token, or of a physical block."""
    whole = group_of(engine(order, base, heads_total=2, content_bytes=4)[0])
    slots = 1 if scale else 4
    plane = Plane(
        name="scale",
        area=0,
        offset=600,
        content_bytes=2,
        tokens_per_state=scale,
        stride_slot=2,
        stride_head=2 * slots,
        stride_block=4 * slots,
        stride_layer=32 * slots,
    )
    group = attrs.evolve(whole, planes=(*whole.planes, plane), fingerprint="fp8.e4m3")
    return alone(group, base)


def _contents() -> list[Case]:
    padded = [group_of(engine(base=base)[0]) for base in (P_BASE, D_BASE)]
    wide = [
        alone(attrs.evolve(padded[0], stride_block=40, stride_layer=400), P_BASE),
        alone(attrs.evolve(padded[1], stride_head=20, stride_block=64, stride_layer=512), D_BASE),
    ]
    states = []
    for base, order in ((P_BASE, "LBHNC"), (D_BASE, "LBNHC")):
        (shard,) = engine(order, base, tokens_per_block=4)
        states.append(alone(group_of(shard, tokens_per_block=8, tokens_per_state=2), base))
    pairs = []
    for base in (P_BASE, D_BASE):
        group = group_of(engine(base=base, planes=("k", "v"))[0])
        k, v = group.planes
        packed = attrs.evolve(k, content_bytes=8, tokens_per_state=2, stride_slot=8)
        pairs.append(alone(attrs.evolve(group, planes=(packed, v), fingerprint="fp8.packed"), base))
    scattered = engine(base=D_BASE)[0]
    areas = tuple(Area(base=D_BASE + at, length=256) for at in (4096, 256))
    (plane,) = scattered.groups[0].planes
    layered = group_of(scattered, planes=(attrs.evolve(plane, layer_areas=(0, 1)),))
    return [
        Case(
            id="padded-pages",
            note="Pages and heads with gaps, other ones at each side; the gaps are not written.",
            source=wide[0],
            target=wide[1],
            tokens=(0, 9),
        ),
        Case(
            id="states-of-two-tokens",
            note="A slot stands for two tokens: the one in which token 4 lies moves whole.",
            source=states[0],
            target=states[1],
            tokens=(0, 5),
            rules=("K-7.2.1", "K-7.2.2", "K-7.3.8"),
        ),
        Case(
            id="packed-pairs",
            note="K packs two tokens into a slot, V does not.",
            source=pairs[0],
            target=pairs[1],
            tokens=(1, 6),
            rules=("K-7.2.1", "K-7.2.2"),
        ),
        Case(
            id="scales-by-token",
            note="A scale for each head of each token beside the content.",
            source=_scaled(P_BASE, None, "LBHNC"),
            target=_scaled(D_BASE, None, "LBNHC"),
            tokens=(2, 6),
        ),
        Case(
            id="scales-by-block",
            note="A scale for each head of a physical block, which moves with its first token.",
            source=_scaled(P_BASE, 4, "LBHNC"),
            target=_scaled(D_BASE, 4, "LBHNC"),
            tokens=(0, 6),
            rules=("K-7.2.1", "K-7.2.2"),
        ),
        Case(
            id="lines",
            note="One line for each request: of 16 slots the first five are used.",
            source=_lines(P_BASE, 8, 2, False),
            target=_lines(D_BASE, 8, 2, False),
            source_blocks=((3,),),
            target_blocks=((1,),),
            tokens=(0, 5),
        ),
        Case(
            id="lines-transposed",
            note="K of the producer lies by elements: rows of 16 tokens for each of four.",
            source=_lines(P_BASE, 2, 32, True),
            target=_lines(D_BASE, 8, 2, False),
            source_blocks=((3,),),
            target_blocks=((1,),),
            tokens=(0, 5),
            rules=("K-7.2.1", "K-7.4.5"),
        ),
        Case(
            id="lines-transposed-both",
            note="K lies by elements at both sides: whole rows of tokens join.",
            source=_lines(P_BASE, 2, 32, True),
            target=_lines(D_BASE, 2, 32, True),
            source_blocks=((0,),),
            target_blocks=((2,),),
            tokens=(3, 9),
        ),
        Case(
            id="layers-in-areas-of-their-own",
            note="The consumer's layers are separate pieces of memory that touch; none is crossed.",
            source=engine("BLHNC")[0],
            target=alone(layered, areas=areas),
            tokens=(0, 8),
            rules=("K-7.2.1", "K-7.2.4", "K-7.3.10"),
        ),
    ]


def shared(base: int, size: int, interleave: int, order: str = "LBHNC") -> tuple[Shard, ...]:
    """Ranks that share the tokens among them."""
    group = group_of(engine(order, base, heads_total=1)[0])
    return together(
        [
            attrs.evolve(group, context_rank=rank, context_size=size, context_interleave=interleave)
            for rank in range(size)
        ],
        base,
    )


def _contexts() -> list[Case]:
    rules = ("K-7.2.1", "K-7.3.11", "K-7.4.2")
    return [
        Case(
            id="context-to-whole",
            note="Token by token in turn: rank 1 of two writes the odd ones.",
            source=shared(P_BASE, 2, 1)[1],
            target=shared(D_BASE, 1, 1)[0],
            tokens=(0, 7),
            rules=rules,
        ),
        Case(
            id="whole-to-context",
            note="Two tokens each in turn, to rank 1 of two; a table entry spans eight tokens.",
            source=shared(P_BASE, 1, 1)[0],
            target=shared(D_BASE, 2, 2)[1],
            tokens=(1, 12),
            rules=rules,
        ),
        Case(
            id="context-to-context",
            note="Two ranks by two tokens to three ranks by one: what both hold.",
            source=shared(P_BASE, 2, 2)[0],
            target=shared(D_BASE, 3, 1, "LBNHC")[1],
            tokens=(0, 16),
            rules=rules,
        ),
        Case(
            id="context-alike",
            note="Whole blocks in turn at both sides: rank 2 to rank 2, as if it were alone.",
            source=shared(P_BASE, 3, 4)[2],
            target=shared(D_BASE, 3, 4)[2],
            tokens=(0, 24),
            rules=rules,
        ),
        Case(
            id="context-that-shares-nothing",
            note="Rank 0 and rank 1 of the same turns have no token in common: there is no part.",
            source=shared(P_BASE, 2, 4)[0],
            target=shared(D_BASE, 2, 4)[1],
            tokens=(0, 16),
            rules=(*rules, "K-7.5.2"),
        ),
        Case(
            id="context-table-starts-late",
            note="Entry 0 stands for token 8, the fifth of this rank.",
            source=shared(P_BASE, 2, 2)[1],
            target=shared(D_BASE, 1, 1)[0],
            tokens=(9, 15),
            source_first=8,
            rules=(*rules, "K-7.2.3"),
        ),
    ]
