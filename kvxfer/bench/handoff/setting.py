"""What one run of two engines is told: sizes, steps, and who moves the bytes.

Owns the record and the arithmetic on it. Knows no way of moving. Invariant: a request's
blocks belong to its slot alone and are scattered, differently on both sides.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import Shard
from kvxfer.layout.orders import engine_shards

TOKENS_PER_BLOCK = 16
MEMORY_BYTES_MAX = 8 << 30
Ids = NDArray[np.int64]


@attrs.frozen(kw_only=True)
class Setting:
    """`descriptors` pages a request, of `page_bytes` each; `slots` requests in flight."""

    way: str
    transport: str
    layers: int
    blocks: int
    """Blocks of one request: layers x blocks descriptors, none next to another."""
    page_bytes: int
    slots: int
    per_slot: int
    """How many requests a slot carries, one after another."""
    prefill_steps: int
    """Steps of P between a slot's becoming free and the end of its next prefill."""
    hold_loops: int
    """Turns of a pure Python loop in every step: time under the interpreter lock."""
    wait_s: float
    """The rest of a step, without the lock, as an engine waits for its device."""
    idle_steps: int
    """Steps without any request, for comparison."""
    seed: int

    def __attrs_post_init__(self) -> None:
        for name in ("layers", "blocks", "slots", "per_slot", "prefill_steps", "idle_steps"):
            if getattr(self, name) < 1:
                raise BadValue(name, getattr(self, name), "at least 1")
        if self.page_bytes % TOKENS_PER_BLOCK or self.page_bytes < TOKENS_PER_BLOCK:
            raise BadValue("page_bytes", self.page_bytes, f"a multiple of {TOKENS_PER_BLOCK}")
        if self.memory_bytes > MEMORY_BYTES_MAX:
            bound = f"at most {MEMORY_BYTES_MAX:,} a process: fewer slots or smaller pages"
            raise BadValue("memory_bytes", self.memory_bytes, bound)

    @property
    def pool_blocks(self) -> int:
        """Twice what is used, since scattered blocks leave gaps."""
        return 2 * self.slots * self.blocks + 1

    @property
    def memory_bytes(self) -> int:
        return self.layers * self.pool_blocks * self.page_bytes

    @property
    def descriptors(self) -> int:
        return self.layers * self.blocks

    @property
    def requests(self) -> int:
        return self.slots * self.per_slot

    @property
    def token_count(self) -> int:
        return self.blocks * TOKENS_PER_BLOCK

    def blocks_of(self, side: str) -> list[Ids]:
        """Block ids of each slot at 'P' or 'D'. Shape (blocks,) each, in 1 .. pool_blocks."""
        draw = np.random.default_rng([self.seed, side == "D"])
        # Every second block at most, so that no two of them make a run.
        places = 1 + 2 * draw.permutation((self.pool_blocks - 1) // 2)
        return [places[n * self.blocks : (n + 1) * self.blocks] for n in range(self.slots)]

    def shard(self, base: int) -> Shard:
        (shard,) = engine_shards(
            bases=[base],
            layers=tuple(str(n) for n in range(self.layers)),
            blocks=self.pool_blocks,
            tokens_per_block=TOKENS_PER_BLOCK,
            heads_total=1,
            content_bytes=self.page_bytes // TOKENS_PER_BLOCK,
            null_block=0,
        )
        return shard
