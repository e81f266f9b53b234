"""What a descriptor may not say, field by field."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from kvxfer.errors import BadValue
from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import Area, Holding, Plane, RankHolding, Shard
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.limits import Limits

LIMITS = Limits()


def shard(**other: Any) -> Shard:
    fields: dict[str, Any] = {
        "bases": [4096],
        "layers": ("a", "b"),
        "blocks": 6,
        "tokens_per_block": 4,
        "physical_per_block": 2,
        "heads_total": 2,
        "content_bytes": 8,
        "planes": ("k", "v"),
    }
    return engine_shards(**(fields | other))[0]


def group(**changes: Any) -> Shard:
    good = shard()
    return attrs.evolve(good, groups=(attrs.evolve(good.groups[0], **changes),))


def refused(bad: Shard) -> str:
    with pytest.raises(BadValue) as caught:
        check_shard(bad, LIMITS)
    return caught.value.field


@pytest.mark.parametrize("order", [*ORDERS, "LBPHNC", "BPLHNC", "LBHNPC", "BHPLNC"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_order_passes(order: str, ranks: int) -> None:
    for one in engine_shards(
        bases=[1 << 20] * ranks,
        order=order,
        layers=("a", "b"),
        blocks=3,
        tokens_per_block=4,
        heads_total=6,
        content_bytes=2,
        planes=("k", "v"),
    ):
        check_shard(one, LIMITS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens_per_block": 0}, "groups[0].tokens_per_block"),
        ({"physical_per_block": 3}, "groups[0].physical_per_block"),
        ({"physical_blocks": 11}, "groups[0].physical_blocks"),
        ({"physical_blocks": 14}, "groups[0].planes[0] stride_layer"),
        ({"head_start": 2}, "groups[0].head_start"),
        ({"head_stop": 3}, "groups[0].head_stop"),
        ({"heads_total": 1}, "groups[0].head_stop"),
        ({"layers": ()}, "groups[0].layers"),
        ({"layers": ("a", "a")}, "groups[0].layers"),
        ({"planes": ()}, "groups[0].planes"),
        ({"null_block": 6}, "groups[0].null_block"),
        ({"null_block": -1}, "groups[0].null_block"),
        ({"stride_slot": 7}, "groups[0].planes[0] stride_slot"),
        ({"stride_head": 8}, "groups[0].planes[0] stride_slot"),
        ({"stride_block": 0}, "groups[0].planes[0] stride_block"),
        ({"stride_layer": 1 << 64}, "groups[0].stride_layer"),
        ({"stride_layer": 1 << 30}, "groups[0].planes[0] last byte"),
        ({"stride_layer": True}, "groups[0].stride_layer"),
        ({"stride_layer": np.int64(512)}, "groups[0].stride_layer"),
    ],
)
def test_bad_groups(changes: dict[str, Any], field: str) -> None:
    assert refused(group(**changes)) == field


def test_the_last_byte_may_touch_the_end_of_the_area() -> None:
    good = shard()
    check_shard(good, LIMITS)
    area = attrs.evolve(good.areas[0], length=good.areas[0].length - 1)
    assert refused(attrs.evolve(good, areas=(area,))) == "groups[0].planes[1] last byte"


def test_an_area_ends_inside_the_64_bit_space() -> None:
    area = Area(base=(1 << 64) - 10, length=10)
    assert refused(attrs.evolve(shard(), areas=(area,))) == "areas[0].length"


def planes(*offsets_and_areas: tuple[int, int]) -> Shard:
    good = shard()
    made = tuple(
        Plane(name=f"p{n}", area=area, offset=offset, content_bytes=8)
        for n, (offset, area) in enumerate(offsets_and_areas)
    )
    area = Area(base=4096, length=1 << 20)
    changed = attrs.evolve(good.groups[0], planes=made)
    return attrs.evolve(good, areas=(area, area), groups=(changed,))


@pytest.mark.parametrize("offset", [0, 4, 8, 384, 767])
def test_planes_over_each_other(offset: int) -> None:
    """One plane of this shard spans 2 layers x 12 blocks x 2 heads x 2 slots x 8 = 768 bytes."""
    assert refused(planes((0, 0), (offset, 0))) == "groups[0].planes"


def test_planes_over_each_other_through_two_areas() -> None:
    check_shard(planes((0, 0), (768, 1)), LIMITS)
    assert refused(planes((0, 0), (0, 1))) == "groups[0].planes"


def test_the_third_plane_counts_too() -> None:
    check_shard(planes((0, 0), (768, 0), (1536, 0)), LIMITS)
    assert refused(planes((0, 0), (768, 0), (1400, 0))) == "groups[0].planes"


def test_interleaved_planes_need_room_on_the_outer_axes() -> None:
    """K and V side by side: a slot must step over both heads of both planes."""
    side_by_side = planes((0, 0), (8, 0))
    wide = attrs.evolve(
        side_by_side.groups[0],
        stride_head=16,
        stride_slot=32,
        stride_block=64,
        stride_layer=12 * 64,
    )
    check_shard(attrs.evolve(side_by_side, groups=(wide,)), LIMITS)
    # Each plane alone would fit into a slot step of 24, but K of slot 1 would lie on V of slot 0.
    tight = attrs.evolve(wide, stride_slot=24)
    assert refused(attrs.evolve(side_by_side, groups=(tight,))) == "groups[0].planes"


def test_plane_names_are_unique() -> None:
    good = shard().groups[0].planes
    assert refused(group(planes=(good[0], attrs.evolve(good[1], name="k")))) == "groups[0].planes"
    assert refused(group(planes=(attrs.evolve(good[0], area=1),))) == "groups[0].planes[0].area"
    assert (
        refused(group(planes=(attrs.evolve(good[0], content_bytes=0),)))
        == "groups[0].planes[0].content_bytes"
    )


def rank_map(*entries: RankHolding) -> Shard:
    return attrs.evolve(shard(), ranks=entries)


OWN = shard().ranks[0]
HELD = OWN.holdings[0]


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ((), "shard.ranks"),
        ((RankHolding(rank=1, holdings=(HELD,)),), "ranks"),
        ((OWN, OWN), "ranks"),
        ((attrs.evolve(OWN, holdings=()),), "ranks: own holdings"),
        (
            (attrs.evolve(OWN, holdings=(attrs.evolve(HELD, head_stop=1),)),),
            "ranks: own holdings[0].head_stop",
        ),
        (
            (attrs.evolve(OWN, holdings=(attrs.evolve(HELD, layers=("b", "a")),)),),
            "ranks: own holdings[0].layers",
        ),
        ((OWN, RankHolding(rank=1, holdings=(HELD, HELD))), "ranks[1].holdings"),
        (
            (OWN, RankHolding(rank=1, holdings=(attrs.evolve(HELD, head_stop=9),))),
            "ranks[1].holdings 'kv' head_stop",
        ),
        (
            (OWN, RankHolding(rank=1, holdings=(attrs.evolve(HELD, layers=("a", "a")),))),
            "ranks[1].holdings 'kv' layers",
        ),
        (
            (OWN, RankHolding(rank=1, holdings=(attrs.evolve(HELD, head_start=2),))),
            "ranks[1].holdings 'kv' head_start",
        ),
        ((OWN, RankHolding(rank=-1, holdings=())), "ranks[1].rank"),
    ],
)
def test_bad_rank_maps(entries: tuple[RankHolding, ...], field: str) -> None:
    assert refused(rank_map(*entries)) == field


def test_other_ranks_may_hold_other_groups_or_nothing() -> None:
    other = Holding(group="window", head_start=0, head_stop=64, layers=("z",))
    check_shard(
        rank_map(OWN, RankHolding(rank=1, holdings=(other,)), RankHolding(rank=2, holdings=())),
        LIMITS,
    )


def test_limits_bound_the_lists() -> None:
    good = shard()
    with pytest.raises(BadValue, match="layers"):
        check_shard(good, Limits(layers_max=1))
    two = attrs.evolve(good, ranks=(OWN, RankHolding(rank=1, holdings=())))
    with pytest.raises(BadValue, match="ranks"):
        check_shard(two, Limits(ranks_per_engine_max=1))
