"""A prefill engine and a decode engine, and the requests they serve together.

Owns both engines' lives and the order of the two legs of each request: it stands
where a router would. Invariant: when the pair is closed, no thread, process,
socket or registered memory of it is left.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import attrs

from kvxfer.demo.decode import DecodeEngine
from kvxfer.demo.model import ModelShape
from kvxfer.demo.producers import DRAIN_S, LocalProducer, ProcessProducer, Producer
from kvxfer.demo.reports import (
    EngineDied,
    EngineState,
    Failed,
    Finished,
    Prefilled,
    Released,
    Report,
    clock_ms,
)
from kvxfer.demo.sequence import Prompt
from kvxfer.demo.served import Served
from kvxfer.demo.setup import EngineSetup, close_agents, start_decode
from kvxfer.demo.workload import DemoOptions, Mode
from kvxfer.driver.agent import Agent
from kvxfer.errors import TransportFault
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.registry import open_transport

STALL_S = 60.0
"""With no report for so long the run gives up and says what was open."""
SETTLE_S = 10.0
SETTLE_STEP_S = 0.01


class DemoStopped(RuntimeError):
    """The run could not go on: an engine died or nothing moved any more."""


def crosses_processes(transport: str) -> bool:
    """Whether the transport says that its peers may live in other processes.

    Raises UnknownTransport or TransportFault where it cannot be used here.
    """
    ops = open_transport(transport)
    status, session = ops.open({})
    if status != Status.OK:
        raise TransportFault(f"open of {transport}", status, ops.last_error(session))
    try:
        return Caps.CROSS_PROCESS in ops.caps(session)
    finally:
        ops.close(session)


@attrs.define(eq=False, kw_only=True)
class Pair:
    """Both engines, up and connected by reports to this thread."""

    producer: Producer
    decode: DecodeEngine
    decode_agents: list[Agent]
    two_processes: bool
    _reports: queue.SimpleQueue[Report]

    @classmethod
    def start(cls, options: DemoOptions, record_dir: str = "") -> Pair:
        """Start both. Raises KvxferError, or ProducerDown for a process that cannot start."""
        two_processes = crosses_processes(options.transport)
        reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        prefill_setup = EngineSetup(
            engine_id="P",
            transport=options.transport,
            model_seed=options.seed,
            cache_seed=options.seed + 1,
            cache=options.prefill_cache(),
            # Only where chunks are to leave early: a part more is a notification more.
            part_tokens=ModelShape().chunk_tokens if Mode.STREAM in options.modes else 0,
            key_file=options.key_file,
            record_dir=record_dir,
        )
        decode_setup = attrs.evolve(
            prefill_setup,
            engine_id="D",
            cache_seed=options.seed + 2,
            cache=options.decode_cache(),
        )
        kind = ProcessProducer if two_processes else LocalProducer
        producer = kind.start(prefill_setup, reports.put)
        try:
            decode, agents = start_decode(decode_setup, producer.producers, reports.put)
        except BaseException:
            producer.close()
            raise
        return cls(
            producer=producer,
            decode=decode,
            decode_agents=agents,
            two_processes=two_processes,
            reports=reports,
        )

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.decode.stop()
            close_agents(self.decode_agents, drain_s=DRAIN_S if kind is None else 0.0)
        finally:
            self.producer.close()

    def serve(
        self,
        mode: Mode,
        prompts: Sequence[Prompt],
        concurrency: int,
        answered: Callable[[Served], None],
        *,
        first_index: int = 0,
    ) -> list[Served]:
        """Serve all prompts, `concurrency` at a time; calls `answered` for each in turn.

        Returns when every request is answered or has failed and P has its blocks
        back. DemoStopped where an engine dies or nothing moves for STALL_S.
        """
        waiting = deque(enumerate(prompts, first_index))
        served: dict[str, Served] = {}
        while waiting or not all(one.over for one in served.values()):
            in_system = sum(not one.answered for one in served.values())
            while waiting and in_system < concurrency:
                index, prompt = waiting.popleft()
                one = Served(index=index, mode=mode, prompt=prompt, arrival_ms=clock_ms())
                served[one.transfer_id] = one
                self._dispatch(one)
                in_system += 1
            self._take(self._next_report(served), served, answered)
        return list(served.values())

    def _dispatch(self, one: Served) -> None:
        """Start the legs that may start when the request arrives."""
        job = one.job()
        if one.mode is not Mode.PULL:
            self.decode.submit(job)
        self.producer.submit(job)

    def _next_report(self, served: dict[str, Served]) -> Report:
        try:
            return self._reports.get(timeout=STALL_S)
        except queue.Empty:
            still = ", ".join(name for name, one in served.items() if not one.over)
            raise DemoStopped(f"nothing moved for {STALL_S:g} s; open: {still}") from None

    def _take(
        self, report: Report, served: dict[str, Served], answered: Callable[[Served], None]
    ) -> None:
        match report:
            case EngineDied():
                raise DemoStopped(f"engine {report.engine} died: {report.error}")
            case Prefilled():
                one = served[report.transfer_id]
                one.prefilled = report
                if one.mode is Mode.PULL:
                    self.decode.submit(one.job())
            case Released():
                served[report.transfer_id].released = report
            case Finished():
                served[report.transfer_id].finished = report
                answered(served[report.transfer_id])
            case Failed():
                one = served[report.transfer_id]
                one.failure = report.reason
                # As a router does: a leg that has failed ends the other one too.
                self.producer.withdraw(one.transfer_id)
                answered(one)
            case _:
                raise AssertionError(f"not a report of a request: {report}")

    def settle(self) -> tuple[EngineState, EngineState]:
        """States of P and D once nothing is open, or what is still open after SETTLE_S."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            states = (self.producer.state(), self.decode.state())
            idle = not any(state.blocks_held or state.live for state in states)
            if idle or time.monotonic() > deadline:
                return (
                    self.producer.state(with_steps=True),
                    self.decode.state(with_steps=True),
                )
            time.sleep(SETTLE_STEP_S)
