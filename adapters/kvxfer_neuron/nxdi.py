"""The caches of NxD Inference: K and V as tensors of their own, in lines or in blocks.

Owns the shapes that NxDI's KV managers allocate. Knows no NxDI package: values come as
plain numbers. Invariant: a layout that has no description is refused by its name; it is
never described as one that it resembles.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from kvxfer.driver import Memory
from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.geometry import Group, GroupKind, Plane, Shard
from kvxfer_neuron.marks import Elements
from kvxfer_neuron.ranks import Place, own_holding
from kvxfer_neuron.tensors import Placed, Pool, check_same_form


class Order(Enum):
    """How NxDI allocates the two tensors of a layer."""

    LINES = "lines"
    """Contiguous batching: a line for each sequence."""
    LINES_KEY_TRANSPOSED = "lines, K transposed"
    BLOCKS_NHD = "blocks, tokens before heads"
    """Prefix caching; the last block takes what nobody wants."""
    BLOCKS_HND = "blocks, heads before tokens"
    """Chunked prefill."""


_AXES = {
    Order.LINES: ("BHND", "BHND"),
    Order.LINES_KEY_TRANSPOSED: ("BHDN", "BHND"),
    Order.BLOCKS_NHD: ("BNHD", "BNHD"),
    Order.BLOCKS_HND: ("BHND", "BHND"),
}
"""Of K and of V: line or block (B), head (H), token (N), element of a head (D). The token
axis may be tiled: (128, n / 128) in place of n is a view of the same bytes."""


@attrs.frozen(kw_only=True)
class NxdiCache:
    """What NxDI's configuration says of a cache that its tensors do not show."""

    order: Order = Order.LINES
    usable: int
    """Lines, or blocks, that requests may have: the spare ones behind them are never moved."""
    left_padding: bool = False
    sliding_window: int = 0
    flash_decoding: bool = False

    def check(self) -> None:
        """Raise LayoutMismatch for what this version does not serve, by NxDI's name of it."""
        refused = {
            "padding_side = left: tokens stand at the end of a line": self.left_padding,
            f"sliding_window = {self.sliding_window}: a line is a ring": self.sliding_window,
            "flash_decoding_enabled: a line is split over cores": self.flash_decoding,
        }
        for what, asked in refused.items():
            if asked:
                raise LayoutMismatch(f"{what}, not served by this version of kvxfer_neuron")


def describe_nxdi(
    keys: Mapping[str, Placed],
    values: Mapping[str, Placed],
    cache: NxdiCache,
    place: Place,
    elements: Elements,
    name: str = "attention",
) -> tuple[Shard, tuple[Memory, ...]]:
    """The shard of one rank and the memories to register, in the order of its areas.

    `keys` and `values` have the parameter of every layer, by the layer's key, which must
    be that of the other engine. A line is a block of as many tokens as it is long:
    `kvxfer_neuron.lines` gives the tables.

    Raises LayoutMismatch or BadValue, naming the layer and the number.
    """
    cache.check()
    if keys.keys() != values.keys() or not keys:
        odd = sorted(keys.keys() ^ values.keys())
        raise LayoutMismatch(f"layers with K and V, or none at all: {odd or 'no layer'}")
    layers = sorted(keys, key=lambda layer: keys[layer].address)
    pool = Pool()
    group = _group(name, layers, (keys, values), cache, place, elements, pool)
    shard = Shard(rank=place.rank, areas=pool.areas, groups=(group,), ranks=())
    return attrs.evolve(shard, ranks=(own_holding(shard),)), tuple(pool.memories)


def _group(
    name: str,
    layers: list[str],
    tensors: tuple[Mapping[str, Placed], Mapping[str, Placed]],
    cache: NxdiCache,
    place: Place,
    elements: Elements,
    pool: Pool,
) -> Group:
    planes = []
    for plane, letters, held in zip(("k", "v"), _AXES[cache.order], tensors, strict=True):
        ordered = [held[layer] for layer in layers]
        check_same_form(list(held.values()))
        axes = ordered[0].axes(letters)
        _check_counts(ordered[0], axes, cache, place)
        planes.append((pool.plane(_plane(plane, axes, ordered[0]), ordered), axes))
    (key, key_axes), (value, axes) = planes
    for letter, what in (("N", "tokens"), ("D", "elements of a head")):
        if key_axes[letter][0] != axes[letter][0]:
            raise LayoutMismatch(f"K has {key_axes[letter][0]} {what}, V {axes[letter][0]}")
    return Group(
        name=name,
        kind=GroupKind.FULL,
        tokens_per_block=axes["N"][0],
        physical_per_block=1,
        physical_blocks=cache.usable,
        heads_total=place.heads_total,
        head_start=place.head_start,
        head_stop=place.head_stop,
        layers=tuple(layers),
        planes=(key, value),
        stride_layer=0,
        stride_block=axes["B"][1],
        stride_head=axes["H"][1],
        stride_slot=axes["N"][1],
        fingerprint=elements.fingerprint,
        context_rank=place.context_rank,
        context_size=place.context_size,
        context_interleave=place.context_interleave,
    )


def _plane(name: str, axes: Mapping[str, tuple[int, int]], tensor: Placed) -> Plane:
    """Where it is and how it steps; elements of a head may lie apart, as in a transposed K."""
    count, stride = axes["D"]
    size = tensor.element_bytes
    apart = stride != size
    return Plane(
        name=name,
        area=0,
        offset=0,
        content_bytes=count * size,
        element_bytes=size if apart else None,
        stride_element=stride if apart else None,
        stride_block=axes["B"][1],
        stride_head=axes["H"][1],
        stride_slot=axes["N"][1],
    )


def _check_counts(
    tensor: Placed, axes: Mapping[str, tuple[int, int]], cache: NxdiCache, place: Place
) -> None:
    if not 1 <= cache.usable <= axes["B"][0]:
        raise BadValue("usable", cache.usable, f"from 1 to {axes['B'][0]}, as {tensor.name} has")
    if axes["H"][0] != place.heads:
        raise LayoutMismatch(
            f"cache of {tensor.name}, shape {tensor.shape}: {axes['H'][0]} heads, and rank "
            f"{place.rank} holds heads {place.head_start} to {place.head_stop - 1}"
        )
