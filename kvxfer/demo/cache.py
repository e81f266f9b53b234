"""The paged key/value cache of one engine.

Owns the memory (one pool for each rank), the block allocator and the description
of both for kvxfer. Refuses to know the model's arithmetic and when blocks may be
freed: the engines decide that. Invariant: a block is free or held by one
sequence; giving back what is not held is an error, never a silent repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.demo.model import I8, ModelShape
from kvxfer.errors import BadValue
from kvxfer.layout.geometry import (
    Area,
    BlockTable,
    Group,
    GroupKind,
    Holding,
    Plane,
    RankHolding,
    Shard,
)
from kvxfer.transport.ops import Memory

GROUP = "kv"
AXES = "LBHN"
"""Layer, block, head, slot; the content C is always innermost."""
DEFAULT_ORDER = "LBHNC"
POOL_BYTES_MAX = 1 << 30
"""Of one engine. The demo runs on any laptop; a typing error must not fill its memory."""


@attrs.frozen(kw_only=True)
class CacheShape:
    """How one engine lays its cache out."""

    block_count: int
    block_tokens: int = 16
    ranks: int = 1
    """The heads are split over so many ranks, each with memory of its own."""
    order: str = DEFAULT_ORDER
    """Axes from the outside in, a permutation of LBHN followed by C."""

    def check(self, model: ModelShape) -> None:
        """BadValue where the cache cannot hold such a model."""
        if self.block_tokens < 1:
            raise BadValue("block_tokens", self.block_tokens, "at least 1")
        if self.block_count < 1:
            raise BadValue("block_count", self.block_count, "at least 1")
        tokens = self.block_count * self.block_tokens
        pool_bytes = tokens * model.layers * model.heads * model.content_bytes
        if pool_bytes > POOL_BYTES_MAX:
            raise BadValue(
                "pool_bytes",
                pool_bytes,
                f"at most {POOL_BYTES_MAX}: {self.block_count} blocks of {self.block_tokens} "
                "tokens are too many; shorter prompts, smaller blocks or fewer requests at a time",
            )
        if not 1 <= self.ranks <= model.heads:
            raise BadValue("ranks", self.ranks, f"1 to {model.heads}, the number of heads")
        if self.order[-1:] != "C" or sorted(self.order[:-1]) != sorted(AXES):
            raise BadValue("order", self.order, f"a permutation of {AXES} followed by C")

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)


class OutOfBlocks(RuntimeError):
    """The pool has too few free blocks now; the caller waits."""


@attrs.define(eq=False)
class Allocator:
    """Block ids of one engine, handed out in the scattered order of an engine long at work."""

    block_count: int
    seed: int
    _free: list[int] = attrs.field(init=False)
    _held: set[int] = attrs.field(factory=set)
    _rng: np.random.Generator = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._free = [int(block) for block in self._rng.permutation(self.block_count)]

    @property
    def held(self) -> int:
        """Blocks that are not free."""
        return len(self._held)

    def take(self, count: int) -> npt.NDArray[np.int64]:
        """`count` block ids, shape (count,), int64. OutOfBlocks where fewer are free."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        taken, self._free = self._free[:count], self._free[count:]
        self._held.update(taken)
        return np.array(taken, dtype=np.int64)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Free blocks that are held. BadValue where one is not."""
        for block in self._rng.permutation(np.array(list(blocks), dtype=np.int64)):
            if int(block) not in self._held:
                raise BadValue("block", int(block), "a block that is held")
            self._held.remove(int(block))
            self._free.append(int(block))


@attrs.define(eq=False)
class RankPool:
    """The memory of one rank: heads [head_start, head_stop) of every layer and block."""

    rank: int
    head_start: int
    head_stop: int
    raw: I8
    """As it lies in memory, C-contiguous, axes in the cache's order."""
    view: I8
    """The same memory, axes (layer, block, head, slot, content)."""

    @classmethod
    def make(cls, rank: int, shape: CacheShape, model: ModelShape) -> RankPool:
        start = model.heads * rank // shape.ranks
        stop = model.heads * (rank + 1) // shape.ranks
        sizes = {
            "L": model.layers,
            "B": shape.block_count,
            "H": stop - start,
            "N": shape.block_tokens,
            "C": model.content_bytes,
        }
        # Not zeros: a block that never arrives must not look like one that did.
        raw = np.full([sizes[axis] for axis in shape.order], 0x55, dtype=np.int8)
        view = raw.transpose([shape.order.index(axis) for axis in AXES + "C"])
        return cls(rank=rank, head_start=start, head_stop=stop, raw=raw, view=view)

    @property
    def memory(self) -> Memory:
        return Memory(base=self.raw.ctypes.data, length=self.raw.nbytes, keepalive=self.raw)


