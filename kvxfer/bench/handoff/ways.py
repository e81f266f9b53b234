"""One end of a hand-off, and the end that uses kvxfer.

Owns the interface that the synthetic engine calls. Invariant: `start` and `poll` are all
that a way does on the engine's thread; what else it needs runs on threads of its own and
is counted as such.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kvxfer.bench.handoff.setting import Setting
from kvxfer.driver import (
    Agent,
    AgentConfig,
    Landed,
    Lost,
    Memory,
    ProducerAddress,
    Role,
    Sent,
    Timings,
    TransferId,
    Unsent,
)
from kvxfer.errors import TransportFault
from kvxfer.layout.geometry import BlockTable
from kvxfer.status import Status

LEASE_MS = 120_000


class Way(Protocol):
    """One side. A request is (slot, number); a slot has one request at a time."""

    after_producer: bool
    """Consumer: `start` comes when the producer's answer has been relayed, as in pull."""

    def hello(self) -> Any:
        """What the other side needs to reach this one."""

    def connect(self, theirs: Any) -> None: ...

    def start(self, slot: int, number: int) -> None:
        """P: the prefill has ended. D: have the blocks filled."""

    def poll(self) -> list[tuple[int, int]]:
        """P: sources that are free again. D: requests that may decode."""

    def close(self) -> None: ...


def failed(text: str) -> TransportFault:
    return TransportFault("handoff", Status.OP_FAILED, text)


def name_of(slot: int, number: int) -> str:
    return f"{slot}:{number}"


def request_of(name: str) -> tuple[int, int]:
    slot, number = name.split(":")
    return int(slot), int(number)


class _Kvxfer:
    """What both ends of ours share."""

    after_producer = False

    def __init__(self, setting: Setting, memory: np.ndarray, side: str) -> None:
        self.setting = setting
        self.tables = [
            (BlockTable(group=0, first_token=0, blocks=ids),) for ids in setting.blocks_of(side)
        ]
        producer = side == "P"
        base = int(memory.ctypes.data)
        self.agent = Agent.start(
            AgentConfig(
                engine_id=side,
                role=Role.PRODUCER if producer else Role.CONSUMER,
                shard=setting.shard(base),
                memories=(Memory(base=base, length=memory.nbytes, keepalive=memory),),
                transport=setting.transport,
                listen=("127.0.0.1", 0) if producer else None,
                timings=Timings(offer_lease_ms=LEASE_MS),
                events_max=1,
            )
        )

    def hello(self) -> Any:
        return self.agent.address

    def close(self) -> None:
        self.agent.close()


class KvxferProducer(_Kvxfer):
    def __init__(self, setting: Setting, memory: np.ndarray) -> None:
        super().__init__(setting, memory, "P")

    def connect(self, theirs: Any) -> None:
        """The consumer dials."""

    def start(self, slot: int, number: int) -> None:
        tid = TransferId(name_of(slot, number))
        self.agent.offer(tid, self.tables[slot], self.setting.token_count)

    def poll(self) -> list[tuple[int, int]]:
        ended = []
        for result in self.agent.take():
            if isinstance(result, Unsent):
                raise failed(f"{result.transfer_id}: unsent, {result.reason.name}")
            if isinstance(result, Sent):
                ended.append(request_of(result.transfer_id))
        return ended


class KvxferConsumer(_Kvxfer):
    def __init__(self, setting: Setting, memory: np.ndarray) -> None:
        super().__init__(setting, memory, "D")
        self.producers: tuple[ProducerAddress, ...] = ()

    def connect(self, theirs: Any) -> None:
        host, port = theirs
        self.producers = (ProducerAddress(engine_id="P", rank=0, host=host, port=port),)

    def start(self, slot: int, number: int) -> None:
        self.agent.register(
            TransferId(name_of(slot, number)),
            producers=self.producers,
            tables=self.tables[slot],
            token_start=0,
            token_stop=self.setting.token_count,
            deadline_ms=LEASE_MS,
        )

    def poll(self) -> list[tuple[int, int]]:
        ready = []
        for result in self.agent.take():
            if isinstance(result, Lost):
                raise failed(f"{result.transfer_id}: lost, {result.reason.name}")
            if isinstance(result, Landed):
                ready.append(request_of(result.transfer_id))
        return ready
