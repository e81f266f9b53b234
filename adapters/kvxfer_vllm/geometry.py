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
from typing import Protocol

import attrs

from kvxfer.driver import Memory
from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Plane,
    RankHolding,
    Shard,
    holding_of,
)
from kvxfer_vllm.cache_groups import CacheGroup, cache_groups
from kvxfer_vllm.packed_pages import in_slots
from kvxfer_vllm.place import ALONE, Place

__all__ = ["CacheGroup", "cache_groups", "describe_caches", "describe_groups"]

PACKED_KINDS = (GroupKind.FULL, GroupKind.WINDOW)
"""Only plain attention has pages of a kernel's own."""

NULL_BLOCK = 0
"""vLLM's block 0 stands for 'no block'."""


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


Views = list[tuple[str, TensorLike]]


def describe_caches(
    caches: Mapping[str, TensorLike], group: CacheGroup, heads_total: int, packing: str = ""
) -> tuple[Shard, tuple[Memory, ...]]:
    """`describe_groups` for a model with one group."""
    return describe_groups(caches, (group,), heads_total, packing)


def describe_groups(
    caches: Mapping[str, TensorLike],
    groups: Sequence[CacheGroup],
    heads_total: int,
    packing: str = "",
    *,
    place: Place = ALONE,
    slots: bool = False,
) -> tuple[Shard, tuple[Memory, ...]]:
    """The shard of a worker and the memory to register, from its tensors.

    Its rank map holds this worker alone: what the others hold, they say (`Place`).

    `packing` names how the attention kernel arranges the inside of a (block, head)
    page where that is not slot by slot. Such pages are sound only as a whole, and only
    for a kernel with the same arrangement: they become opaque pages, and its name goes
    into the fingerprint. With `slots` the arrangement is spelled out instead, where it is
    known: more ranges, but of engines whose blocks differ. Latents and states are never
    packed.

    Groups may lie over each other: in vLLM a block belongs to one group at a time.
    Raises LayoutMismatch with the layer and the number that does not fit.
    """
    areas: list[Area] = []
    memories: list[Memory] = []
    described = []
    for group in groups:
        views = _distinct_views(caches, group.layers)
        places = _areas(views, areas, memories)
        described.append(_describe(group, views, places, areas, heads_total, place))
    if packing:
        packed = in_slots if slots else _as_pages
        described = [packed(g, packing) if g.kind in PACKED_KINDS else g for g in described]
    holdings = tuple(holding_of(group) for group in described)
    shard = Shard(
        rank=place.rank,
        areas=tuple(areas),
        groups=tuple(described),
        ranks=(RankHolding(rank=place.rank, holdings=holdings),),
    )
    return shard, tuple(memories)


def _describe(
    group: CacheGroup,
    views: Views,
    places: tuple[int, ...],
    areas: Sequence[Area],
    heads_total: int,
    place: Place,
) -> Group:
    first = views[0][1]
    for name, view in views:
        _check_view(name, view, first)
    size = first.element_size()
    blocks, heads, slots, _ = first.shape
    stride_block, stride_head, stride_slot, _ = (step * size for step in first.stride())
    per_manager = _physical_per_manager(blocks, slots, group)
    total, head_start = _heads(group, heads, heads_total, place)
    offset, layer_areas = _offsets(views, places, areas)
    return Group(
        name=group.name,
        kind=group.kind,
        tokens_per_block=group.tokens_per_block,
        physical_per_block=per_manager,
        physical_blocks=group.manager_blocks * per_manager,
        heads_total=total,
        head_start=head_start,
        head_stop=head_start + heads,
        layers=tuple(name for name, _ in views),
        planes=(_plane(group, first, places[0], offset, layer_areas),),
        stride_layer=0 if layer_areas else _layer_stride(views),
        stride_block=stride_block,
        stride_head=stride_head,
        stride_slot=stride_slot,
        null_block=NULL_BLOCK,
        tokens_per_state=group.tokens_per_state,
        reach=group.reach,
        whole_blocks=group.shared and group.kind is GroupKind.WINDOW,
        fingerprint=_fingerprint(group, first),
    )


def _as_pages(group: Group, packing: str) -> Group:
    """The same bytes, where only a whole (physical block, head) page has a meaning."""
    (plane,) = group.planes
    slots = group.slots_per_physical
    if slots > 1 and group.stride_slot != plane.content_bytes:
        raise LayoutMismatch(
            f"group {group.name!r}: pages packed as {packing!r} whose slots are "
            f"{group.stride_slot} bytes apart, not {plane.content_bytes}"
        )
    return attrs.evolve(
        group,
        kind=GroupKind.PAGE,
        tokens_per_state=group.tokens_per_block // group.physical_per_block,
        stride_slot=plane.content_bytes * slots,
        planes=(attrs.evolve(plane, content_bytes=plane.content_bytes * slots),),
        fingerprint=f"{group.fingerprint} {packing}",
    )


def _plane(
    group: CacheGroup, view: TensorLike, area: int, offset: int, layer_areas: tuple[int, ...]
) -> Plane:
    """All of a slot as one plane: K beside V, a latent, or the tensors of a state in a row.

    Ranks that share states out hold one share each, whole: they pair with as many others.
    """
    content = view.shape[3] * view.element_size()
    states = sum(state.content_bytes for state in group.states)
    if group.states and content != states:
        raise LayoutMismatch(
            f"group {group.name!r}: a page holds {content} bytes, its states {states}"
        )
    return Plane(
        name="state" if group.states else "kv",
        area=area,
        offset=offset,
        content_bytes=content,
        layer_areas=layer_areas,
    )


