"""The memory of one end: a cache whose blocks belong to the slots of its requests.

Owns the blocks. Knows no transfer. Invariant: a slot's blocks are its own and scattered,
so a request is as many ranges as it has blocks and layers.
"""

from __future__ import annotations

import attrs
import numpy as np

from kvxfer.driver import Memory
from kvxfer.errors import BadValue
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.orders import engine_shards

TOKENS_PER_BLOCK = 16
MEMORY_BYTES_MAX = 4 << 30


@attrs.frozen(kw_only=True)
class Shape:
    """One request: `layers` x `blocks` ranges of `page_bytes` each."""

    layers: int = 2
    blocks: int = 16
    page_bytes: int = 512

    def __attrs_post_init__(self) -> None:
        for name in ("layers", "blocks"):
            if getattr(self, name) < 1:
                raise BadValue(name, getattr(self, name), "at least 1")
        if self.page_bytes % TOKENS_PER_BLOCK or self.page_bytes < TOKENS_PER_BLOCK:
            raise BadValue("page_bytes", self.page_bytes, f"a multiple of {TOKENS_PER_BLOCK}")

    @property
    def token_count(self) -> int:
        return self.blocks * TOKENS_PER_BLOCK


@attrs.frozen(kw_only=True, eq=False)
class Pool:
    """`memory` has shape (layers, blocks of the pool, page bytes)."""

    shape: Shape
    memory: np.ndarray
    tables: tuple[tuple[BlockTable, ...], ...]
    """By slot, as an engine gives them."""

    @classmethod
    def of(cls, shape: Shape, slots: int, seed: int, *, filled: bool) -> Pool:
        """Blocks for so many requests at a time; random bytes, or zeros.

        Raises BadValue where that is more memory than a benchmark should take.
        """
        blocks = 2 * slots * shape.blocks + 1
        size = shape.layers * blocks * shape.page_bytes
        if size > MEMORY_BYTES_MAX:
            raise BadValue("memory of one end", size, f"at most {MEMORY_BYTES_MAX:,} bytes")
        draw = np.random.default_rng(seed)
        memory = np.zeros((shape.layers, blocks, shape.page_bytes), dtype=np.uint8)
        if filled:
            memory[:] = draw.integers(0, 256, memory.shape, dtype=np.uint8)
        # Every second block at most, so that no two of them make a run.
        places = (1 + 2 * draw.permutation((blocks - 1) // 2)).reshape(slots, shape.blocks)
        tables = tuple((BlockTable(group=0, first_token=0, blocks=ids),) for ids in places)
        return cls(shape=shape, memory=memory, tables=tables)

    def bytes_of(self, slot: int) -> np.ndarray:
        """Shape (layers, blocks, page bytes), in the order of the tokens."""
        return np.asarray(self.memory[:, self.tables[slot][0].blocks])

    def shard(self) -> Shard:
        (shard,) = engine_shards(
            bases=[int(self.memory.ctypes.data)],
            layers=tuple(str(n) for n in range(self.shape.layers)),
            blocks=self.memory.shape[1],
            tokens_per_block=TOKENS_PER_BLOCK,
            heads_total=1,
            content_bytes=self.shape.page_bytes // TOKENS_PER_BLOCK,
            null_block=0,
        )
        return shard

    def memories(self) -> tuple[Memory, ...]:
        base = int(self.memory.ctypes.data)
        return (Memory(base=base, length=self.memory.nbytes, keepalive=self.memory),)
