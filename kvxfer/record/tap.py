"""From the writer thread to whoever writes or sends the steps on.

Owns the queue between them and the thread that empties it. Knows no format.
Invariants: the writer thread only appends, whatever the disk or the network behind
a sink does; the queue is bounded and what does not fit is counted; a sink that
fails is reported once and left out, and nobody else suffers.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import attrs

from kvxfer.record.steps import Step

QUEUE_MAX = 200_000
"""Steps that wait for a sink; some 60 MB."""
CLOSE_S = 30.0
"""A disk or a network that hangs is waited for so long at the end."""
PAUSE_S = 0.1
"""How often the queue is emptied."""


class Sink(Protocol):
    """Where steps go. All calls come from the tap's own thread, in order."""

    def take(self, steps: Sequence[Step], dropped: int) -> None:
        """The next steps; `dropped` were left out before them."""

    def close(self) -> None:
        """Nothing more comes."""


@attrs.define(eq=False)
class Tap:
    """A thread that hands steps to its sinks. `put` is for one thread, the writer's."""

    sinks: list[Sink]
    logger: logging.Logger
    name: str = "kvxfer-tap"
    queue_max: int = QUEUE_MAX
    dropped: int = 0
    _queue: deque[Step] = attrs.field(factory=deque)
    _told: int = 0
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def put(self, step: Step) -> None:
        """Pass a step on. Never waits."""
        if len(self._queue) >= self.queue_max:
            self.dropped += 1
            return
        self._queue.append(step)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Hand over what is left, close the sinks, end the thread.

        A sink that hangs is waited for so long and then left behind, with its thread.
        """
        self._stop.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.logger.error("%s: a sink hangs; its last steps are lost", self.name)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._hand_over()
        self._hand_over()
        for sink in self.sinks:
            try:
                sink.close()
            except Exception:
                self.logger.exception("%s could not be closed", sink)

    def _hand_over(self) -> None:
        count = len(self._queue)
        steps = [self._queue.popleft() for _ in range(count)]
        dropped = self.dropped - self._told
        self._told += dropped
        if not steps and not dropped:
            return
        for sink in list(self.sinks):
            try:
                sink.take(steps, dropped)
            except Exception:
                self.logger.exception("%s failed and gets nothing more", sink)
                self.sinks.remove(sink)
