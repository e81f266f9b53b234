"""Caches as Neuron engines allocate them, in numpy: their own tensors and their own readers.

A `Cache` says where a request's elements are by indexing the engine's arrays, as its kernels
do. Nothing here uses strides, areas or planes: that is what the adapter has to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.driver import Memory
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.halves import with_halves
from kvxfer_neuron import (
    Elements,
    NxdiCache,
    Order,
    Place,
    describe_nxdi,
    describe_paged,
    line_table,
    place,
)
from kvxfer_vllm.cache_groups import CacheGroup
from kvxfer_vllm.geometry import describe_caches

Array = npt.NDArray[np.uint16]
Reader = Callable[[Array, Sequence[int]], Array]
"""(tensor of one layer and plane, blocks or line) to a view or copy (tokens, heads, dim)."""

PLAIN = Elements(dtype="uint16")
TILE = 4
"""NxDI's is 128."""


class Tensor:
    """The part of torch.Tensor that the adapter reads, over a numpy array."""

    def __init__(self, array: Array, device: str = "cpu", index: int | None = None) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = f"torch.{array.dtype.name}"
        self.device = SimpleNamespace(type=device, index=index)

    def __getitem__(self, place: Any) -> Any:
        return self.array[place]

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def element_size(self) -> int:
        return self.array.itemsize

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def untyped_storage(self) -> Any:
        whole = self.array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        address, size = int(whole.ctypes.data), whole.nbytes
        return SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: size)


@attrs.frozen(eq=False, kw_only=True)
class Cache:
    """One engine's cache: K and V of each layer, how they are read, what they are described as."""

    arrays: Mapping[str, tuple[Array, Array]]
    readers: tuple[Reader, Reader]
    shard: Shard
    memories: tuple[Memory, ...]
    is_line: bool

    def table(self, blocks: Sequence[int]) -> BlockTable:
        if self.is_line:
            return line_table(blocks[0])
        return BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64))

    def read(self, layer: str, plane: int, blocks: Sequence[int]) -> Array:
        """(tokens, heads, dim) by the engine's own indices."""
        return self.readers[plane](self.arrays[layer][plane], blocks)

    def with_tokens(
        self, layer: str, plane: int, blocks: Sequence[int], start: int, tokens: Array
    ) -> Array:
        """A copy of that tensor into which the engine would have written `tokens` from `start`."""
        copy: Array = self.arrays[layer][plane].copy()
        positions = np.arange(copy.size).reshape(copy.shape)
        copy.reshape(-1)[self.readers[plane](positions, blocks)[start : start + len(tokens)]] = (
            tokens
        )
        return copy

    def fill(self, seed: int) -> None:
        for number, pair in enumerate(self.arrays.values()):
            for plane, array in enumerate(pair):
                chance = np.random.default_rng([seed, number, plane])
                array[...] = chance.integers(0, 1 << 16, array.shape, np.uint16)


class Host:
    """Where tensors come from: host memory, as in an engine's CPU mode."""

    @staticmethod
    def zeros(shape: Sequence[int]) -> Array:
        return np.zeros(tuple(shape), np.uint16)

    @staticmethod
    def tensor(array: Array) -> Tensor:
        return Tensor(array)


def numbered(array: Array) -> Array:
    """Another array of that shape, in which each element holds its position in memory order."""
    order = np.argsort(-np.array(array.strides), kind="stable")
    sizes = np.array(array.shape)[order]
    counted = np.arange(array.size).reshape(sizes)
    found: Array = counted.transpose(np.argsort(order))
    return found


def _line(array: Array, blocks: Sequence[int]) -> Array:
    heads, dim = array.shape[1], array.shape[-1]
    return array[blocks[0]].reshape(heads, -1, dim).transpose(1, 0, 2)


def _line_transposed(array: Array, blocks: Sequence[int]) -> Array:
    heads, dim = array.shape[1:3]
    return array[blocks[0]].reshape(heads, dim, -1).transpose(2, 0, 1)


def _blocks_nhd(array: Array, blocks: Sequence[int]) -> Array:
    return array[list(blocks)].reshape(-1, *array.shape[-2:])


def _blocks_hnd(array: Array, blocks: Sequence[int]) -> Array:
    return array[list(blocks)].transpose(0, 2, 1, 3).reshape(-1, array.shape[1], array.shape[3])


