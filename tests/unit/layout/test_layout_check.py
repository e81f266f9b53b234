"""Descriptors: what is refused, and by which field."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import Holding, RankHolding, Shard
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.limits import Limits

LIMITS = Limits()


def shard(**changes: object) -> Shard:
    settings = {
        "bases": [4096, 8192],
        "layers": ("a", "b"),
        "blocks": 4,
        "tokens_per_block": 4,
        "heads_total": 4,
        "content_bytes": 2,
    }
    return engine_shards(**(settings | changes))[0]


def with_group(whole: Shard, **changes: object) -> Shard:
    return attrs.evolve(whole, groups=(attrs.evolve(whole.groups[0], **changes),))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("planes", [("kv",), ("k", "v")])
@pytest.mark.parametrize("physical", [1, 2, 4])
def test_every_order_passes(order: str, planes: tuple, physical: int) -> None:
    check_shard(shard(order=order, planes=planes, physical_per_block=physical), LIMITS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens_per_block": 0}, "tokens_per_block"),
        ({"physical_per_block": 3}, "physical_per_block"),
        ({"physical_blocks": 0}, "physical_blocks"),
        ({"heads_total": 0}, "heads_total"),
        ({"head_stop": 0}, "head_stop"),
        ({"head_stop": 5}, "head_stop"),
        ({"layers": ()}, "layers"),
        ({"layers": ("a", "a")}, "layers"),
        ({"planes": ()}, "planes"),
        ({"stride_slot": 1}, "stride_slot"),
        ({"stride_head": 2}, "stride"),
        ({"stride_block": 8}, "stride_block"),
        ({"stride_layer": 63}, "stride_layer"),
        ({"stride_layer": 65}, "last byte"),
        ({"stride_layer": 1 << 70}, "stride_layer"),
    ],
)
def test_a_bad_group_is_refused_by_its_field(changes: dict, field: str) -> None:
    with pytest.raises(BadValue, match=field):
        check_shard(with_group(shard(), **changes), LIMITS)


def test_the_last_byte_of_the_area_may_be_used_and_no_more() -> None:
    whole = shard()
    area = whole.areas[0]
    check_shard(whole, LIMITS)
    short = attrs.evolve(whole, areas=(attrs.evolve(area, length=area.length - 1),))
    with pytest.raises(BadValue, match="last byte"):
        check_shard(short, LIMITS)


def test_planes_that_share_bytes_are_refused() -> None:
    whole = shard(planes=("k", "v"))
    k, v = whole.groups[0].planes
    with pytest.raises(BadValue, match="share no byte"):
        check_shard(with_group(whole, planes=(k, attrs.evolve(v, offset=k.offset + 1))), LIMITS)


def test_k_and_v_pages_inside_one_block_pass() -> None:
    """vLLM 0.24's (block, K or V, ...): the plane axis lies inside the block axis."""
    whole = shard(planes=("k", "v"))
    k, v = whole.groups[0].planes
    page = 2 * 4 * 2
    inside = with_group(
        whole,
        planes=(k, attrs.evolve(v, offset=page)),
        stride_block=2 * page,
        stride_layer=4 * 2 * page,
    )
    check_shard(inside, LIMITS)


def test_a_shard_must_find_itself_in_the_rank_map() -> None:
    whole = shard()
    with pytest.raises(BadValue, match="own rank"):
        check_shard(attrs.evolve(whole, rank=7), LIMITS)
    other = Holding(group="kv", head_start=0, head_stop=4, layers=("a", "b"))
    ranks = (RankHolding(rank=0, holdings=(other,)), whole.ranks[1])
    with pytest.raises(BadValue, match="own groups"):
        check_shard(attrs.evolve(whole, ranks=ranks), LIMITS)


@pytest.mark.parametrize("order", ORDERS)
def test_plain_form_round_trips(order: str) -> None:
    whole = shard(order=order, planes=("k", "v"), null_block=0)
    assert shard_from_plain(shard_to_plain(whole), LIMITS) == whole


def test_unknown_keys_of_a_newer_version_are_skipped() -> None:
    plain = shard_to_plain(shard())
    plain["later"] = {"x": 1}
    plain["groups"][0]["later"] = 2
    assert shard_from_plain(plain, LIMITS) == shard()


SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(ANYTHING)
def test_any_object_gives_a_shard_or_a_remote_fault(obj: object) -> None:
    with pytest.raises(RemoteFault):
        shard_from_plain(obj, LIMITS)


def paths(obj: object, prefix: tuple = ()) -> list[tuple]:
    found = []
    items = obj.items() if isinstance(obj, dict) else enumerate(obj)  # type: ignore[union-attr]
    for key, value in items:
        found.append((*prefix, key))
        if isinstance(value, dict | list):
            found += paths(value, (*prefix, key))
    return found


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_one_wrong_value_anywhere_never_escapes(data: st.DataObject) -> None:
    plain = shard_to_plain(shard(planes=("k", "v"), null_block=0))
    path = data.draw(st.sampled_from(paths(plain)))
    place = plain
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(ANYTHING)
    try:
        found = shard_from_plain(plain, LIMITS)
    except RemoteFault:
        return
    check_shard(found, LIMITS)
