"""The layout descriptor is read from shapes, strides and addresses of tensor views."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.check import check_shard
from kvxfer.limits import Limits
from kvxfer_vllm.geometry import CacheGroup, cache_group, describe_caches


@attrs.frozen
class Storage:
    base: int
    size: int

    def data_ptr(self) -> int:
        return self.base

    def nbytes(self) -> int:
        return self.size


@attrs.frozen
class View:
    """What torch.Tensor answers, without torch."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "torch.bfloat16"

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return self.storage.base + self.offset

    def element_size(self) -> int:
        return 2

    def untyped_storage(self) -> Storage:
        return self.storage


BLOCKS, HEADS, SLOTS, CONTENT, LAYERS = 10, 4, 16, 64, 3
PAGE = HEADS * SLOTS * CONTENT
NAMES = tuple(f"model.layers.{i}.self_attn.attn" for i in range(LAYERS))
GROUP = CacheGroup(layers=NAMES, tokens_per_block=SLOTS, manager_blocks=BLOCKS)
STORAGE = Storage(base=0x7F0000000040, size=LAYERS * BLOCKS * PAGE * 2)


def caches(**changes: Any) -> dict[str, View]:
    """Layer-outermost caches, as vLLM on CPU makes them."""
    values: dict[str, Any] = {
        "storage": STORAGE,
        "shape": (BLOCKS, HEADS, SLOTS, CONTENT),
        "strides": (PAGE, SLOTS * CONTENT, CONTENT, 1),
    }
    return {
        name: View(offset=i * BLOCKS * PAGE * 2, **(values | changes))
        for i, name in enumerate(NAMES)
    }


def test_layer_outermost_cache() -> None:
    shard, (memory,) = describe_caches(caches(), GROUP, HEADS)
    (group,) = shard.groups
    assert (group.tokens_per_block, group.physical_per_block, group.physical_blocks) == (16, 1, 10)
    assert (group.stride_block, group.stride_head, group.stride_slot) == (
        PAGE * 2,
        SLOTS * CONTENT * 2,
        CONTENT * 2,
    )
    assert group.stride_layer == BLOCKS * PAGE * 2
    assert group.layers == NAMES
    assert (group.planes[0].content_bytes, group.planes[0].offset) == (CONTENT * 2, 0)
    assert group.null_block == 0
    assert (memory.base, memory.length) == (STORAGE.base, STORAGE.size)
    assert (shard.areas[0].base, shard.areas[0].length) == (STORAGE.base, STORAGE.size)
    assert shard.ranks[0].holdings[0].layers == NAMES
    check_shard(shard, Limits())


def test_block_outermost_cache() -> None:
    row = LAYERS * PAGE
    views = {
        name: View(
            STORAGE,
            offset=i * PAGE * 2,
            shape=(BLOCKS, HEADS, SLOTS, CONTENT),
            strides=(row, SLOTS * CONTENT, CONTENT, 1),
        )
        for i, name in enumerate(NAMES)
    }
    shard, _ = describe_caches(views, GROUP, HEADS)
    (group,) = shard.groups
    assert group.stride_layer == PAGE * 2
    assert group.stride_block == row * 2
    check_shard(shard, Limits())


def test_a_view_that_starts_inside_its_memory() -> None:
    views = {name: attrs.evolve(view, offset=view.offset + 256) for name, view in caches().items()}
    assert describe_caches(views, GROUP, HEADS)[0].groups[0].planes[0].offset == 256


def test_layers_come_in_address_order() -> None:
    views = dict(reversed(caches().items()))
    group = CacheGroup(layers=NAMES[::-1], tokens_per_block=SLOTS, manager_blocks=BLOCKS)
    assert describe_caches(views, group, HEADS)[0].groups[0].layers == NAMES


