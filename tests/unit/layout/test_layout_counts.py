"""How many of everything a descriptor may name, on both sides of each bound."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import Area, Plane, RankHolding, Shard
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.limits import Limits

LIMITS = Limits()
(GOOD,) = engine_shards(
    bases=[4096],
    layers=("a",),
    blocks=2,
    tokens_per_block=2,
    heads_total=1,
    content_bytes=1,
)
GROUP = GOOD.groups[0]


def areas(count: int) -> Shard:
    more = tuple(Area(base=1 << 20, length=1) for _ in range(count - 1))
    return attrs.evolve(GOOD, areas=(GOOD.areas[0], *more)[:count])


def groups(count: int) -> Shard:
    """Groups side by side in one large area."""
    size = 4
    made = tuple(
        attrs.evolve(GROUP, name=f"g{n}", planes=(attrs.evolve(GROUP.planes[0], offset=n * size),))
        for n in range(count)
    )
    own = attrs.evolve(
        GOOD.ranks[0],
        holdings=tuple(attrs.evolve(GOOD.ranks[0].holdings[0], group=g.name) for g in made),
    )
    area = Area(base=4096, length=max(1, count) * size)
    return attrs.evolve(GOOD, areas=(area,), groups=made, ranks=(own,))


def ranks(count: int) -> Shard:
    others = tuple(RankHolding(rank=n + 1, holdings=()) for n in range(count - 1))
    return attrs.evolve(GOOD, ranks=(GOOD.ranks[0], *others)[:count])


def planes(count: int) -> Shard:
    made = tuple(Plane(name=f"p{n}", area=0, offset=4 * n, content_bytes=1) for n in range(count))
    area = Area(base=4096, length=4 * max(1, count))
    return attrs.evolve(GOOD, areas=(area,), groups=(attrs.evolve(GROUP, planes=made),))


def layers(count: int) -> Shard:
    names = tuple(f"l{n}" for n in range(count))
    group = attrs.evolve(GROUP, layers=names, stride_layer=4)
    own = attrs.evolve(
        GOOD.ranks[0], holdings=(attrs.evolve(GOOD.ranks[0].holdings[0], layers=names),)
    )
    area = Area(base=4096, length=4 * max(1, count))
    return attrs.evolve(GOOD, areas=(area,), groups=(group,), ranks=(own,))


@pytest.mark.parametrize(
    ("make", "high"), [(areas, 256), (groups, 64), (ranks, 4096), (planes, 8), (layers, 4096)]
)
def test_counts_are_bounded_on_both_sides(make: Any, high: int) -> None:
    for count in (1, high):
        check_shard(make(count), LIMITS)
        assert shard_from_plain(shard_to_plain(make(count)), LIMITS) == make(count)
    for count in (0, high + 1):
        with pytest.raises(BadValue):
            check_shard(make(count), LIMITS)
        with pytest.raises(RemoteFault):
            shard_from_plain(shard_to_plain(make(count)), LIMITS)


def test_an_area_has_a_byte_and_an_end() -> None:
    for area in (Area(base=4096, length=0), Area(base=(1 << 64) - 4, length=5)):
        with pytest.raises(BadValue, match="length"):
            check_shard(attrs.evolve(GOOD, areas=(area,)), LIMITS)
    # Two layers of two slots: the last byte of the address space may be used.
    high = Area(base=(1 << 64) - 1 - 4, length=4)
    check_shard(attrs.evolve(GOOD, areas=(high,)), LIMITS)


@pytest.mark.parametrize(
    "field", ["tokens_per_block", "physical_per_block", "physical_blocks", "heads_total"]
)
@pytest.mark.parametrize("value", [0, (1 << 40) + 1])
def test_counts_end_at_2_to_the_40(field: str, value: int) -> None:
    changed = attrs.evolve(GOOD, groups=(attrs.evolve(GROUP, **{field: value}),))
    with pytest.raises(BadValue, match=field):
        check_shard(changed, LIMITS)
    plane = attrs.evolve(GROUP.planes[0], content_bytes=value)
    with pytest.raises(BadValue, match="content_bytes"):
        check_shard(attrs.evolve(GOOD, groups=(attrs.evolve(GROUP, planes=(plane,)),)), LIMITS)