def _fingerprint(group: CacheGroup, view: TensorLike) -> str:
    """Element types: fp16 and bf16 have one size and must not be mixed up."""
    if not group.states:
        return f"{str(view.dtype).removeprefix('torch.')} {group.quantised}".rstrip()
    shapes = (f"{state.dtype}{list(state.shape)}" for state in group.states)
    return " ".join(shapes).replace(", ", "x")


def _distinct_views(caches: Mapping[str, TensorLike], layers: Sequence[str]) -> Views:
    """The group's layers in address order; layers that share another's cache are left out.

    Those with memory of their own stay in the order in which the model computes them.
    """
    missing = [name for name in layers if name not in caches]
    if missing or not layers:
        raise LayoutMismatch(f"no cache was registered for layers {missing or 'of the group'}")
    by_address: dict[int, tuple[str, TensorLike]] = {}
    for name in layers:
        by_address.setdefault(caches[name].data_ptr(), (name, caches[name]))
    bases = {view.untyped_storage().data_ptr(): None for _, view in by_address.values()}
    rank = {base: number for number, base in enumerate(bases)}
    return sorted(
        by_address.values(),
        key=lambda pair: (rank[pair[1].untyped_storage().data_ptr()], pair[1].data_ptr()),
    )


def _areas(views: Views, areas: list[Area], memories: list[Memory]) -> tuple[int, ...]:
    """Index of each layer's area; memory that is new is added to both lists."""
    known = {area.base: index for index, area in enumerate(areas)}
    places = []
    for _, view in views:
        storage = view.untyped_storage()
        base = storage.data_ptr()
        if base not in known:
            known[base] = len(areas)
            areas.append(Area(base=base, length=storage.nbytes()))
            memories.append(Memory(base=base, length=storage.nbytes(), keepalive=view))
        places.append(known[base])
    return tuple(places)


def _offsets(
    views: Views, places: tuple[int, ...], areas: Sequence[Area]
) -> tuple[int, tuple[int, ...]]:
    """Offset of the first layer in its area, and the area of each layer if they have several."""
    offsets = [
        view.data_ptr() - areas[place].base for (_, view), place in zip(views, places, strict=True)
    ]
    if len(set(places)) == 1:
        return offsets[0], ()
    for (name, _), offset in zip(views, offsets, strict=True):
        if offset != offsets[0]:
            raise LayoutMismatch(
                f"cache of layer {name} starts {offset} bytes into its memory, that of layer "
                f"{views[0][0]} {offsets[0]}: not served where layers have memory of their own"
            )
    return offsets[0], places


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
    )
    if not same:
        raise LayoutMismatch(
            f"cache of layer {name} differs from the first layer's in shape, strides or type: "
            "not served by this version"
        )
    if view.stride()[3] != 1:
        raise LayoutMismatch(f"cache of layer {name}: content stride {view.stride()[3]}, not 1")


def _heads(group: CacheGroup, heads: int, heads_total: int, place: Place) -> tuple[int, int]:
    """(heads of the whole model, the first one here), from what this rank's cache holds.

    A latent is one head that every rank holds; a state page counts as one head of as many
    as there are ranks. Raises LayoutMismatch where the cache holds another number.
    """
    if group.kind is GroupKind.LATENT or group.replicated:
        total, wanted, start = 1, 1, 0
    elif group.kind is GroupKind.STATE:
        total, wanted, start = place.tensor_size, 1, place.tensor_rank
    elif group.kind is GroupKind.WINDOW and place.tensor_size == 1:
        # Some models have other numbers of heads in these layers; a lone worker holds them all.
        total, wanted, start = heads, heads, 0
    else:
        total = heads_total
        wanted, start = place.heads_of(heads_total)
    if heads != wanted:
        raise LayoutMismatch(
            f"group {group.name!r}: the cache holds {heads} heads of {total}, not {wanted}"
        )
    return total, start


def _layer_stride(views: Views) -> int:
    addresses = [view.data_ptr() for _, view in views]
    steps = {after - before for before, after in itertools.pairwise(addresses)}
    if len(steps) > 1:
        raise LayoutMismatch(f"layers are spaced unevenly in memory, steps {sorted(steps)} bytes")
    if steps:
        return steps.pop()
    # One layer: any stride will do that keeps it inside its memory.
    return views[0][1].untyped_storage().nbytes()


def _physical_per_manager(blocks: int, slots: int, group: CacheGroup) -> int:
    states, odd = divmod(group.tokens_per_block, group.tokens_per_state)
    per_manager, rest = divmod(states, slots)
    if odd or rest or per_manager < 1:
        bound = f"a multiple of {slots * group.tokens_per_state} tokens, {slots} cache slots"
        raise BadValue("block_size", group.tokens_per_block, bound)
    if blocks < group.manager_blocks * per_manager:
        raise LayoutMismatch(
            f"the cache has {blocks} physical blocks, {group.manager_blocks * per_manager} needed"
        )
    return per_manager
