"""The prefill engine as the run sees it: in this process or in one of its own.

Owns the life of that engine and, for the second form, of its process. Invariant:
after `close` no thread and no process of it is left, whatever happened before.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import sys
import threading
from collections.abc import Callable
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Protocol

import attrs

from kvxfer.core.ids import TransferId
from kvxfer.demo.engines import Job
from kvxfer.demo.prefill import PrefillEngine
from kvxfer.demo.reports import EngineDied, EngineState, Ready, Report, from_line
from kvxfer.demo.setup import EngineSetup, addresses, close_agents, start_prefill
from kvxfer.driver.agent import Agent
from kvxfer.driver.commands import ProducerAddress

START_S = 60.0
"""How long a prefill process may take to come up: interpreter, numpy, transport."""
ANSWER_S = 30.0
END_S = 5.0
STDERR_FD = 2
"""Where the process may print: our own standard output belongs to the result."""
DRAIN_S = 2.0


class ProducerDown(RuntimeError):
    """The prefill engine is not there. `usage` says that the user can change that."""

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage


class Producer(Protocol):
    """What the run needs of the prefill engine."""

    @property
    def producers(self) -> tuple[ProducerAddress, ...]: ...

    def submit(self, job: Job) -> None: ...

    def withdraw(self, transfer_id: TransferId) -> None: ...

    def state(self, *, with_steps: bool = False) -> EngineState: ...

    def close(self) -> None: ...


@attrs.define(eq=False)
class LocalProducer:
    """The prefill engine as threads of this process."""

    engine: PrefillEngine
    agents: list[Agent]
    producers: tuple[ProducerAddress, ...]

    @classmethod
    def start(cls, setup: EngineSetup, report: Callable[[Report], None]) -> LocalProducer:
        engine, agents = start_prefill(setup, report)
        return cls(engine, agents, addresses(setup, agents))

    def submit(self, job: Job) -> None:
        self.engine.submit(job)

    def withdraw(self, transfer_id: TransferId) -> None:
        self.engine.withdraw(transfer_id)

    def state(self, *, with_steps: bool = False) -> EngineState:
        return self.engine.state(with_steps=with_steps)

    def close(self) -> None:
        self.engine.stop()
        close_agents(self.agents, drain_s=DRAIN_S)


@attrs.define(eq=False)
class ProcessProducer:
    """The prefill engine in a process of its own, at the other end of a socket pair.

    Commands and reports are lines of JSON. The child ends when its end of the
    pair is closed, so it does not outlive this process.
    """

    process: Popen[bytes]
    pipe: socket.socket
    report: Callable[[Report], None]
    producers: tuple[ProducerAddress, ...] = ()
    _answers: queue.SimpleQueue[EngineState | Ready | EngineDied] = attrs.field(
        factory=queue.SimpleQueue
    )
    _closing: bool = False
    _reader: threading.Thread = attrs.field(init=False)

    @classmethod
    def start(cls, setup: EngineSetup, report: Callable[[Report], None]) -> ProcessProducer:
        """Start the process and wait until its agents listen. ProducerDown where it cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = Popen(
                [sys.executable, "-m", "kvxfer.demo.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the run, which ends this process in good order
                stdin=DEVNULL,
                stdout=STDERR_FD,
            )
        producer = cls(process, ours, report)
        producer._reader = threading.Thread(target=producer._read, name="P-pipe", daemon=True)
        producer._reader.start()
        try:
            producer._send({"setup": attrs.asdict(setup)})
            ready = producer._answer(START_S)
            assert isinstance(ready, Ready), f"first word of the prefill process: {ready}"
        except BaseException:
            producer.close()
            raise
        producer.producers = tuple(
            ProducerAddress(engine_id=engine, rank=rank, host=host, port=port)
            for engine, rank, host, port in ready.addresses
        )
        return producer

    def submit(self, job: Job) -> None:
        prompt = {"tokens": job.prompt.tokens, "answer_tokens": job.prompt.answer_tokens}
        fields = {"transfer_id": job.transfer_id, "prompt": prompt, "streams": job.streams}
        self._send({"prefill": fields})

    def withdraw(self, transfer_id: TransferId) -> None:
        self._send({"withdraw": {"transfer_id": transfer_id}})

    def state(self, *, with_steps: bool = False) -> EngineState:
        self._send({"state": {"with_steps": with_steps}})
        answer = self._answer(ANSWER_S)
        assert isinstance(answer, EngineState), f"answer of the prefill process: {answer}"
        return answer

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self.pipe.shutdown(socket.SHUT_WR)
        for end in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(END_S)
                break
            except TimeoutExpired:
                end()
        self.process.wait()
        self._reader.join()
        self.pipe.close()

    def _send(self, command: dict[str, object]) -> None:
        try:
            self.pipe.sendall(json.dumps(command).encode() + b"\n")
        except OSError as error:
            raise ProducerDown(f"the prefill process is gone: {error}") from error

    def _answer(self, timeout_s: float) -> EngineState | Ready:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise ProducerDown(f"no answer of the prefill process in {timeout_s:g} s") from None
        if isinstance(answer, EngineDied):
            raise ProducerDown(answer.error, usage=answer.usage)
        return answer

    def _read(self) -> None:
        """Runs in the reader's thread until the child closes its end."""
        with self.pipe.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self._arrived(from_line(line))
        if not self._closing:
            status = self.process.wait()
            self._arrived(EngineDied(engine="P", error=f"its process ended, status {status}"))

    def _arrived(self, report: Report) -> None:
        match report:
            case Ready() | EngineState():
                self._answers.put(report)
            case EngineDied():
                self._answers.put(report)
                self.report(report)
            case _:
                self.report(report)