@attrs.define(eq=False)
class EngineCache:
    """All ranks of one engine. The same block ids hold on each of them."""

    model: ModelShape
    shape: CacheShape
    seed: int
    pools: tuple[RankPool, ...] = attrs.field(init=False)
    allocator: Allocator = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shape.check(self.model)
        self.pools = tuple(
            RankPool.make(rank, self.shape, self.model) for rank in range(self.shape.ranks)
        )
        self.allocator = Allocator(self.shape.block_count, self.seed)

    def shard(self, rank: int) -> Shard:
        """What rank `rank` tells its peers about its memory."""
        pool = self.pools[rank]
        memory = pool.memory
        stride_layer, stride_block, stride_head, stride_slot, _ = pool.view.strides
        group = Group(
            name=GROUP,
            kind=GroupKind.FULL,
            tokens_per_block=self.shape.block_tokens,
            physical_per_block=1,
            physical_blocks=self.shape.block_count,
            heads_total=self.model.heads,
            head_start=pool.head_start,
            head_stop=pool.head_stop,
            layers=self.model.layer_keys,
            planes=(Plane(name="kv", area=0, offset=0, content_bytes=self.model.content_bytes),),
            stride_layer=stride_layer,
            stride_block=stride_block,
            stride_head=stride_head,
            stride_slot=stride_slot,
        )
        return Shard(
            rank=rank,
            areas=(Area(base=memory.base, length=memory.length),),
            groups=(group,),
            ranks=tuple(self._holding(other) for other in self.pools),
        )

    def _holding(self, pool: RankPool) -> RankHolding:
        holding = Holding(
            group=GROUP,
            head_start=pool.head_start,
            head_stop=pool.head_stop,
            layers=self.model.layer_keys,
        )
        return RankHolding(rank=pool.rank, holdings=(holding,))

    def table(self, blocks: npt.NDArray[np.int64], tokens: int) -> BlockTable:
        """The block table of tokens [0, tokens) of a sequence that holds `blocks`."""
        return BlockTable(group=0, first_token=0, blocks=blocks[: self.shape.blocks_for(tokens)])

    def sequence(self, blocks: npt.NDArray[np.int64]) -> PagedStore:
        """The store of one sequence that holds `blocks`, in token order."""
        return PagedStore(self.pools, self.shape.block_tokens, blocks)


@attrs.frozen(eq=False)
class PagedStore:
    """One sequence's keys and values in the pools (`model.KvStore`)."""

    pools: Sequence[RankPool]
    block_tokens: int
    blocks: npt.NDArray[np.int64]

    def write(self, layer: int, start: int, content: I8) -> None:
        tokens = np.arange(start, start + len(content))
        blocks = self.blocks[tokens // self.block_tokens]
        slots = tokens % self.block_tokens
        for pool in self.pools:
            pool.view[layer, blocks, :, slots] = content[:, pool.head_start : pool.head_stop]

    def read(self, layer: int, stop: int) -> I8:
        count = -(-stop // self.block_tokens)
        blocks = self.blocks[:count]
        heads = self.pools[-1].head_stop
        content_bytes = self.pools[0].view.shape[-1]
        out = np.empty((heads, count, self.block_tokens, content_bytes), dtype=np.int8)
        for pool in self.pools:
            gathered = pool.view[layer, blocks]
            out[pool.head_start : pool.head_stop] = gathered.transpose(1, 0, 2, 3)
        flat = out.reshape(heads, count * self.block_tokens, content_bytes)
        return np.ascontiguousarray(flat[:, :stop])
