"""What has no description is refused, with the layer, the number or NxDI's name of it."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from neuron_caches import PLAIN, Tensor, nxdi_cache, paged_cache

from kvxfer.driver import Memory
from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.geometry import GroupKind
from kvxfer_neuron import (
    Elements,
    NxdiCache,
    Order,
    Place,
    Placed,
    blocks_per_line,
    describe_nxdi,
    describe_paged,
    line_of,
    line_table,
    own_holding,
    place,
    pseudo_blocks,
    with_ranks,
)
from kvxfer_vllm.cache_groups import CacheGroup

GROUP = CacheGroup(layers=("a", "b"), tokens_per_block=4, manager_blocks=3)
SHAPE = (2, 3, 2, 4, 5)


def placed(shape: tuple[int, ...] = SHAPE, layer: str = "a") -> Placed:
    return place(layer, Tensor(np.zeros(shape, np.uint16)))


def paged(second: Placed | None = None, group: CacheGroup = GROUP, **changes: Any) -> Any:
    first = attrs.evolve(placed(), **changes)
    caches = {"a": first, "b": second or placed(layer="b")}
    return describe_paged(caches, (group,), Place.alone(2), PLAIN)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 3, 2, 20), r"expected \(2, blocks, heads, tokens, dim\)"),
        ((3, 3, 2, 4, 5), r"expected \(2, blocks, heads, tokens, dim\)"),
        ((2, 3, 2, 2, 2, 5), r"expected \(2, blocks, heads, tokens, dim\)"),
        ((2, 3, 1, 4, 5), "1 heads, and rank 0 holds heads 0 to 1"),
        ((2, 2, 2, 4, 5), "2 blocks, 3 needed"),
    ],
)
def test_shapes_of_another_engine(shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(LayoutMismatch, match=text):
        describe_paged(
            {"a": placed(shape), "b": placed(shape, "b")}, (GROUP,), Place.alone(2), PLAIN
        )


def test_layers_that_differ() -> None:
    with pytest.raises(LayoutMismatch, match="cache of b: shape is"):
        paged(placed((2, 4, 2, 4, 5), "b"))
    with pytest.raises(LayoutMismatch, match="cache of b: dtype is uint16, that of a is int16"):
        paged(dtype="int16")
    with pytest.raises(LayoutMismatch, match=r"layers \['b'\]"):
        describe_paged({"a": placed()}, (GROUP,), Place.alone(2), PLAIN)


def test_elements_that_do_not_lie_side_by_side() -> None:
    wide = place("a", Tensor(np.zeros((*SHAPE[:-1], 10), np.uint16)[..., ::2]))
    with pytest.raises(LayoutMismatch, match="elements are 4 bytes apart"):
        describe_paged({"a": wide, "b": wide}, (GROUP,), Place.alone(2), PLAIN)


def test_packed_pages_with_gaps() -> None:
    gaps = place("a", Tensor(np.zeros((2, 3, 2, 4, 8), np.uint16)[..., :5]))
    packed = attrs.evolve(PLAIN, packing="fp8_packed_kv")
    with pytest.raises(LayoutMismatch, match="16 bytes apart, not 10"):
        describe_paged({"a": gaps, "b": gaps}, (GROUP,), Place.alone(2), packed)


def test_kinds_and_block_sizes() -> None:
    with pytest.raises(LayoutMismatch, match="kind STATE: FULL and WINDOW are served"):
        paged(group=attrs.evolve(GROUP, kind=GroupKind.STATE))
    with pytest.raises(BadValue, match="block_size = 6: a multiple of 4 cache slots"):
        paged(group=attrs.evolve(GROUP, tokens_per_block=6))


def test_layers_that_share_a_cache_are_described_once() -> None:
    shared = placed()
    caches = {"a": shared, "b": attrs.evolve(shared, name="b")}
    shard, memories = describe_paged(caches, (GROUP,), Place.alone(2), PLAIN)
    assert shard.groups[0].layers == ("a",)
    assert len(memories) == 1


def test_layers_that_no_single_step_describes() -> None:
    pool = np.zeros((4, *SHAPE), np.uint16)
    caches = {name: place(name, Tensor(pool[at])) for name, at in zip("abc", (0, 1, 3))}
    group = attrs.evolve(GROUP, layers=("a", "b", "c"))
    with pytest.raises(LayoutMismatch, match="plane 'k': layers are spaced unevenly"):
        describe_paged(caches, (group,), Place.alone(2), PLAIN)
    apart = {"a": place("a", Tensor(pool[1])), "b": placed(layer="b")}
    with pytest.raises(LayoutMismatch, match="start at different offsets"):
        describe_paged(apart, (GROUP,), Place.alone(2), PLAIN)


def test_one_address_with_two_lengths() -> None:
    first = placed()
    short = Memory(base=first.memory.base, length=8)
    second = attrs.evolve(first, name="b", address=first.address + 2, memory=short)
    with pytest.raises(LayoutMismatch, match="another in"):
        describe_paged({"a": first, "b": second}, (GROUP,), Place.alone(2), PLAIN)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"left_padding": True}, "padding_side = left"),
        ({"sliding_window": 512}, "sliding_window = 512"),
        ({"flash_decoding": True}, "flash_decoding_enabled"),
    ],
)
def test_lines_that_are_not_served(option: dict[str, Any], text: str) -> None:
    key = {"a": placed((2, 2, 8, 4))}
    with pytest.raises(LayoutMismatch, match=text):
        describe_nxdi(key, key, NxdiCache(usable=2, **option), Place.alone(2), PLAIN)


def test_pairs_of_tensors_that_do_not_fit() -> None:
    line, short = placed((2, 2, 8, 4)), placed((2, 2, 6, 4))
    cache, alone = NxdiCache(usable=2), Place.alone(2)
    with pytest.raises(LayoutMismatch, match="K has 8 tokens, V 6"):
        describe_nxdi({"a": line}, {"a": short}, cache, alone, PLAIN)
    with pytest.raises(LayoutMismatch, match=r"\['b'\]"):
        describe_nxdi({"a": line}, {"a": line, "b": line}, cache, alone, PLAIN)
    with pytest.raises(LayoutMismatch, match="no layer"):
        describe_nxdi({}, {}, cache, alone, PLAIN)
    with pytest.raises(BadValue, match="usable = 3: from 1 to 2"):
        describe_nxdi({"a": line}, {"a": line}, NxdiCache(usable=3), alone, PLAIN)
    with pytest.raises(LayoutMismatch, match="2 heads, and rank 0 holds heads 0 to 2"):
        describe_nxdi({"a": line}, {"a": line}, cache, Place.alone(3), PLAIN)


def test_a_tiled_axis_with_gaps() -> None:
    tiles = np.zeros((2, 2, 4, 5, 4), np.uint16)[:, :, :, :2]
    line = place("a", Tensor(tiles))
    with pytest.raises(LayoutMismatch, match="tiled axis 2 has a stride of 40 bytes, not 16"):
        describe_nxdi({"a": line}, {"a": line}, NxdiCache(usable=2), Place.alone(2), PLAIN)


def test_fp8_says_what_its_scales_are() -> None:
    assert Elements(dtype="bfloat16").fingerprint == "bfloat16"
    with pytest.raises(BadValue, match="scales = '': the convention of scales"):
        _ = Elements(dtype="float8_e4m3fn").fingerprint


def test_a_map_that_another_rank_made_up() -> None:
    shard = paged_cache(layers=("a",), blocks=3, heads=2, tokens=4, dim=5).shard
    other = attrs.evolve(own_holding(shard), rank=1)
    assert with_ranks(shard, [other, own_holding(shard)]).ranks[1] == other
    with pytest.raises(BadValue, match=r"ranks = \[1\]: holding what rank 0 itself holds"):
        with_ranks(shard, [other])


def test_pseudo_blocks_of_a_line() -> None:
    per_line = blocks_per_line(17, 4)
    assert per_line == 5
    assert list(pseudo_blocks(3, per_line, 2)) == [15, 16]
    assert line_of([15, 16], per_line) == 3
    assert line_table(3).blocks.tolist() == [3]
    for ids in ([], [16], [15, 17], [16, 15], [15, 16, 17, 18, 19, 20]):
        with pytest.raises(LayoutMismatch):
            line_of(ids, per_line)
    with pytest.raises(BadValue, match="count = 6"):
        pseudo_blocks(3, per_line, 6)
    with pytest.raises(BadValue, match="block_tokens = 0"):
        blocks_per_line(17, 0)


def test_spare_lines_and_the_sink_are_outside_the_pool() -> None:
    form: dict[str, Any] = {"layers": ("a",), "heads": 1, "tokens": 8, "dim": 2}
    lines = nxdi_cache(Order.LINES, **form, usable=2, spare=1)
    blocks = nxdi_cache(Order.BLOCKS_NHD, **form, usable=5, spare=1)
    assert lines.arrays["a"][0].shape[0] == 3
    assert [c.shard.groups[0].physical_blocks for c in (lines, blocks)] == [2, 5]
