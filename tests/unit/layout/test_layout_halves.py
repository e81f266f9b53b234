"""One plane of K beside V, described as two: the same bytes at the same addresses."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.check import check_shard
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.halves import with_halves
from kvxfer.layout.naive import address
from kvxfer.layout.orders import ORDERS, engine_shards
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

TABLE = BlockTable(group=0, first_token=0, blocks=np.array([2, 1], np.int64))


def shard(order: str, content_bytes: int = 6, planes: tuple[str, ...] = ("kv",)) -> Shard:
    counts = {"heads": 2, "tokens_per_block": 3, "content_bytes": content_bytes, "blocks": 4}
    counts["heads_total"] = counts.pop("heads")
    (made,) = engine_shards(
        bases=[4096], order=order, layers=("a", "b"), **counts, planes=planes, null_block=0
    )
    return made


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sampled_from(ORDERS), st.integers(1, 4))
def test_every_byte_stays_where_it_was(order: str, half: int) -> None:
    whole = shard(order, 2 * half)
    halves = with_halves(whole)
    check_shard(halves, Limits())
    for layer in ("a", "b"):
        for token in range(6):
            for head in (0, 1):
                for byte in range(2 * half):
                    at = address(whole, TABLE, "kv", layer, token, head, byte)
                    plane, inside = ("k", byte) if byte < half else ("v", byte - half)
                    assert address(halves, TABLE, plane, layer, token, head, inside) == at


def test_two_engines_that_both_split_need_no_more_ranges() -> None:
    here, there = shard("LBHNC"), shard("BLHNC")
    counts = []
    for pair in ((here, there), tuple(with_halves(one) for one in (here, there))):
        (edge,) = edges_between(*pair)
        counts.append(EdgeGeometry.build(*pair, edge).plan(TABLE, TABLE, 0, 6).descriptor_count)
    assert counts[0] == counts[1]


def test_what_has_no_halves() -> None:
    split = shard("LBHNC", planes=("k", "v"))
    assert with_halves(split) == split
    with pytest.raises(LayoutMismatch, match="slot of 5 bytes"):
        with_halves(shard("LBHNC", 5))
    group = shard("LBHNC").groups[0]
    parted = attrs.evolve(group, planes=(attrs.evolve(group.planes[0], element_bytes=2),))
    with pytest.raises(LayoutMismatch, match="in elements of 2"):
        with_halves(attrs.evolve(shard("LBHNC"), groups=(parted,)))
