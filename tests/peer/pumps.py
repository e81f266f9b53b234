"""Two agents without threads, joined by hand: every step of the wire is the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from door import memory_of, shard_of

from kvxfer.core.ids import Incarnation, LinkId, PeerKey, Role, TransferId
from kvxfer.driver import AgentConfig, Memory, ProducerAddress, Result
from kvxfer.driver import commands as cmd
from kvxfer.driver.pump import Pump
from kvxfer.layout.geometry import BlockTable
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import TransportOps

LINK = LinkId(1)


def table(*blocks: int) -> tuple[BlockTable, ...]:
    return (BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64)),)


@attrs.define(slots=False)
class Pumps:
    """A producer P and a consumer D over one hub."""

    bend: Callable[[TransportOps], TransportOps] = attrs.field(default=lambda ops: ops)
    changes: dict[str, Any] = attrs.field(factory=dict)
    p: Pump = attrs.field(init=False)
    d: Pump = attrs.field(init=False)
    memories: dict[str, np.ndarray] = attrs.field(factory=dict)
    results: dict[str, list[Result]] = attrs.field(factory=lambda: {"P": [], "D": []})
    sent: list[tuple[str, bytes]] = attrs.field(factory=list)
    """Everything that was written to the control connection, by whom."""
    now_ms: float = 0.0

    def __attrs_post_init__(self) -> None:
        ops = self.bend(make_ops(Hub()))
        self.p = self._pump("P", Role.PRODUCER, ops, 1)
        self.d = self._pump("D", Role.CONSUMER, ops, 1000)

    def _pump(self, name: str, role: Role, ops: TransportOps, life: int) -> Pump:
        memory = self.memories[name] = memory_of(seed=life)
        piece = Memory(base=int(memory.ctypes.data), length=memory.nbytes, keepalive=memory)
        config = AgentConfig(
            engine_id=name,
            role=role,
            shard=shard_of(memory),
            memories=(piece,),
            listen=("127.0.0.1", 0) if role is Role.PRODUCER else None,
            **self.changes,
        )
        return Pump(config=config, ops=ops, incarnation=Incarnation(life))

    def register(self, tid: str, *blocks: int, stop: int | None = None) -> None:
        here = ProducerAddress(engine_id="P", rank=0, host="P", port=1)
        command = cmd.Register(
            transfer_id=TransferId(tid),
            producers=(here,),
            tables=table(*blocks),
            token_start=0,
            token_stop=4 * len(blocks) if stop is None else stop,
            tag=tid,
        )
        self.d.submit(command, self.now_ms)

    def offer(self, tid: str, *blocks: int) -> None:
        command = cmd.Offer(
            transfer_id=TransferId(tid),
            tables=table(*blocks),
            token_count=4 * len(blocks),
            tag=tid,
        )
        self.p.submit(command, self.now_ms)

    def turn(self, name: str) -> bool:
        """One turn of one side; what it writes arrives at once."""
        here, there = (self.p, self.d) if name == "P" else (self.d, self.p)
        turn = here.turn(self.now_ms)
        for _ in turn.dials:
            self.p.link_opened(LINK, None, self.now_ms)
            self.d.link_opened(LINK, PeerKey("P", 0), self.now_ms)
        for link, data in turn.writes:
            self.sent.append((name, data))
            there.link_bytes(link, data, self.now_ms)
        self.results[name] += turn.results
        return turn.progressed

    def settle(self, *names: str) -> None:
        """Turns until nothing moves; of both sides, or of the named ones."""
        moved = True
        while moved:
            moved = False
            for name in names or ("P", "D"):
                moved = self.turn(name) or moved
            moved = moved or (bool(self.p.poster.active) and names != ("D",))

    def close(self) -> None:
        self.p.close()
        self.d.close()
