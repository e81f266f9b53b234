"""How long each phase of a transfer took, from its steps.

Owns the milestones of both sides and the transfers on their way between them.
Knows no clock: steps carry their time. Invariant: an entry leaves with the step
that ends its transfer, so the book is empty when nothing is live.

A phase is named after the milestone that ends it and runs from the one before:

    consumer  registered -> granted -> landed            (-> ready, which the agent adds)
    producer  offered -> matched -> posted -> sent

Of a milestone that several parts or peers pass, the first counts.
"""

from __future__ import annotations

from typing import Final

import attrs

from kvxfer.core.ids import TransferId
from kvxfer.record.histogram import Histogram
from kvxfer.record.steps import Step

CONSUMER: Final = ("registered", "granted", "landed")
PRODUCER: Final = ("offered", "matched", "posted", "sent")
READY: Final = "ready"
"""From landed to the engine's taking of it, that is until the request may run."""
PHASES: Final = (*CONSUMER[1:], READY, *PRODUCER[1:])

_CONSUMER_RANK: Final = {step: rank for rank, step in enumerate(CONSUMER)}
_PRODUCER_RANK: Final = {step: rank for rank, step in enumerate(PRODUCER)}
_CONSUMER_ENDS: Final = frozenset({"landed", "lost", "cancelled", "let go"})
_PRODUCER_ENDS: Final = frozenset({"sent", "unsent"})

Passed = tuple[int, float]
"""The milestone that was passed last, and when, in milliseconds."""


@attrs.define
class PhaseClock:
    """All transfers of one agent."""

    histograms: dict[str, Histogram] = attrs.field(
        factory=lambda: {phase: Histogram() for phase in PHASES}
    )
    _received: dict[tuple[TransferId, int], Passed] = attrs.field(factory=dict)
    _sent: dict[TransferId, Passed] = attrs.field(factory=dict)

    def note(self, step: Step) -> None:
        """Take a step of the core. Those that are no milestone cost two look-ups."""
        rank = _CONSUMER_RANK.get(step.step)
        if rank is not None or step.step in _CONSUMER_ENDS:
            self._consumer(step, rank)
        rank = _PRODUCER_RANK.get(step.step)
        if rank is not None or step.step in _PRODUCER_ENDS:
            self._producer(step, rank)

    def _consumer(self, step: Step, rank: int | None) -> None:
        key = (step.transfer_id, step.attempt)
        passed = self._received.get(key)
        if rank == 0:
            self._received[key] = (0, step.t_ms)
        elif passed is not None and rank is not None and rank > passed[0]:
            self._observe(CONSUMER[rank], step.t_ms - passed[1])
            self._received[key] = (rank, step.t_ms)
        if step.step in _CONSUMER_ENDS:
            self._received.pop(key, None)

    def _producer(self, step: Step, rank: int | None) -> None:
        passed = self._sent.get(step.transfer_id)
        if rank == 0:
            self._sent[step.transfer_id] = (0, step.t_ms)
        elif passed is not None and rank is not None and rank > passed[0]:
            self._observe(PRODUCER[rank], step.t_ms - passed[1])
            self._sent[step.transfer_id] = (rank, step.t_ms)
        if step.step in _PRODUCER_ENDS:
            self._sent.pop(step.transfer_id, None)

    def _observe(self, phase: str, ms: float) -> None:
        self.histograms[phase].observe(ms / 1e3)

    def __len__(self) -> int:
        return len(self._received) + len(self._sent)
