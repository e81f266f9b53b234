"""The layout descriptor is read from shapes, strides and addresses of tensor views."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import GroupKind
from kvxfer.layout.match import check_alike
from kvxfer.limits import Limits
from kvxfer_vllm.geometry import (
    CacheGroup,
    cache_groups,
    describe_caches,
    describe_groups,
)


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
        return {"torch.int8": 1, "torch.float32": 4}.get(self.dtype, 2)

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
    found = {
        describe_caches(caches(dtype=dtype), GROUP, HEADS)[0].groups[0].fingerprint
        for dtype in ("torch.bfloat16", "torch.float16")
    }
    assert found == {"bfloat16", "float16"}


def test_packed_pages_are_opaque() -> None:
    (group,) = describe_caches(caches(), GROUP, HEADS, "cpu-amx")[0].groups
    assert (group.kind, group.fingerprint) == (GroupKind.PAGE, "bfloat16 cpu-amx")
    # One slot is the whole page of a head: no plan can part it.
    assert (group.tokens_per_state, group.slots_per_physical) == (SLOTS, 1)
    assert group.planes[0].content_bytes == SLOTS * CONTENT * 2
    assert group.stride_head == SLOTS * CONTENT * 2
    shard, _ = describe_caches(caches(), GROUP, HEADS, "cpu-amx")
    check_shard(shard, Limits())


def test_packed_pages_of_other_kernels_or_sizes_refuse_each_other() -> None:
    (mine,), (other,) = (
        describe_caches(caches(), GROUP, HEADS, packing)[0].groups for packing in ("amx", "vec")
    )
    with pytest.raises(LayoutMismatch, match="fingerprint is bfloat16 amx"):
        check_alike(mine, other)
    plain = describe_caches(caches(), GROUP, HEADS)[0].groups[0]
    with pytest.raises(LayoutMismatch, match="kind"):
        check_alike(mine, plain)


def test_packed_pages_need_slots_side_by_side() -> None:
    strides = (PAGE, CONTENT, HEADS * CONTENT, 1)
    with pytest.raises(LayoutMismatch, match="packed as 'amx'"):
        describe_caches(caches(strides=strides), GROUP, HEADS, "amx")


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


def test_layers_with_memory_of_their_own() -> None:
    views = {
        name: attrs.evolve(view, storage=Storage(STORAGE.base + (i << 40), BLOCKS * PAGE * 2 + 64))
        for i, (name, view) in enumerate(caches().items())
    }
    views = {name: attrs.evolve(view, offset=64) for name, view in views.items()}
    shard, memories = describe_caches(views, GROUP, HEADS)
    (plane,) = shard.groups[0].planes
    assert (plane.layer_areas, plane.offset) == ((0, 1, 2), 64)
    assert [m.base for m in memories] == [a.base for a in shard.areas]
    check_shard(shard, Limits())
    # Whatever order their memory has, layers stand in the model's: slices of them leave so.
    turned = attrs.evolve(GROUP, layers=NAMES[::-1])
    assert describe_caches(views, turned, HEADS)[0].groups[0].layers == NAMES[::-1]
    views[NAMES[2]] = attrs.evolve(views[NAMES[2]], offset=32)
    with pytest.raises(LayoutMismatch, match=r"layers\.2\S+ starts 32 bytes"):
        describe_caches(views, GROUP, HEADS)


@attrs.frozen
class Dtype:
    name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{self.name}"


def spec(class_name: str, **fields: Any) -> Any:
    plain = SimpleNamespace(name="NONE")
    values = {"block_size": SLOTS, "tokens_per_state": 1, "kv_quant_mode": plain}
    return type(class_name, (), values | fields)()


FULL = spec("FullAttentionSpec")
WINDOW = spec("SlidingWindowSpec", sliding_window=20, extra_retained_tokens=2)
LATENT = spec("MLAAttentionSpec")
STATE = spec(
    "MambaSpec",
    tokens_per_state=-1,
    mamba_cache_mode="none",
    shapes=((3, 8), (2, 4, 4)),
    dtypes=(Dtype("bfloat16", 2), Dtype("float32", 4)),
)
STATE_BYTES = 3 * 8 * 2 + 2 * 4 * 4 * 4


def config(*specs: Any, zeroing: bool = False) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=one, layer_names=list(NAMES)) for one in specs]
    return SimpleNamespace(
        kv_cache_groups=groups,
        transfer_groups=tuple(groups),
        num_blocks=BLOCKS,
        needs_kv_cache_zeroing=zeroing,
    )


def test_one_full_attention_group_is_read() -> None:
    assert cache_groups(config(FULL)) == (attrs.evolve(GROUP, name="full.0"),)


def test_groups_of_every_kind_are_read() -> None:
    full, window, latent, state = cache_groups(config(FULL, WINDOW, LATENT, STATE))
    assert (full.name, full.kind, full.reach) == ("full.0", GroupKind.FULL, None)
    # The next token looks back at 19; two more are kept for drafting.
    assert (window.name, window.kind, window.reach) == ("window.1", GroupKind.WINDOW, 21)
    assert (latent.name, latent.kind) == ("latent.2", GroupKind.LATENT)
    assert (state.name, state.kind, state.reach) == ("state.3", GroupKind.STATE, 1)
    assert state.tokens_per_state == state.tokens_per_block == SLOTS
    assert [(s.dtype, s.content_bytes) for s in state.states] == [
        ("bfloat16", 48),
        ("float32", 128),
    ]


def test_the_blocks_of_a_window_come_whole_where_a_prefix_cache_gives_them_on() -> None:
    views = caches()
    apart = spec("SlidingWindowMLASpec", sliding_window=20, prefix_cacheable=False)
    for kept, others in ((True, [FULL, WINDOW]), (False, [FULL, apart])):
        groups = cache_groups(config(*others), prefix_caching=True)
        shard, _ = describe_groups(views, groups, HEADS)
        assert [group.whole_blocks for group in shard.groups] == [False, kept]
    shard, _ = describe_groups(views, cache_groups(config(FULL, WINDOW)), HEADS)
    assert not any(group.whole_blocks for group in shard.groups)


@pytest.mark.parametrize(
    ("unknown", "text"),
    [
        (spec("ChunkedLocalAttentionSpec"), "group 0 is a ChunkedLocalAttentionSpec"),
        (spec("UniformTypeKVCacheSpecs"), "UniformTypeKVCacheSpecs"),
        (spec("FullAttentionSpec", tokens_per_state=0.5), "stands for 0.5 tokens"),
        (spec("MambaSpec", mamba_cache_mode="align"), "mamba_cache_mode 'align'"),
    ],
)
def test_a_cache_without_a_description_is_named(unknown: Any, text: str) -> None:
    with pytest.raises(LayoutMismatch, match=text):
        cache_groups(config(unknown))
    with pytest.raises(LayoutMismatch, match="no cache group"):
        cache_groups(config())


def test_kinds_of_fp8_are_told_apart() -> None:
    fp8 = spec("FullAttentionSpec", kv_quant_mode=SimpleNamespace(name="FP8_PER_TENSOR"))
    found = []
    for cache_dtype in ("fp8_e4m3", "fp8_e5m2"):
        (group,) = cache_groups(config(fp8), cache_dtype)
        shard, _ = describe_caches(caches(dtype="torch.int8"), group, HEADS)
        found.append(shard.groups[0])
    assert found[0].fingerprint == "int8 fp8_per_tensor fp8_e4m3"
    with pytest.raises(LayoutMismatch, match="fingerprint"):
        check_alike(*found)


def test_latents_have_one_head_and_are_never_packed() -> None:
    views = caches(shape=(BLOCKS, 1, SLOTS, CONTENT), strides=(PAGE, CONTENT, CONTENT, 1))
    shard, _ = describe_groups(views, cache_groups(config(LATENT)), HEADS, "cpu-unknown")
    (group,) = shard.groups
    assert (group.kind, group.heads_total, group.fingerprint) == (GroupKind.LATENT, 1, "bfloat16")
    check_shard(shard, Limits())


def test_a_state_page_is_moved_whole() -> None:
    pad = 512
    views = caches(
        shape=(BLOCKS, 1, 1, STATE_BYTES),
        strides=(pad, STATE_BYTES, STATE_BYTES, 1),
        dtype="torch.int8",
    )
    shard, _ = describe_groups(views, cache_groups(config(STATE)), HEADS, "cpu-amx")
    (group,) = shard.groups
    assert [(p.name, p.content_bytes) for p in group.planes] == [("state", STATE_BYTES)]
    assert (group.kind, group.stride_block, group.slots_per_physical) == (GroupKind.STATE, pad, 1)
    assert group.fingerprint == "bfloat16[3x8] float32[2x4x4]"
    check_shard(shard, Limits())
    short = {
        name: attrs.evolve(view, shape=(BLOCKS, 1, 1, STATE_BYTES - 1))
        for name, view in views.items()
    }
    with pytest.raises(LayoutMismatch, match=f"holds {STATE_BYTES - 1} bytes, its states"):
        describe_groups(short, cache_groups(config(STATE)), HEADS)


def test_groups_over_each_other_share_one_memory() -> None:
    shard, memories = describe_groups(caches(), cache_groups(config(FULL, WINDOW)), HEADS, "amx")
    assert len(memories) == len(shard.areas) == 1
    full, window = shard.groups
    assert (full.kind, full.reach) == (GroupKind.PAGE, None)
    assert (window.kind, window.reach) == (GroupKind.PAGE, 21)
    assert full.planes == window.planes
    check_shard(shard, Limits())
