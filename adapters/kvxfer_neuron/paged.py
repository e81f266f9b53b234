"""The cache of vLLM Neuron: one tensor a layer, (2, blocks, heads, block, dim).

Owns the reading of that shape: K plane, then V plane, heads before tokens in a block.
Knows no device and no vLLM. Invariant: strides come from the tensors, heads and tokens
from the rank's place; what does not fit the shape is refused with the layer named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kvxfer.driver import Memory
from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.geometry import Group, GroupKind, Plane, Shard
from kvxfer_neuron.marks import Elements
from kvxfer_neuron.ranks import Place, own_holding
from kvxfer_neuron.tensors import Placed, Pool, check_same_form
from kvxfer_vllm.cache_groups import CacheGroup

NULL_BLOCK = 0
"""vLLM's block 0 stands for 'no block'; inside kernels it is -1."""

AXES = "PBHND"
"""Plane (K, V), block, head, token, element."""

SERVED = (GroupKind.FULL, GroupKind.WINDOW)


def describe_paged(
    caches: Mapping[str, Placed], groups: Sequence[CacheGroup], place: Place, elements: Elements
) -> tuple[Shard, tuple[Memory, ...]]:
    """The shard of one rank and the memories to register, in the order of its areas.

    `caches` has the full tensor of every layer, as vLLM registers it. Layers that share
    another's cache are left out. With `elements.packing` a (block, head) page is opaque.
    The rank map has this rank alone; `with_ranks` puts the gathered one in.

    Raises LayoutMismatch or BadValue, naming the layer and the number.
    """
    pool = Pool()
    described = tuple(_group(group, caches, pool, place, elements) for group in groups)
    shard = Shard(rank=place.rank, areas=pool.areas, groups=described, ranks=())
    return attrs.evolve(shard, ranks=(own_holding(shard),)), tuple(pool.memories)


def _group(
    group: CacheGroup,
    caches: Mapping[str, Placed],
    pool: Pool,
    place: Place,
    elements: Elements,
) -> Group:
    if group.kind not in SERVED:
        kinds = " and ".join(kind.name for kind in SERVED)
        raise LayoutMismatch(
            f"group {group.name!r} is of kind {group.kind.name}: {kinds} are served"
        )
    layers = _distinct(group, caches)
    tensors = list(layers.values())
    axes = tensors[0].axes(AXES)
    _check_shape(group, tensors[0], axes, place)
    slots, stride_slot = axes["N"]
    physical = _physical_per_manager(group, slots)
    content = axes["D"][0] * tensors[0].element_bytes
    if elements.packing:
        if slots > 1 and stride_slot != content:
            raise LayoutMismatch(
                f"cache of {tensors[0].name}: tokens of a packed page are {stride_slot} bytes "
                f"apart, not {content}"
            )
        content, stride_slot = content * slots, content * slots
    planes = [Plane(name=name, area=0, offset=0, content_bytes=content) for name in ("k", "v")]
    return Group(
        name=group.name,
        kind=GroupKind.PAGE if elements.packing else group.kind,
        tokens_per_block=group.tokens_per_block,
        physical_per_block=physical,
        physical_blocks=group.manager_blocks * physical,
        heads_total=place.heads_total,
        head_start=place.head_start,
        head_stop=place.head_stop,
        layers=tuple(layers),
        planes=tuple(
            pool.plane(plane, tensors, inside=number * axes["P"][1])
            for number, plane in enumerate(planes)
        ),
        stride_layer=0,
        stride_block=axes["B"][1],
        stride_head=axes["H"][1],
        stride_slot=stride_slot,
        null_block=NULL_BLOCK,
        tokens_per_state=slots if elements.packing else 1,
        reach=group.reach,
        fingerprint=elements.fingerprint,
        context_rank=place.context_rank,
        context_size=place.context_size,
        context_interleave=place.context_interleave,
    )


def _distinct(group: CacheGroup, caches: Mapping[str, Placed]) -> dict[str, Placed]:
    missing = [name for name in group.layers if name not in caches]
    if missing or not group.layers:
        raise LayoutMismatch(f"no cache was registered for layers {missing or 'of the group'}")
    check_same_form([caches[name] for name in group.layers])
    by_address: dict[int, str] = {}
    for name in group.layers:
        by_address.setdefault(caches[name].address, name)
    return {name: caches[name] for _, name in sorted(by_address.items())}


def _check_shape(
    group: CacheGroup, tensor: Placed, axes: Mapping[str, tuple[int, int]], place: Place
) -> None:
    where = f"cache of {tensor.name}, shape {tensor.shape}"
    if len(tensor.shape) != len(AXES) or axes["P"][0] != 2:
        raise LayoutMismatch(f"{where}: expected (2, blocks, heads, tokens, dim)")
    if axes["D"][1] != tensor.element_bytes:
        raise LayoutMismatch(f"{where}: elements are {axes['D'][1]} bytes apart")
    if axes["H"][0] != place.heads:
        raise LayoutMismatch(
            f"{where}: {axes['H'][0]} heads, and rank {place.rank} holds heads "
            f"{place.head_start} to {place.head_stop - 1}"
        )
    needed = group.manager_blocks * _physical_per_manager(group, axes["N"][0])
    if axes["B"][0] < needed:
        raise LayoutMismatch(f"{where}: {axes['B'][0]} blocks, {needed} needed")


def _physical_per_manager(group: CacheGroup, slots: int) -> int:
    per_manager, rest = divmod(group.tokens_per_block, slots)
    if rest or per_manager < 1:
        raise BadValue("block_size", group.tokens_per_block, f"a multiple of {slots} cache slots")
    return per_manager