def test_a_manager_block_of_several_physical_blocks() -> None:
    group = CacheGroup(layers=NAMES, tokens_per_block=2 * SLOTS, manager_blocks=BLOCKS // 2)
    (read,) = describe_caches(caches(), group, HEADS)[0].groups
    assert (read.physical_per_block, read.physical_blocks) == (2, BLOCKS)
    assert read.slots_per_physical == SLOTS


def test_a_layer_that_shares_a_cache_is_left_out() -> None:
    views = caches()
    views["shared"] = views[NAMES[0]]
    group = CacheGroup(layers=(*NAMES, "shared"), tokens_per_block=SLOTS, manager_blocks=BLOCKS)
    assert describe_caches(views, group, HEADS)[0].groups[0].layers == NAMES


def test_one_layer_needs_no_layer_stride() -> None:
    group = CacheGroup(layers=NAMES[:1], tokens_per_block=SLOTS, manager_blocks=BLOCKS)
    shard, _ = describe_caches(caches(), group, HEADS)
    assert shard.groups[0].layers == NAMES[:1]
    check_shard(shard, Limits())


def test_element_types_of_equal_size_are_told_apart() -> None:
    names = {
        describe_caches(caches(dtype=dtype), GROUP, HEADS)[0].groups[0].planes[0].name
        for dtype in ("torch.bfloat16", "torch.float16")
    }
    assert names == {"kv.bfloat16", "kv.float16"}


def test_pages_that_are_packed_differently_are_told_apart() -> None:
    names = {
        describe_caches(caches(), GROUP, HEADS, packing)[0].groups[0].planes[0].name
        for packing in ("", "cpu-amx", "cpu-vec")
    }
    assert names == {"kv.bfloat16", "kv.bfloat16.cpu-amx.16", "kv.bfloat16.cpu-vec.16"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"shape": (2, BLOCKS, HEADS, SLOTS, CONTENT)}, "shape"),
        ({"strides": (PAGE, SLOTS * CONTENT, CONTENT, 2)}, "content stride 2"),
        ({"shape": (BLOCKS - 1, HEADS, SLOTS, CONTENT)}, "physical blocks"),
        ({"shape": (BLOCKS, HEADS - 1, SLOTS, CONTENT)}, "3 heads of 4"),
    ],
)
def test_what_cannot_be_described_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(LayoutMismatch, match=text):
        describe_caches(caches(**changes), GROUP, HEADS)


def test_layers_that_differ_are_refused() -> None:
    views = caches()
    views[NAMES[2]] = attrs.evolve(views[NAMES[2]], dtype="torch.float16")
    with pytest.raises(LayoutMismatch, match=r"layers\.2"):
        describe_caches(views, GROUP, HEADS)


def test_uneven_spacing_is_refused() -> None:
    views = caches()
    views[NAMES[2]] = attrs.evolve(views[NAMES[2]], offset=views[NAMES[2]].offset + 64)
    with pytest.raises(LayoutMismatch, match="unevenly"):
        describe_caches(views, GROUP, HEADS)


def test_a_missing_layer_is_named() -> None:
    views = caches()
    del views[NAMES[1]]
    with pytest.raises(LayoutMismatch, match=r"layers\.1"):
        describe_caches(views, GROUP, HEADS)


def test_a_block_size_that_does_not_fit_is_refused() -> None:
    group = CacheGroup(layers=NAMES, tokens_per_block=24, manager_blocks=BLOCKS)
    with pytest.raises(BadValue, match="block_size"):
        describe_caches(caches(), group, HEADS)


class FullAttentionSpec:
    block_size = SLOTS


class SlidingWindowSpec:
    block_size = SLOTS


def config(*specs: object, zeroing: bool = False) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=list(NAMES)) for spec in specs]
    return SimpleNamespace(
        kv_cache_groups=groups,
        transfer_groups=tuple(groups),
        num_blocks=BLOCKS,
        needs_kv_cache_zeroing=zeroing,
    )


def test_one_full_attention_group_is_read() -> None:
    assert cache_group(config(FullAttentionSpec())) == GROUP


@pytest.mark.parametrize(
    "refused",
    [
        config(SlidingWindowSpec()),
        config(FullAttentionSpec(), SlidingWindowSpec()),
        config(),
        config(FullAttentionSpec(), zeroing=True),
    ],
)
def test_other_caches_are_refused(refused: SimpleNamespace) -> None:
    with pytest.raises(LayoutMismatch):
        cache_group(refused)
