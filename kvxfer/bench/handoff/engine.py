"""One synthetic engine: a process whose main thread runs steps.

Owns the loop and its clock. Run as a module with the numbers of two inherited sockets:
one to the run that commands it, one to the other engine, which stands for the router's
relay. Invariants: a step's length is the same in every way of moving the bytes but for
what that way does to it; a request that D calls ready has the stamp of its own prefill.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import zlib
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvxfer.bench.handoff.setting import Setting
from kvxfer.bench.handoff.ways import KvxferConsumer, KvxferProducer, Way, failed

DEADLINE_S = 300.0


def make_way(setting: Setting, side: str, memory: np.ndarray) -> Way:
    """Raises KvxferError or ImportError where it cannot be used here."""
    if setting.way == "kvxfer":
        return (KvxferProducer if side == "P" else KvxferConsumer)(setting, memory)
    from kvxfer.bench.handoff import nixl_ways as nx

    ways: dict[tuple[str, str], Any] = {
        ("nixl-writer", "P"): nx.WriterProducer,
        ("nixl-writer", "D"): nx.WriterConsumer,
        ("inline", "P"): nx.InlineProducer,
        ("inline", "D"): nx.InlineConsumer,
    }
    made: Way = ways[setting.way, side](setting, memory)
    return made


class Engine:
    """What both sides do: steps, and the measuring of them."""

    def __init__(self, setting: Setting, side: str, relay: Connection) -> None:
        self.setting = setting
        self.relay = relay
        shape = (setting.layers, setting.pool_blocks, setting.page_bytes)
        self.memory = np.zeros(shape, dtype=np.uint8)
        self.blocks = setting.blocks_of(side)
        self.stamps = self.memory.reshape(-1).view(np.uint64)
        self.way = make_way(setting, side, self.memory)
        self.start_s: list[float] = []
        self.poll_s: list[float] = []
        self.start_cpu_s: list[float] = []
        self.poll_cpu_s: list[float] = []
        self.moments_ns: dict[tuple[int, int], int] = {}

    def stamp_at(self, slot: int) -> int:
        """Where the last block that is written of a slot starts, in words of 8 bytes."""
        page = (self.setting.layers - 1) * self.setting.pool_blocks + int(self.blocks[slot][-1])
        return page * self.setting.page_bytes // 8

    def work(self) -> None:
        """The step itself: Python under the lock, then a wait without it."""
        total = 0
        for number in range(self.setting.hold_loops):
            total += number
        time.sleep(self.setting.wait_s)

    def started(self, slot: int, number: int) -> None:
        cpu, begin = time.thread_time(), time.perf_counter()
        self.way.start(slot, number)
        self.start_s.append(time.perf_counter() - begin)
        self.start_cpu_s.append(time.thread_time() - cpu)

    def polled(self) -> list[tuple[int, int]]:
        cpu, begin = time.thread_time(), time.perf_counter()
        ended = self.way.poll()
        self.poll_s.append(time.perf_counter() - begin)
        self.poll_cpu_s.append(time.thread_time() - cpu)
        return ended

    def idle(self) -> dict[str, Any]:
        """Steps with nothing in flight."""
        return self._run(lambda number: number < self.setting.idle_steps, lambda _n: self.polled())

    def loaded(self) -> dict[str, Any]:
        """Steps until every request has ended."""
        end = time.monotonic() + DEADLINE_S

        def goes_on(_number: int) -> bool:
            if time.monotonic() > end:
                raise failed(f"{self.left} requests had not ended after {DEADLINE_S:g} s")
            return self.left > 0

        for kept in (self.start_s, self.poll_s, self.start_cpu_s, self.poll_cpu_s):
            kept.clear()
        found = self._run(goes_on, self.serve)
        return found | {
            "start_s": self.start_s,
            "poll_s": self.poll_s,
            "start_cpu_s": self.start_cpu_s,
            "poll_cpu_s": self.poll_cpu_s,
            "moments_ns": self.moments_ns,
        }

    left = 0

    def serve(self, _number: int, /) -> None:
        raise NotImplementedError

    def _run(self, goes_on: Any, serve: Any) -> dict[str, Any]:
        steps_s = []
        cpu = time.process_time() - time.thread_time()
        begin = time.perf_counter()
        number = 0
        while goes_on(number):
            start = time.perf_counter()
            serve(number)
            self.work()
            steps_s.append(time.perf_counter() - start)
            number += 1
        return {
            "steps_s": steps_s,
            "other_cpu_s": time.process_time() - time.thread_time() - cpu,
            "wall_s": time.perf_counter() - begin,
        }

    def checksums(self) -> list[int]:
        """Of each slot's blocks, in the order of its tokens."""
        return [zlib.crc32(self.memory[:, ids].tobytes()) for ids in self.blocks]


class ProducerEngine(Engine):
    def __init__(self, setting: Setting, relay: Connection) -> None:
        super().__init__(setting, "P", relay)
        self.memory[:] = np.random.default_rng(setting.seed).integers(
            0, 256, self.memory.shape, dtype=np.uint8
        )
        self.left = setting.requests
        self._next = [0] * setting.slots
        self._due = [(slot + 1) * setting.prefill_steps for slot in range(setting.slots)]

    def serve(self, number: int, /) -> None:
        for slot, _ in self.polled():
            self.left -= 1
            self._due[slot] = number + self.setting.prefill_steps
        for slot, due in enumerate(self._due):
            if due <= number and self._next[slot] < self.setting.per_slot:
                self._finish(slot)

    def _finish(self, slot: int) -> None:
        which = self._next[slot]
        self._next[slot] += 1
        self._due[slot] = sys.maxsize
        self.stamps[self.stamp_at(slot)] = which
        self.moments_ns[slot, which] = time.monotonic_ns()
        self.started(slot, which)
        self.relay.send((slot, which))


class ConsumerEngine(Engine):
    def __init__(self, setting: Setting, relay: Connection) -> None:
        super().__init__(setting, "D", relay)
        self.left = setting.requests
        self._first = True

    def serve(self, _number: int, /) -> None:
        while self.relay.poll(0):
            request = self.relay.recv()
            if self.way.after_producer:
                self.started(*request)
        if self._first and not self.way.after_producer:
            for slot in range(self.setting.slots):
                self.started(slot, 0)
        self._first = False
        for slot, which in self.polled():
            self.moments_ns[slot, which] = time.monotonic_ns()
            if int(self.stamps[self.stamp_at(slot)]) != which:
                raise failed(f"slot {slot}: ready before request {which} had landed")
            self.left -= 1
            if which + 1 < self.setting.per_slot and not self.way.after_producer:
                self.started(slot, which + 1)


def main() -> None:
    """Carry out commands until the link ends."""
    # Ctrl-C reaches the whole process group; this process ends with its link.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link, relay = (Connection(int(number)) for number in sys.argv[1:3])
    engine: Engine | None = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            name, args = link.recv()
            try:
                if name == "make":
                    side, setting = args
                    kind = ProducerEngine if side == "P" else ConsumerEngine
                    engine = kind(setting, relay)
                    answer: Any = engine.way.hello()
                else:
                    assert engine is not None
                    owner = engine.way if name in ("connect", "close") else engine
                    answer = getattr(owner, name)(*args)
                link.send((answer, ""))
            except Exception as error:  # noqa: BLE001 - told to the one who asked
                link.send((None, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