_SHAPES: dict[Order, tuple[Callable[..., tuple[int, ...]], Reader, Reader]] = {
    Order.LINES: (lambda b, h, n, d: (b, h, *n, d), _line, _line),
    Order.LINES_KEY_TRANSPOSED: (lambda b, h, n, d: (b, h, d, *n), _line_transposed, _line),
    Order.BLOCKS_NHD: (lambda b, h, n, d: (b, *n, h, d), _blocks_nhd, _blocks_nhd),
    Order.BLOCKS_HND: (lambda b, h, n, d: (b, h, *n, d), _blocks_hnd, _blocks_hnd),
}


def nxdi_cache(
    order: Order,
    *,
    layers: Sequence[str],
    usable: int,
    spare: int,
    heads: int,
    tokens: int,
    dim: int,
    tiled: bool = False,
    rank: Place | None = None,
    device: Any = Host,
) -> Cache:
    """Lines or blocks of `tokens` tokens; K and V are tensors of their own."""
    key_shape, read_key, read_value = _SHAPES[order]
    n = (TILE, tokens // TILE) if tiled else (tokens,)
    value_shape = _SHAPES[Order.LINES if order is Order.LINES_KEY_TRANSPOSED else order][0]
    shapes = [shape(usable + spare, heads, n, dim) for shape in (key_shape, value_shape)]
    arrays = {layer: (device.zeros(shapes[0]), device.zeros(shapes[1])) for layer in layers}
    placed = [
        {la: place(la, device.tensor(pair[i])) for la, pair in arrays.items()} for i in (0, 1)
    ]
    shard, memories = describe_nxdi(
        *placed,
        NxdiCache(order=order, usable=usable),
        rank or Place.alone(heads),
        PLAIN,
    )
    is_line = order in (Order.LINES, Order.LINES_KEY_TRANSPOSED)
    readers = (read_key, read_value)
    return Cache(arrays=arrays, readers=readers, shard=shard, memories=memories, is_line=is_line)


def paged_cache(
    *,
    layers: Sequence[str],
    blocks: int,
    heads: int,
    tokens: int,
    dim: int,
    physical: int = 1,
    pooled: bool = False,
    elements: Elements = PLAIN,
    rank: Place | None = None,
    device: Any = Host,
    **group: Any,
) -> Cache:
    """vLLM Neuron: (2, blocks, heads, block, dim) of each layer, or of all in one buffer."""
    shape = (2, blocks * physical, heads, tokens // physical, dim)
    if pooled:
        stacked = device.zeros((len(layers), *shape))
        tensors = dict(zip(layers, stacked, strict=True))
    else:
        tensors = {layer: device.zeros(shape) for layer in layers}
    spec = CacheGroup(layers=tuple(layers), tokens_per_block=tokens, manager_blocks=blocks, **group)
    placed = {layer: place(layer, device.tensor(array)) for layer, array in tensors.items()}
    shard, memories = describe_paged(placed, (spec,), rank or Place.alone(heads), elements)

    def read(array: Array, ids: Sequence[int]) -> Array:
        parts = [block * physical + part for block in ids for part in range(physical)]
        return _blocks_hnd(array, parts)

    arrays = {layer: (array[0], array[1]) for layer, array in tensors.items()}
    return Cache(arrays=arrays, readers=(read, read), shard=shard, memories=memories, is_line=False)


def packed_cache(*, layers: Sequence[str], blocks: int, heads: int, tokens: int, dim: int) -> Cache:
    """vLLM on a GPU, blocks outermost: (blocks, layers, heads, slots, K beside V) in one buffer."""
    whole = np.zeros((blocks, len(layers), heads, tokens, 2 * dim), np.uint16)
    views = {layer: whole[:, number] for number, layer in enumerate(layers)}
    group = CacheGroup(layers=tuple(layers), tokens_per_block=tokens, manager_blocks=blocks)
    tensors = {layer: Tensor(view) for layer, view in views.items()}
    shard, memories = describe_caches(tensors, group, heads)
    arrays = {layer: (view[..., :dim], view[..., dim:]) for layer, view in views.items()}
    return Cache(
        arrays=arrays,
        readers=(_blocks_hnd, _blocks_hnd),
        shard=with_halves(shard),
        memories=memories,
        is_line=False,
    )
