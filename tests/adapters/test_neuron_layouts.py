"""Every layout that Neuron engines have, element by element, against the engine's own indices."""

from __future__ import annotations

import ctypes
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuron_caches import PLAIN, TILE, Cache, numbered, nxdi_cache, paged_cache

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.check import check_shard
from kvxfer.layout.coverage import check_exactly_once
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, GroupKind
from kvxfer.layout.match import check_alike
from kvxfer.layout.naive import address, naive_plan
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits
from kvxfer_neuron import Elements, Order, Place, own_holding, with_ranks

EXACT = settings(max_examples=40, deadline=None, derandomize=True)
NXDI = [
    (order, tiled, more)
    for order in Order
    for tiled in (False, True)
    for more in (0, TILE)
    if not (order is Order.BLOCKS_HND and tiled)
]
"""Order, tiled or not, longer by so many tokens (NxDI: 128 when sequence ids are masked)."""
KINDS = ["paged", *NXDI]


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    names = ("l2", "l0", "l1")[: draw(st.integers(1, 3))]
    return {"layers": names, "heads": draw(st.integers(1, 3)), "dim": draw(st.integers(1, 4))}


@st.composite
def caches(draw: st.DrawFn, kind: Any, model: dict[str, Any]) -> tuple[Cache, list[int]]:
    """A cache of that kind with room for 12 tokens, and the blocks of a request in it."""
    if kind == "paged":
        physical = draw(st.sampled_from([1, 1, 2]))
        tokens = physical * draw(st.sampled_from([1, 2, 3, 4]))
        blocks = -(-12 // tokens) + draw(st.integers(1, 2))
        pooled = draw(st.booleans())
        cache = paged_cache(**model, blocks=blocks, tokens=tokens, physical=physical, pooled=pooled)
        first = 1
    else:
        order, tiled, more = kind
        is_line = order in (Order.LINES, Order.LINES_KEY_TRANSPOSED)
        tokens = 12 + more if is_line else TILE * draw(st.sampled_from([1, 2]))
        blocks = draw(st.integers(1, 3)) + (0 if is_line else -(-12 // tokens))
        cache = nxdi_cache(
            order, **model, usable=blocks, spare=draw(st.integers(0, 2)), tokens=tokens, tiled=tiled
        )
        first = 0
    ids = draw(st.permutations(range(first, blocks)))
    return cache, ids[: 1 if cache.is_line else -(-12 // tokens)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@EXACT
@given(st.data())
def test_every_element_is_where_the_engine_reads_it(kind: Any, data: st.DataObject) -> None:
    model = data.draw(models())
    cache, blocks = data.draw(caches(kind, model))
    check_shard(cache.shard, Limits())
    table = cache.table(blocks)
    for layer, pair in cache.arrays.items():
        for plane, array in enumerate(pair):
            numbers = cache.readers[plane](numbered(array), blocks)
            for token, head, element in np.ndindex(12, model["heads"], model["dim"]):
                real = int(array.ctypes.data) + 2 * int(numbers[token, head, element])
                found = address(cache.shard, table, "kv"[plane], layer, token, head, 2 * element)
                assert found == real, (layer, plane, token, head, element)


@pytest.mark.parametrize("producer", KINDS, ids=str)
@EXACT
@given(st.data())
def test_a_request_moves_between_any_two_and_nothing_else_changes(
    producer: Any, data: st.DataObject
) -> None:
    """Two oracles: the byte-by-byte plan, and what each engine reads of its own arrays."""
    model = data.draw(models())
    src, here = data.draw(caches(producer, model))
    dst, there = data.draw(caches(data.draw(st.sampled_from(KINDS)), model))
    stop = data.draw(st.integers(1, 12))
    start = data.draw(st.integers(0, stop - 1))
    src.fill(1)
    dst.fill(2)
    wanted = {
        (layer, plane): src.read(layer, plane, here)[start:stop].copy()
        for layer in src.arrays
        for plane in (0, 1)
    }
    before = {layer: [array.copy() for array in pair] for layer, pair in dst.arrays.items()}
    source, target = src.table(here), dst.table(there)
    (edge,) = edges_between(src.shard, dst.shard)
    plan = EdgeGeometry.build(src.shard, dst.shard, edge).plan(source, target, start, stop)
    check_exactly_once(dst.shard, target, start, stop, [plan])
    moved = {}
    for at, to, size in zip(*(c.tolist() for c in (plan.src, plan.dst, plan.length)), strict=True):
        ctypes.memmove(to, at, size)
        moved |= {to + i: at + i for i in range(size)}
    assert moved == naive_plan(src.shard, dst.shard, source, target, start, stop)
    for (layer, plane), tokens in wanted.items():
        got = dst.read(layer, plane, there)
        assert np.array_equal(got[start:stop], tokens)
        # Every element that is not one of these tokens is as it was.
        numbers = dst.readers[plane](numbered(dst.arrays[layer][plane]), there)[start:stop]
        kept = before[layer][plane]
        touched = np.isin(numbered(kept), numbers)
        assert np.array_equal(dst.arrays[layer][plane][~touched], kept[~touched])


def test_packed_pages_are_opaque_and_pair_only_with_their_like() -> None:
    form: dict[str, Any] = {"layers": ("a",), "blocks": 4, "heads": 2, "tokens": 4, "dim": 3}
    packed = Elements(dtype="float8_e4m3fn", scales="e4m3-240 per-module", packing="fp8_packed_kv")
    one = paged_cache(**form, elements=packed).shard
    check_shard(one, Limits())
    (group,) = one.groups
    assert group.kind is GroupKind.PAGE
    assert {plane.content_bytes for plane in group.planes} == {4 * 3 * 2}
    check_alike(group, group)
    plain = paged_cache(**form, elements=attrs.evolve(packed, packing="")).shard.groups[0]
    other = paged_cache(**form, elements=attrs.evolve(packed, scales="e4m3-448")).shard.groups[0]
    with pytest.raises(LayoutMismatch, match="kind is PAGE"):
        check_alike(group, plain)
    with pytest.raises(LayoutMismatch, match="e4m3-240 per-module"):
        check_alike(group, other)


@EXACT
@given(st.data())
def test_packed_pages_move_whole(data: st.DataObject) -> None:
    packed = attrs.evolve(PLAIN, packing="fp8_packed_kv")
    form: dict[str, Any] = {"layers": ("a", "b"), "heads": 2, "tokens": 4, "dim": 3}
    src, dst = (paged_cache(**form, blocks=n, elements=packed) for n in (5, 4))
    here = data.draw(st.permutations(range(1, 5)))[:3]
    there = data.draw(st.permutations(range(1, 4)))[:3]
    src.fill(1)
    (edge,) = edges_between(src.shard, dst.shard)
    plan = EdgeGeometry.build(src.shard, dst.shard, edge).plan(
        src.table(here), dst.table(there), 0, 12
    )
    for at, to, size in zip(*(c.tolist() for c in (plan.src, plan.dst, plan.length)), strict=True):
        ctypes.memmove(to, at, size)
    for layer, pair in dst.arrays.items():
        for plane, array in enumerate(pair):
            assert np.array_equal(array[there], src.arrays[layer][plane][here])


def test_a_window_moves_its_last_tokens_only() -> None:
    cache = paged_cache(
        layers=("a",),
        blocks=4,
        heads=1,
        tokens=4,
        dim=2,
        name="window.0",
        kind=GroupKind.WINDOW,
        reach=5,
    )
    check_shard(cache.shard, Limits())
    assert (cache.shard.groups[0].kind, cache.shard.groups[0].reach) == (GroupKind.WINDOW, 5)


@EXACT
@given(st.data())
def test_heads_and_tokens_lie_where_the_exchanged_map_says(data: st.DataObject) -> None:
    """Ranks in any order, replicas of heads, blocks interleaved over context ranks."""
    engines = []
    for _ in range(2):
        replicas, context = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
        tokens = data.draw(st.sampled_from([2, 4]))
        kinds = [
            (head, part) for head in (0, 1) for part in range(context) for _ in range(replicas)
        ]
        engines.append(_ranked(data.draw(st.permutations(kinds)), context, tokens))
    (sources, here), (targets, there) = engines
    stop = data.draw(st.integers(1, 12))
    edges = edges_between(sources[0].shard, targets[0].shard)
    for shard in (target.shard for target in targets):
        plans, moved = [], {}
        for edge in (edge for edge in edges if edge.consumer_rank == shard.rank):
            source = sources[edge.producer_rank].shard
            plan = EdgeGeometry.build(source, shard, edge).plan(here, there, 0, stop)
            plans.append(plan)
            pairs = naive_plan(source, shard, here, there, 0, stop)
            assert plan.bytes_total == len(pairs)
            columns = (column.tolist() for column in (plan.src, plan.dst, plan.length))
            for at, to, size in zip(*columns, strict=True):
                moved |= {to + i: at + i for i in range(size)}
                assert all(pairs[to + i] == at + i for i in range(size))
        check_exactly_once(shard, there, 0, stop, plans)


def _ranked(
    kinds: list[tuple[int, int]], context: int, tokens: int
) -> tuple[list[Cache], BlockTable]:
    """Caches of an engine whose rank r holds head and context part kinds[r]."""
    caches: list[Cache] = []
    for rank, (head, part) in enumerate(kinds):
        place = Place(
            rank=rank,
            heads_total=2,
            head_start=head,
            head_stop=head + 1,
            context_rank=part,
            context_size=context,
            context_interleave=tokens,
        )
        form: dict[str, Any] = {"layers": ("a",), "blocks": 7, "heads": 1, "dim": 2}
        caches.append(paged_cache(**form, tokens=tokens, rank=place))
    gathered = [own_holding(cache.shard) for cache in reversed(caches)]
    table = BlockTable(group=0, first_token=0, blocks=np.arange(1, 7, dtype=np.int64))
    return [attrs.evolve(cache, shard=with_ranks(cache.shard, gathered)) for cache in caches], table
