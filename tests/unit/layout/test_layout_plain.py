"""The descriptor on its way over the wire: nothing lost, nothing believed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kvxfer.errors import RemoteFault
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.limits import Limits

LIMITS = Limits()
SHARD = engine_shards(
    bases=[4096, 1 << 63],
    layers=("a", "b"),
    blocks=3,
    tokens_per_block=4,
    heads_total=2,
    content_bytes=8,
    planes=("k", "v"),
    null_block=0,
)[1]


def plain(**changes: Any) -> dict[str, Any]:
    return shard_to_plain(SHARD) | changes


def only_plain(value: object) -> bool:
    if type(value) is dict:
        return all(type(key) is str and only_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(only_plain(item) for item in value)
    return value is None or type(value) in (str, int)


def test_round_trip() -> None:
    assert only_plain(plain())
    assert shard_from_plain(plain(), LIMITS) == SHARD
    no_null = attrs.evolve(SHARD, groups=(attrs.evolve(SHARD.groups[0], null_block=None),))
    assert shard_from_plain(shard_to_plain(no_null), LIMITS) == no_null


def test_keys_of_a_newer_version_are_skipped() -> None:
    assert shard_from_plain(plain(colour="green"), LIMITS) == SHARD


def deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


NO_NUMBERS = {
    "bool": True,
    "negative": -1,
    "65 bits": 1 << 64,
    "longer than Python prints": 10**5000,
    "long and negative": -(10**5000),
    "float": 1.0,
    "text": "1",
    "bytes": b"1",
    "nothing": None,
    "list": [],
    "map": {},
    "deeper than Python prints": deep(),
}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS.keys())
def test_numbers_are_numbers_of_64_bits(value: object) -> None:
    with pytest.raises(RemoteFault) as caught:
        shard_from_plain(plain(rank=value), LIMITS)
    assert caught.value.field == "shard.rank"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("obj", [None, [], "shard", 7, b"", {}, object()])
def test_no_map_no_shard(obj: object) -> None:
    with pytest.raises(RemoteFault):
        shard_from_plain(obj, LIMITS)


@pytest.mark.parametrize("kind", [0, 6, 1 << 63])
def test_unregistered_group_kind(kind: int) -> None:
    group = plain()["groups"][0] | {"kind": kind}
    with pytest.raises(RemoteFault, match=r"group\.kind"):
        shard_from_plain(plain(groups=[group]), LIMITS)


@pytest.mark.parametrize("name", ["", "x" * 513, 5, None])
def test_text_is_bounded(name: object) -> None:
    group = plain()["groups"][0] | {"name": name}
    with pytest.raises(RemoteFault, match=r"groups\[0\]\.name"):
        shard_from_plain(plain(groups=[group]), LIMITS)


def test_lists_are_bounded_before_they_are_read() -> None:
    with pytest.raises(RemoteFault, match="at most 4096 items"):
        shard_from_plain(plain(ranks=[0] * 4097), LIMITS)


def test_a_shard_that_contradicts_itself_is_the_peers_fault() -> None:
    group = plain()["groups"][0] | {"physical_blocks": 1 << 39}
    with pytest.raises(RemoteFault, match=r"groups\[0\]\.planes\[0\]"):
        shard_from_plain(plain(groups=[group]), LIMITS)
