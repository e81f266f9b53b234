"""What a prefill and a decode engine have in common: a thread and its agents.

Owns the engine's thread and what it needs of an agent. Knows no model and no
transfer. Invariants: jobs are taken in the order in which they came; an error in
the thread is reported and ends the engine, it never disappears.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core.ids import Initiator, TransferId
from kvxfer.demo.cache import EngineCache, OutOfBlocks
from kvxfer.demo.model import Model
from kvxfer.demo.reports import EngineDied, EngineState, Report, Step
from kvxfer.demo.sequence import Prompt
from kvxfer.driver.commands import ProducerAddress
from kvxfer.driver.results import Result
from kvxfer.errors import BadValue
from kvxfer.layout.geometry import BlockTable

IDLE_WAIT_S = 0.001
"""An engine with nothing to do looks again after this time, or at its first agent's word."""


class AgentPort(Protocol):
    """The part of `kvxfer.driver.Agent` that an engine uses."""

    def expect(self, transfer_id: TransferId) -> None: ...

    def offer(
        self,
        transfer_id: TransferId,
        tables: tuple[BlockTable, ...],
        token_count: int,
        *,
        digest: bytes = b"",
        sealed: bool = True,
    ) -> None: ...

    def grow(
        self,
        transfer_id: TransferId,
        tables: tuple[BlockTable, ...],
        token_count: int,
        *,
        sealed: bool = False,
    ) -> None: ...

    def withdraw(self, transfer_id: TransferId) -> None: ...

    def register(
        self,
        transfer_id: TransferId,
        *,
        producers: tuple[ProducerAddress, ...],
        tables: tuple[BlockTable, ...],
        token_start: int,
        token_stop: int,
        digest: bytes = b"",
        initiator: Initiator = Initiator.PRODUCER,
    ) -> None: ...

    def cancel(self, transfer_id: TransferId) -> None: ...

    def take(self) -> list[Result]: ...

    def wait(self, timeout_s: float) -> bool: ...

    def counters(self) -> Mapping[str, int]: ...

    def events(self) -> Sequence[TraceLike]: ...

    def close(self, timeout_s: float = 5.0) -> object: ...


class TraceLike(Protocol):
    """One step of a transfer, as an agent records it."""

    @property
    def t_ms(self) -> float: ...

    @property
    def transfer_id(self) -> TransferId: ...

    @property
    def step(self) -> str: ...


@attrs.frozen(kw_only=True)
class Job:
    """One request as an engine gets it.

    `reads`: D moves the KV. `streams`: P states each chunk when it is computed.
    """

    transfer_id: TransferId
    prompt: Prompt
    reads: bool = False
    streams: bool = False


@attrs.define(eq=False, kw_only=True)
class Engine(ABC):
    """A thread that serves jobs from its own cache. `agents[r]` belongs to rank r."""

    name: str
    model: Model
    cache: EngineCache
    agents: Sequence[AgentPort]
    report: Callable[[Report], None]
    """Called from the engine's thread; must not block."""
    inbox: deque[Job] = attrs.field(factory=deque, init=False)
    """Jobs that have no blocks yet, oldest first. Only `submit` is for other threads."""
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    @abstractmethod
    def turn(self) -> bool:
        """Do what can be done now, in bounded time; False where there was nothing."""

    @abstractmethod
    def tokens_kept(self, prompt: Prompt) -> int:
        """Tokens of a request whose KV this engine keeps."""

    def submit(self, job: Job) -> None:
        """Queue a job, from any thread. BadValue where it can never fit into the cache."""
        wanted = self.cache.shape.blocks_for(self.tokens_kept(job.prompt))
        if wanted > self.cache.shape.block_count:
            bound = f"at most {self.cache.shape.block_count} at {self.name}"
            raise BadValue("blocks of one request", wanted, bound)
        self.inbox.append(job)

    def next_job(self) -> tuple[Job, npt.NDArray[np.int64]] | None:
        """The oldest job and its blocks, once there are enough free ones for it."""
        if not self.inbox:
            return None
        wanted = self.cache.shape.blocks_for(self.tokens_kept(self.inbox[0].prompt))
        try:
            blocks = self.cache.allocator.take(wanted)
        except OutOfBlocks:
            return None
        return self.inbox.popleft(), blocks

    def start(self) -> None:
        self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the turn it is in. Blocks stay where they are."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def state(self, *, with_steps: bool = False) -> EngineState:
        """What is held and open now; with the agents' trace records where asked for."""
        counters = [agent.counters() for agent in self.agents]
        steps = tuple(
            Step(t_ms=record.t_ms, transfer_id=record.transfer_id, rank=rank, step=record.step)
            for rank, agent in enumerate(self.agents)
            for record in (agent.events() if with_steps else ())
        )
        return EngineState(
            blocks_held=self.cache.allocator.held,
            live=sum(c["live"] for c in counters),
            quarantined=sum(c["quarantined"] for c in counters),
            steps=steps,
        )

    def results(self) -> list[tuple[int, Result]]:
        """New results of all agents, each with its rank."""
        return [(rank, r) for rank, agent in enumerate(self.agents) for r in agent.take()]

    def _main(self) -> None:
        try:
            while not self._stop.is_set():
                if not self.turn():
                    self.agents[0].wait(IDLE_WAIT_S)
        except Exception as error:  # noqa: BLE001 - whatever ends the engine is told to the run
            self.report(EngineDied(engine=self.name, error=f"{type(error).__name__}: {error}"))
