"""One engine of a soak: a process with an agent, a few blocks, and orders by line.

Run as a script with its settings as JSON in the first argument. Reads one JSON order per
line from standard input and writes one JSON fact per line to standard output. Owns the
blocks: what a transfer must bring is worked out from its name on both sides, and a block
that is free holds a canary, so that a write after its release is seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
if SETTINGS.get("newer"):
    # Before anything else of the library is loaded, as another build would be another file.
    import newer_minor

    newer_minor.install()

from kvxfer.core.ids import Initiator, Role  # noqa: E402
from kvxfer.driver import (  # noqa: E402
    Agent,
    AgentConfig,
    Landed,
    LetGo,
    Lost,
    Memory,
    ProducerAddress,
    Result,
    Sent,
    Timings,
    TransferId,
    Unsent,
)
from kvxfer.layout.geometry import BlockTable  # noqa: E402
from kvxfer.layout.orders import area_bytes, engine_shards  # noqa: E402

BLOCKS, TOKENS, CONTENT, LAYERS = 512, 16, 128, 4
CANARY = 0xEE
POLL_S = 0.005
EVENTS_MAX = 2_000
"""Trace records kept. The default, 100,000, is not reached in minutes, and memory grows until
it is; so it does for the ten minutes that a tombstone lives by default."""
TIMINGS = Timings(transfer_deadline_ms=20_000, offer_lease_ms=10_000, tombstone_ms=60_000)


class Engine:
    """The blocks, and who has which."""

    def __init__(self) -> None:
        size = area_bytes(
            layers=LAYERS, blocks=BLOCKS, heads=1, tokens_per_block=TOKENS, content_bytes=CONTENT
        )
        self.memory = np.full(size, CANARY, np.uint8)
        self.free = deque(range(1, BLOCKS))
        self.held: dict[str, list[int]] = {}
        self.late_writes = 0
        self.offset = size // LAYERS
        self.agent = Agent.start(self.config())

    def config(self) -> AgentConfig:
        base = int(self.memory.ctypes.data)
        (shard,) = engine_shards(
            bases=[base],
            layers=tuple(map(str, range(LAYERS))),
            blocks=BLOCKS,
            tokens_per_block=TOKENS,
            heads_total=1,
            content_bytes=CONTENT,
            null_block=0,
        )
        producer = SETTINGS["role"] == "P"
        return AgentConfig(
            engine_id=SETTINGS["engine_id"],
            role=Role.PRODUCER if producer else Role.CONSUMER,
            shard=shard,
            memories=(Memory(base=base, length=self.memory.nbytes, keepalive=self.memory),),
            transport=SETTINGS["transport"],
            listen=("127.0.0.1", SETTINGS["port"]) if producer else None,
            timings=TIMINGS,
            events_max=EVENTS_MAX,
        )

    # --- blocks ---

    def view(self, block: int) -> np.ndarray:
        """The bytes of one block: a row of each layer."""
        return self.memory.reshape(LAYERS, BLOCKS, -1)[:, block, :]

    def take(self, tid: str, count: int) -> tuple[BlockTable, ...] | None:
        if tid in self.held or len(self.free) < count:
            return None
        blocks = self.held[tid] = [self.free.popleft() for _ in range(count)]
        for block in blocks:
            self.late_writes += bool((self.view(block) != CANARY).any())
            self.view(block)[:] = 0
        return (BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64)),)

    def give_back(self, tid: str) -> None:
        for block in self.held.pop(tid, []):
            self.view(block)[:] = CANARY
            self.free.append(block)

    def right(self, tid: str) -> bool:
        return all(
            bool((self.view(block) == content(tid, index)).all())
            for index, block in enumerate(self.held[tid])
        )

    # --- orders ---

    def offer(self, tid: str, count: int, chunks: int) -> None:
        tables = self.take(tid, count)
        if tables is None:
            tell(tid=tid, end="full")
            return
        for index, block in enumerate(self.held[tid]):
            self.view(block)[:] = content(tid, index)
        first = TOKENS * max(1, count // chunks)
        self.agent.offer(TransferId(tid), tables, first, tag=tid, sealed=chunks == 1)
        for done in range(2, chunks + 1):
            last = done == chunks
            tokens = TOKENS * count if last else min(first * done, TOKENS * count)
            self.agent.grow(TransferId(tid), tables, tokens, sealed=last, tag=tid)

    def register(self, tid: str, count: int, producer: list[Any], pull: bool) -> None:
        tables = self.take(tid, count)
        if tables is None:
            tell(tid=tid, end="full")
            return
        engine_id, host, port = producer
        self.agent.register(
            TransferId(tid),
            producers=(ProducerAddress(engine_id=engine_id, rank=0, host=host, port=port),),
            tables=tables,
            token_start=0,
            token_stop=TOKENS * count,
            tag=tid,
            initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
        )

    def cancel(self, tid: str) -> None:
        self.agent.cancel(TransferId(tid), tid)

    def withdraw(self, tid: str) -> None:
        self.agent.withdraw(TransferId(tid), tag=tid)

    def drain(self) -> None:
        self.agent.drain()

    def sleep(self) -> None:
        """Quiesce and resume, as around a sleep."""
        left = self.agent.quiesce(5.0)
        self.pass_on()
        if not left:
            self.agent.resume()
        tell(order="sleep", left=list(map(str, left)))

    def state(self) -> None:
        counters = self.agent.counters()
        status = Path("/proc/self/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        tell(
            order="state",
            rss_kib=int(fields["VmRSS"].split()[0]),
            threads=int(fields["Threads"]),
            descriptors=len(os.listdir("/proc/self/fd")),
            live=len(self.agent.leftovers(10.0)),
            drained=self.agent.drained(),
            quarantined=counters["quarantined"],
            links=counters["links"],
            blocks_held=BLOCKS - 1 - len(self.free),
            late_writes=self.late_writes,
            unknown_messages=counters.get("unknown_messages", 0),
            protocol_faults=counters.get("protocol_faults", 0),
            newer=dict(newer_minor.SEEN) if SETTINGS.get("newer") else {},
        )

    def close(self) -> None:
        closed = self.agent.close(2.0)
        self.pass_on()
        tell(order="close", ended=closed.ended, left=list(map(str, closed.leftovers)))
        # What the transport's library leaves at a process's end is not ours to run through.
        sys.stdout.flush()
        os._exit(0)

    # --- results ---

    def pass_on(self) -> None:
        for result in self.agent.take():
            self.result(result)

    def result(self, result: Result) -> None:
        tid = result.tag
        match result:
            case Landed():
                tell(tid=tid, end="landed", right=self.right(tid))
            case Lost():
                tell(tid=tid, end="lost", reason=result.reason.name)
            case LetGo():
                self.give_back(tid)
            case Sent():
                self.give_back(tid)
                tell(tid=tid, end="sent")
            case Unsent():
                self.give_back(tid)
                tell(tid=tid, end="unsent", reason=result.reason.name)


def content(tid: str, index: int) -> np.ndarray:
    """What block `index` of a transfer holds: never a canary's row, another for each name."""
    digest = hashlib.blake2b(f"{tid}/{index}".encode(), digest_size=64).digest()
    return np.resize(np.frombuffer(digest, np.uint8), TOKENS * CONTENT)


def tell(**fact: Any) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main() -> None:
    engine = Engine()
    tell(order="ready", address=engine.agent.address)
    lines = b""
    while True:
        readable, _, _ = select.select([0], [], [], POLL_S)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                engine.close()
            *whole, lines = (lines + data).split(b"\n")
            for line in whole:
                order = json.loads(line)
                getattr(engine, order.pop("do"))(**order)
        engine.pass_on()


if __name__ == "__main__":
    main()
