"""Turns vLLM's KV-cache tensors into a layout descriptor.

Owns the reading of shapes, strides and addresses from the per-layer views that vLLM
registers (shape: blocks, heads, slots, content; vLLM 0.26 and later). Imports neither
vLLM nor torch: a tensor is whatever answers the few calls of `TensorLike`. Invariant:
the descriptor is taken from the tensors themselves, never from layout names, and
what it cannot describe is refused at start with the part named.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from kvxfer.driver import Memory
from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Holding,
    Plane,
    RankHolding,
    Shard,
)

NULL_BLOCK = 0
"""vLLM's block 0 stands for 'no block'."""

GROUP_NAME = "attention"


class StorageLike(Protocol):
    """The memory under a tensor."""

    def data_ptr(self) -> int: ...
    def nbytes(self) -> int: ...


class TensorLike(Protocol):
    """The part of torch.Tensor that is read here."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    def stride(self) -> Sequence[int]: ...
    def data_ptr(self) -> int: ...
    def element_size(self) -> int: ...
    def untyped_storage(self) -> StorageLike: ...


@attrs.frozen(kw_only=True)
class CacheGroup:
    """What vLLM's cache configuration says about the one group that is transferred."""

    layers: tuple[str, ...]
    tokens_per_block: int
    manager_blocks: int


def cache_group(kv_cache_config: Any) -> CacheGroup:
    """Read vLLM's KVCacheConfig; refuse what is not one full-attention group.

    Raises LayoutMismatch with the kind of cache that is not served.
    """
    groups = kv_cache_config.transfer_groups
    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    if kinds != ["FullAttentionSpec"] or len(kv_cache_config.kv_cache_groups) != 1:
        raise LayoutMismatch(
            f"the model has cache groups {kinds or 'none'}: this version of kvxfer_vllm serves "
            "models with one full-attention group"
        )
    if kv_cache_config.needs_kv_cache_zeroing:
        raise LayoutMismatch("the cache needs zeroed blocks: not served by this version")
    return CacheGroup(
        layers=tuple(groups[0].layer_names),
        tokens_per_block=groups[0].kv_cache_spec.block_size,
        manager_blocks=kv_cache_config.num_blocks,
    )


def describe_caches(
    caches: Mapping[str, TensorLike], group: CacheGroup, heads_total: int, packing: str = ""
) -> tuple[Shard, tuple[Memory, ...]]:
    """The shard of a lone worker (rank 0) and the memory to register, from its tensors.

    `packing` names how the attention kernel arranges the inside of a (block, head)
    page where that is not slot by slot. Such pages are sound only as a whole, and only
    for a kernel with the same arrangement: its name and the page's slots go into the
    plane's name, so that engines that differ in them refuse each other.

    Raises LayoutMismatch with the layer and the number that does not fit.
    """
    views = _distinct_views(caches, group.layers)
    names = tuple(name for name, _ in views)
    first = views[0][1]
    for name, view in views:
        _check_view(name, view, first)
    storage = first.untyped_storage()
    size = first.element_size()
    blocks, heads, slots, content = first.shape
    stride_block, stride_head, stride_slot, _ = (step * size for step in first.stride())
    per_manager = _physical_per_manager(blocks, slots, group)
    if heads != heads_total:
        raise LayoutMismatch(f"the cache holds {heads} heads of {heads_total}")
    shard = Shard(
        rank=0,
        areas=(Area(base=storage.data_ptr(), length=storage.nbytes()),),
        groups=(
            Group(
                name=GROUP_NAME,
                kind=GroupKind.FULL,
                tokens_per_block=group.tokens_per_block,
                physical_per_block=per_manager,
                physical_blocks=group.manager_blocks * per_manager,
                heads_total=heads_total,
                head_start=0,
                head_stop=heads,
                layers=names,
                planes=(
                    Plane(
                        name=_plane_name(first, packing),
                        area=0,
                        offset=first.data_ptr() - storage.data_ptr(),
                        content_bytes=content * size,
                    ),
                ),
                stride_layer=_layer_stride(views),
                stride_block=stride_block,
                stride_head=stride_head,
                stride_slot=stride_slot,
                null_block=NULL_BLOCK,
            ),
        ),
        ranks=(
            RankHolding(
                rank=0,
                holdings=(Holding(group=GROUP_NAME, head_start=0, head_stop=heads, layers=names),),
            ),
        ),
    )
    memory = Memory(base=storage.data_ptr(), length=storage.nbytes(), keepalive=first)
    return shard, (memory,)


def _plane_name(view: TensorLike, packing: str) -> str:
    """The element type is in it: fp16 and bf16 have one size and must not be mixed up."""
    name = f"kv.{str(view.dtype).removeprefix('torch.')}"
    return f"{name}.{packing}.{view.shape[2]}" if packing else name


def _distinct_views(
    caches: Mapping[str, TensorLike], layers: Sequence[str]
) -> list[tuple[str, TensorLike]]:
    """The group's layers in address order; layers that share another's cache are left out."""
    missing = [name for name in layers if name not in caches]
    if missing or not layers:
        raise LayoutMismatch(f"no cache was registered for layers {missing or 'of the group'}")
    by_address: dict[int, tuple[str, TensorLike]] = {}
    for name in layers:
        by_address.setdefault(caches[name].data_ptr(), (name, caches[name]))
    return [by_address[address] for address in sorted(by_address)]


def _check_view(name: str, view: TensorLike, first: TensorLike) -> None:
    shape = tuple(view.shape)
    if len(shape) != 4:
        raise LayoutMismatch(
            f"cache of layer {name} has shape {shape}: expected (blocks, heads, slots, content)"
        )
    same = (
        shape == tuple(first.shape)
        and tuple(view.stride()) == tuple(first.stride())
        and view.dtype == first.dtype
        and view.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    )
    if not same:
        raise LayoutMismatch(
            f"cache of layer {name} differs from the first layer's in shape, strides, type or "
            "memory: not served by this version"
        )
    if view.stride()[3] != 1:
        raise LayoutMismatch(f"cache of layer {name}: content stride {view.stride()[3]}, not 1")


def _layer_stride(views: Sequence[tuple[str, TensorLike]]) -> int:
    addresses = [view.data_ptr() for _, view in views]
    steps = {after - before for before, after in itertools.pairwise(addresses)}
    if len(steps) > 1:
        raise LayoutMismatch(f"layers are spaced unevenly in memory, steps {sorted(steps)} bytes")
    if steps:
        return steps.pop()
    # One layer: any stride will do that keeps it inside its memory.
    return views[0][1].untyped_storage().nbytes()


def _physical_per_manager(blocks: int, slots: int, group: CacheGroup) -> int:
    per_manager, rest = divmod(group.tokens_per_block, slots)
    if rest or per_manager < 1:
        raise BadValue("block_size", group.tokens_per_block, f"a multiple of {slots} cache slots")
    if blocks < group.manager_blocks * per_manager:
        raise LayoutMismatch(
            f"the cache has {blocks} physical blocks, {group.manager_blocks * per_manager} needed"
        )
    return per_manager
