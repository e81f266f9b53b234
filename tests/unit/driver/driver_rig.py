"""Agents over the loopback with a few blocks each, and what an engine does with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import attrs
import numpy as np

from kvxfer.core.ids import Role
from kvxfer.driver import Agent, AgentConfig, Memory, ProducerAddress, Result, TransferId
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.orders import area_bytes, engine_shards

BLOCKS, TOKENS, CONTENT = 16, 4, 8
DEADLINE_S = 20.0


@attrs.define(eq=False)
class Side:
    """One agent and its memory, by block."""

    agent: Agent
    memory: np.ndarray

    def block(self, number: int) -> np.ndarray:
        return self.memory.reshape(BLOCKS, -1)[number]

    def collect(self, count: int) -> list[Result]:
        """Wait until `count` results are there."""
        found: list[Result] = []
        end = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < end, f"only {found} came"
            self.agent.wait(0.1)
            found += self.agent.take()
        return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition of another thread."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.002)


def config(engine_id: str, role: Role, memory: np.ndarray, **changes: object) -> AgentConfig:
    base = int(memory.ctypes.data)
    (shard,) = engine_shards(
        bases=[base],
        layers=("0",),
        blocks=BLOCKS,
        tokens_per_block=TOKENS,
        heads_total=1,
        content_bytes=CONTENT,
        null_block=0,
    )
    settings = {
        "engine_id": engine_id,
        "role": role,
        "shard": shard,
        "memories": (Memory(base=base, length=memory.nbytes, keepalive=memory),),
        "listen": ("127.0.0.1", 0) if role & Role.PRODUCER else None,
    }
    return AgentConfig(**(settings | changes))


def new_memory(seed: int | None = None) -> np.ndarray:
    size = area_bytes(
        layers=1, blocks=BLOCKS, heads=1, tokens_per_block=TOKENS, content_bytes=CONTENT
    )
    if seed is None:
        return np.zeros(size, np.uint8)
    return np.random.default_rng(seed).integers(1, 256, size, dtype=np.uint8)


def table(*blocks: int) -> tuple[BlockTable, ...]:
    return (BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64)),)


def address(side: Side) -> tuple[ProducerAddress, ...]:
    assert side.agent.address is not None
    host, port = side.agent.address
    engine_id = side.agent.config.engine_id
    return (ProducerAddress(engine_id=engine_id, rank=0, host=host, port=port),)


def register(consumer: Side, producer: Side, tid: str, *blocks: int, **changes: object) -> None:
    settings = {
        "producers": address(producer),
        "tables": table(*blocks),
        "token_start": 0,
        "token_stop": len(blocks) * TOKENS,
        "tag": tid,
    }
    consumer.agent.register(TransferId(tid), **(settings | changes))


def offer(producer: Side, tid: str, *blocks: int, **changes: object) -> None:
    settings = {"tables": table(*blocks), "token_count": len(blocks) * TOKENS, "tag": tid}
    producer.agent.offer(TransferId(tid), **(settings | changes))


Start = Callable[..., Side]


def starting(**usual: object) -> Iterator[Start]:
    """For a fixture: start agents with `usual` settings; all are closed, their threads gone."""
    sides: list[Side] = []

    def one(engine_id: str, role: Role, seed: int | None = None, **changes: object) -> Side:
        memory = new_memory(seed)
        side = Side(Agent.start(config(engine_id, role, memory, **usual | changes)), memory)
        sides.append(side)
        return side

    yield one
    for side in sides:
        side.agent.close(timeout_s=0.5)
        assert not side.agent._thread.is_alive()
