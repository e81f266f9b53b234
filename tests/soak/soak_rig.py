"""Engines of a soak, seen from outside: their processes and the transfers between them.

Owns starting, ordering and ending them, and one record per transfer. Invariant: every
transfer that was begun is told of in the end, by its engines or by their death.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

PEER = Path(__file__).with_name("soak_peer.py")
ORDER_S = 120.0

Fact = dict[str, Any]


class PeerGone(Exception):
    """The process has ended, or was killed."""


@attrs.define(eq=False)
class Peer:
    """One engine's process."""

    settings: Fact
    process: asyncio.subprocess.Process
    address: list[Any] | None = None
    _answers: dict[str, asyncio.Future[Fact]] = attrs.field(factory=dict)
    _ends: dict[str, asyncio.Future[Fact]] = attrs.field(factory=dict)
    _reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Fact) -> Peer:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PEER),
            json.dumps(settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        peer = cls(settings, process)
        ready = peer._await("ready")
        peer._reader = asyncio.create_task(peer._read())
        peer.address = (await asyncio.wait_for(ready, ORDER_S))["address"]
        return peer

    @property
    def name(self) -> str:
        return str(self.settings["engine_id"])

    @property
    def place(self) -> list[Any]:
        assert self.address is not None
        return [self.name, *self.address]

    def order(self, do: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        if not self.gone and not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")

    async def ask(self, do: str) -> Fact:
        """An order that is answered. Raises PeerGone."""
        answer = self._await(do)
        self.order(do)
        return await asyncio.wait_for(answer, ORDER_S)

    def end_of(self, tid: str) -> asyncio.Future[Fact]:
        """Comes when this engine has told how the transfer ended for it."""
        future = self._ends[tid] = asyncio.get_running_loop().create_future()
        if self.gone:
            future.set_result({"tid": tid, "end": "gone"})
        return future

    async def close(self) -> Fact:
        fact = await self.ask("close")
        await self.process.wait()
        return fact

    async def kill(self) -> None:
        if not self.gone:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        if self._reader is not None:
            await self._reader

    @property
    def gone(self) -> bool:
        return self.process.returncode is not None

    def _await(self, what: str) -> asyncio.Future[Fact]:
        future = self._answers[what] = asyncio.get_running_loop().create_future()
        return future

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            fact = json.loads(line)
            known = self._answers if "order" in fact else self._ends
            future = known.pop(fact.get("order") or fact["tid"], None)
            if future is not None and not future.done():
                future.set_result(fact)
        await self.process.wait()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(PeerGone(f"{self.name} has ended"))
        for tid, future in self._ends.items():
            if not future.done():
                future.set_result({"tid": tid, "end": "gone"})
        self._ends.clear()


@attrs.define
class Traffic:
    """Transfers between engines, one record each."""

    ends: Counter[str] = attrs.field(factory=Counter)
    """By how the consumer's side ended; `wrong` where bytes were not right."""
    open: set[asyncio.Task[str]] = attrs.field(factory=set)
    waited_s_max: float = 0.0
    _names: itertools.count[int] = attrs.field(factory=itertools.count)

    def begin(self, producer: Peer, consumer: Peer, **how: Any) -> asyncio.Task[str]:
        task = asyncio.create_task(self.move(producer, consumer, **how))
        self.open.add(task)
        task.add_done_callback(self.open.discard)
        return task

    async def move(
        self,
        producer: Peer,
        consumer: Peer,
        *,
        count: int = 4,
        pull: bool = False,
        chunks: int = 1,
        spoil: str = "",
        after_s: float = 0.0,
    ) -> str:
        """One transfer; `spoil` "cancel" or "withdraw" ends it early, after `after_s`."""
        tid = f"{producer.name}-{consumer.name}-{next(self._names)}"
        begun_s = time.monotonic()
        wanted, given = consumer.end_of(tid), producer.end_of(tid)
        consumer.order("register", tid=tid, count=count, producer=producer.place, pull=pull)
        producer.order("offer", tid=tid, count=count, chunks=min(chunks, count))
        if spoil:
            await asyncio.sleep(after_s)
            (consumer if spoil == "cancel" else producer).order(spoil, tid=tid)
        await asyncio.wait({wanted, given}, return_when=asyncio.FIRST_COMPLETED)
        # As a router does when one leg has failed: the other is told that nobody will come.
        if wanted.done() and wanted.result()["end"] != "landed":
            producer.order("withdraw", tid=tid)
        if given.done() and given.result()["end"] != "sent":
            consumer.order("cancel", tid=tid)
        fact, _ = await asyncio.gather(wanted, given)
        self.waited_s_max = max(self.waited_s_max, time.monotonic() - begun_s)
        end = str(fact["end"])
        if end == "landed" and not fact["right"]:
            end = "wrong"
        elif end == "lost":
            end = f"lost {fact['reason']}"
        self.ends[end] += 1
        return end

    async def settle(self) -> None:
        """Until all that was begun has ended."""
        while self.open:
            await asyncio.wait(set(self.open))
