"""Two toy engines for a `World`: they own blocks, make transfers, and check every byte.

Owns the free lists and the books of who may touch which block. Knows no
protocol. Invariant: `ToyConsumer` raises `Violation` when a block that it has
taken back changes, or when a landed transfer holds other bytes than its source.
"""

from __future__ import annotations

import attrs
import numpy as np

from kvxfer.core.ids import Initiator, Reason, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.testing.between import Violation
from kvxfer.testing.world import Bytes, Node, World, stamp, table


@attrs.define(eq=False)
class Pool:
    """Blocks of one node: contents by block id. Block 0 is never used."""

    memory: Bytes
    block_bytes: int
    free: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.free = list(range(1, self.memory.size // self.block_bytes))

    def block(self, number: int) -> Bytes:
        return self.memory[number * self.block_bytes : (number + 1) * self.block_bytes]

    def take(self, world: World, count: int) -> list[int] | None:
        if len(self.free) < count:
            return None
        return [self.free.pop(world.draw.randrange(len(self.free))) for _ in range(count)]


@attrs.define(eq=False)
class ToyProducer:
    """Prefills are stamps of bytes, at once or by chunks; blocks return at Sent or Unsent."""

    world: World
    node: Node
    pool: Pool
    tokens_per_block: int
    held: dict[str, list[int]] = attrs.field(factory=dict)
    outcomes: dict[str, rs.Sent | rs.Unsent] = attrs.field(factory=dict)

    def prefill(self, tid: TransferId, prompt: int, blocks: int, tag: str) -> bool:
        """Fill blocks with the prompt's bytes and offer them."""
        taken = self.pool.take(self.world, blocks)
        if taken is None:
            return False
        for index, number in enumerate(taken):
            self.pool.block(number)[:] = stamp(prompt * 1000 + index, self.pool.block_bytes)
        self.held[tag] = taken
        self.world.submit(
            self.node,
            cmd.Offer(
                transfer_id=tid,
                tables=table(taken),
                token_count=blocks * self.tokens_per_block,
                digest=prompt.to_bytes(4, "little"),
                tag=tag,
            ),
        )
        return True

    def stream(self, tid: TransferId, prompt: int, blocks: int, tag: str, chunk_ms: float) -> bool:
        """Fill and state one block after the other, one every `chunk_ms`; then seal."""
        taken = self.pool.take(self.world, blocks)
        if taken is None:
            return False
        for number in taken:
            # What the blocks held before: it must never be sent for this prompt.
            self.pool.block(number)[:] = 0xDD
        self.held[tag] = taken
        self.world.submit(
            self.node,
            cmd.Offer(
                transfer_id=tid,
                tables=table(taken),
                token_count=0,
                digest=prompt.to_bytes(4, "little"),
                tag=tag,
                sealed=False,
            ),
        )
        self.world.later(chunk_ms, lambda: self._chunk(tid, prompt, taken, 1, tag, chunk_ms))
        return True

    def _chunk(
        self, tid: TransferId, prompt: int, blocks: list[int], done: int, tag: str, chunk_ms: float
    ) -> None:
        self.collect()
        if tag not in self.held or not self.node.alive:
            return
        number = blocks[done - 1]
        self.pool.block(number)[:] = stamp(prompt * 1000 + done - 1, self.pool.block_bytes)
        sealed = done == len(blocks)
        grow = cmd.Grow(
            transfer_id=tid,
            tables=table(blocks),
            token_count=done * self.tokens_per_block,
            sealed=sealed,
            tag=tag,
        )
        self.world.submit(self.node, grow)
        if not sealed:
            self.world.later(
                chunk_ms, lambda: self._chunk(tid, prompt, blocks, done + 1, tag, chunk_ms)
            )

    def collect(self) -> None:
        for result in list(self.node.results):
            if isinstance(result, rs.Sent | rs.Unsent):
                self.outcomes[result.tag] = result
                for number in self.held.pop(result.tag):
                    # The engine reuses its blocks at once: a late read would carry this.
                    self.pool.block(number)[:] = 0xEE
                    self.pool.free.append(number)
        self.node.results.clear()


@attrs.define(eq=False)
class ToyConsumer:
    """Registers blocks; what comes back is stamped and watched until it is used again."""

    world: World
    node: Node
    pool: Pool
    tokens_per_block: int
    held: dict[str, tuple[int, list[int]]] = attrs.field(factory=dict)
    landed: dict[str, bool] = attrs.field(factory=dict)
    lost: dict[str, Reason] = attrs.field(factory=dict)
    let_go: set[str] = attrs.field(factory=set)
    watched: dict[int, int] = attrs.field(factory=dict)
    """Free block -> seed of the stamp that it must still hold."""

    def __attrs_post_init__(self) -> None:
        for number in self.pool.free:
            self._watch(number, number)

    def _watch(self, number: int, seed: int) -> None:
        self.pool.block(number)[:] = stamp(seed, self.pool.block_bytes)
        self.watched[number] = seed

    def register(
        self,
        tid: TransferId,
        prompt: int,
        blocks: int,
        tag: str,
        producer: Node,
        initiator: Initiator = Initiator.PRODUCER,
    ) -> bool:
        taken = self.pool.take(self.world, blocks)
        if taken is None:
            return False
        self.check_watched()
        for number in taken:
            del self.watched[number]
        self.held[tag] = (prompt, taken)
        address = cmd.ProducerAddress(engine_id=producer.name, rank=0, host=producer.name, port=1)
        self.world.submit(
            self.node,
            cmd.Register(
                transfer_id=tid,
                producers=(address,),
                tables=table(taken),
                token_start=0,
                token_stop=blocks * self.tokens_per_block,
                digest=prompt.to_bytes(4, "little"),
                tag=tag,
                initiator=initiator,
            ),
        )
        return True

    def collect(self) -> None:
        for result in list(self.node.results):
            match result:
                case rs.Landed():
                    self._check_landed(result.tag)
                    self.landed[result.tag] = True
                case rs.Lost():
                    self.lost[result.tag] = result.reason
                case rs.LetGo():
                    self.let_go.add(result.tag)
                    _, blocks = self.held.pop(result.tag)
                    for number in blocks:
                        self._watch(number, self.world.draw.randrange(1 << 30))
                        self.pool.free.append(number)
        self.node.results.clear()
        self.check_watched()

    def _check_landed(self, tag: str) -> None:
        prompt, blocks = self.held[tag]
        for index, number in enumerate(blocks):
            want = stamp(prompt * 1000 + index, self.pool.block_bytes)
            if not np.array_equal(self.pool.block(number), want):
                raise Violation(f"seed {self.world.seed}: {tag} landed with wrong bytes")

    def check_watched(self) -> None:
        for number, seed in self.watched.items():
            if not np.array_equal(self.pool.block(number), stamp(seed, self.pool.block_bytes)):
                raise Violation(f"seed {self.world.seed}: free block {number} was written to")
