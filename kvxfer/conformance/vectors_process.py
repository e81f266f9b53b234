"""A machine in another process, so that a peer in any language can be judged.

Owns the lines between the two: one JSON object each way. Knows no rule. Invariant:
a process that dies, hangs or answers nonsense fails the case it was asked about, and
the next case gets a process of its own.

    {"new": settings}               answered by {}
    {"at_ms": 0, "in": event}       answered by {"out": [effect, ...]}
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Any

import attrs

from kvxfer.conformance.vectors import Plain
from kvxfer.errors import RemoteFault

ANSWER_S = 10.0


@attrs.define(eq=False)
class ProcessMachine:
    """One process for one case. A `vectors.Machine`."""

    command: Sequence[str]
    answer_s: float = ANSWER_S
    _process: subprocess.Popen[str] = attrs.field(init=False)
    _lines: queue.SimpleQueue[str] = attrs.field(factory=queue.SimpleQueue)

    def __attrs_post_init__(self) -> None:
        self._process = subprocess.Popen(
            list(self.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        reader.start()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, question: Plain) -> Plain:
        """One line there, one line back. RemoteFault where none comes, or no object."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self.answer_s)
            answer: Any = json.loads(line)
        except queue.Empty:
            raise RemoteFault("answer", None, f"within {self.answer_s} s") from None
        except (OSError, ValueError) as error:
            raise RemoteFault("answer", str(error), "one line of JSON") from None
        if not isinstance(answer, dict):
            raise RemoteFault("answer", answer, "an object")
        return answer

    def step(self, event: Plain, at_ms: int) -> Sequence[Plain]:
        found = self.ask({"at_ms": at_ms, "in": event}).get("out")
        if not isinstance(found, list):
            raise RemoteFault("out", found, "an array of effects")
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@attrs.define
class ProcessFactory:
    """Makes one process a case, and ends the one before. A `vectors.MakeMachine`."""

    command: Sequence[str]
    answer_s: float = ANSWER_S
    _live: ProcessMachine | None = None

    def __call__(self, settings: Plain) -> ProcessMachine:
        self.close()
        self._live = ProcessMachine(self.command, self.answer_s)
        self._live.ask({"new": settings})
        return self._live

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None
