"""What a peer that is not kvxfer needs to stand beside one: a door into the loopback, an agent.

The minimal peer of docs/examples knows no transport; `LoopbackDoor` is the one that it gets here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from kvxfer.core.ids import Role
from kvxfer.driver import Agent, AgentConfig, Memory, Result, Timings, TransferId
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.orders import area_bytes, engine_shards
from kvxfer.layout.plain import shard_to_plain
from kvxfer.status import Status
from kvxfer.transport.loopback import OPS

BLOCKS, TOKENS, CONTENT = 16, 4, 8
DEADLINE_S = 20.0


def until(condition: Callable[[], object]) -> Any:
    """What `condition` gives, as soon as it is true."""
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.002)
    return found


def memory_of(seed: int | None = None) -> np.ndarray:
    size = area_bytes(
        layers=1, blocks=BLOCKS, heads=1, tokens_per_block=TOKENS, content_bytes=CONTENT
    )
    if seed is None:
        return np.zeros(size, np.uint8)
    return np.random.default_rng(seed).integers(1, 256, size, dtype=np.uint8)


def shard_of(memory: np.ndarray) -> Any:
    (shard,) = engine_shards(
        bases=[int(memory.ctypes.data)],
        layers=("0",),
        blocks=BLOCKS,
        tokens_per_block=TOKENS,
        heads_total=1,
        content_bytes=CONTENT,
        null_block=0,
    )
    return shard


@attrs.define(slots=False)
class LoopbackDoor:
    """A session of the loopback transport with one piece of memory and one peer."""

    memory: np.ndarray
    name: str = "loopback"
    proof: bool = True
    """False: whatever is asked of the transport, it has no proof."""
    session: int = attrs.field(init=False)
    peer: int = 0

    def __attrs_post_init__(self) -> None:
        status, self.session = OPS.open({})
        assert status == Status.OK
        piece = Memory(
            base=int(self.memory.ctypes.data), length=self.memory.nbytes, keepalive=self.memory
        )
        assert OPS.register_region(self.session, piece)[0] == Status.OK

    @property
    def shard(self) -> dict[str, Any]:
        return shard_to_plain(shard_of(self.memory))

    def blob(self) -> bytes:
        status, self.peer, blob = OPS.peer_create(self.session)
        assert status == Status.OK
        return blob

    def connect(self, blob: bytes) -> None:
        if OPS.peer_connect(self.session, self.peer, blob) != Status.OK:
            raise ValueError("blob")

    def notifications(self) -> list[bytes]:
        return [payload for _, payload in OPS.poll_notifications(self.session, 256)[1]]

    def notify(self, payload: bytes) -> None:
        assert OPS.send_notification(self.session, self.peer, payload) == Status.OK

    def fence(self) -> bool:
        return self.proof and OPS.fence_peer(self.session, self.peer) == Status.OK

    def close(self) -> None:
        OPS.close(self.session)

    def block(self, number: int) -> np.ndarray:
        return self.memory.reshape(BLOCKS, -1)[number]


@attrs.define(slots=False)
class Producer:
    """A real agent that prefilled, with memory full of something."""

    agent: Agent
    memory: np.ndarray

    @classmethod
    def start(cls, **changes: Any) -> Producer:
        memory = memory_of(seed=1)
        settings: dict[str, Any] = {
            "engine_id": "P",
            "role": Role.PRODUCER,
            "shard": shard_of(memory),
            "memories": (
                Memory(base=int(memory.ctypes.data), length=memory.nbytes, keepalive=memory),
            ),
            "listen": ("127.0.0.1", 0),
            "timings": Timings(offer_lease_ms=5_000),
        }
        return cls(Agent.start(AgentConfig(**(settings | changes))), memory)

    def block(self, number: int) -> np.ndarray:
        return self.memory.reshape(BLOCKS, -1)[number]

    def offer(self, tid: str, *blocks: int, **changes: Any) -> None:
        table = BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64))
        settings = {"tables": (table,), "token_count": len(blocks) * TOKENS, "tag": tid}
        self.agent.offer(TransferId(tid), **(settings | changes))

    def result(self) -> Result:
        (found,) = until(self.agent.take)
        return found

    @property
    def address(self) -> tuple[str, int]:
        assert self.agent.address is not None
        return self.agent.address
