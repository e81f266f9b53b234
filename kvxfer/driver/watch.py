"""What the agent notes of each transfer while it carries it.

Owns the flight recorder, the phases, and the outcomes that must add up. Knows no
network and no clock. Invariants: every transfer that the engine asked for is
counted as started once, and as ended once with the one outcome that the engine is
told; so started = ended + live whenever nothing waits to be carried out.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, assert_never

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.ids import Attempt, Reason, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.driver.config import AgentConfig
from kvxfer.record.flight import FlightRecorder
from kvxfer.record.histogram import Histogram
from kvxfer.record.phases import PhaseClock
from kvxfer.record.steps import ASKED_TO_RECEIVE, ASKED_TO_SEND, TOLD, Step
from kvxfer.record.tap import Tap
from kvxfer.record.transcript import transcript

CONSUMER: Final = "consumer"
PRODUCER: Final = "producer"
SIDES: Final = (CONSUMER, PRODUCER)

Ended = tuple[str, str, Reason]
"""Side, outcome (landed, sent, cancelled, refused, failed), and the reason of the last three."""

CANCELS: Final = frozenset({Reason.CANCELLED_BY_CONSUMER, Reason.PRODUCER_ABORTED})
"""An engine wanted it to end."""
REFUSALS: Final = frozenset(
    {Reason.ALREADY_IN_USE, Reason.TABLE_FULL, Reason.SHUTDOWN, Reason.DRAINING}
)
"""It could not be taken in, or this side was leaving."""

TRANSCRIPTS_PER_MINUTE: Final = 12
"""More failures than that are counted in the log, not written out."""
MINUTE_MS: Final = 60_000.0


def outcome_of(reason: Reason) -> str:
    """The outcome that a reason stands for, of what did not go well."""
    if reason in CANCELS:
        return "cancelled"
    return "refused" if reason in REFUSALS else "failed"


@attrs.frozen
class Outcomes:
    """All three of one moment, so that started = ended + live on either side."""

    started: Mapping[str, int] = attrs.field(factory=dict)
    ended: Mapping[Ended, int] = attrs.field(factory=dict)
    live: Mapping[str, int] = attrs.field(factory=dict)


@attrs.define
class Meter:
    """What the writer thread costs. CPU seconds are those of that thread alone."""

    lag: Histogram = attrs.field(factory=Histogram)
    """From an engine's command to the writer thread's taking it."""
    turn: Histogram = attrs.field(factory=Histogram)
    """One turn of the loop that moved something; nobody else is served meanwhile."""
    cpu_s: float = 0.0
    post_cpu_s: float = 0.0
    """The part of `cpu_s` inside the transport's calls that post."""


@attrs.define
class Watch:
    """The notes of one agent. Written by its thread alone."""

    name: str
    logger: logging.Logger
    flight: FlightRecorder
    ring: deque[Step]
    tap: Tap | None = None
    phases: PhaseClock = attrs.field(factory=PhaseClock)
    meter: Meter = attrs.field(factory=Meter)
    started: Counter[str] = attrs.field(factory=Counter)
    ended: Counter[Ended] = attrs.field(factory=Counter)
    _minute_ms: float = -MINUTE_MS
    _written: int = 0
    _kept_back: int = 0

    @classmethod
    def of(cls, config: AgentConfig) -> Watch:
        return cls(
            name=f"{config.engine_id}/{config.shard.rank}",
            logger=config.logger,
            flight=FlightRecorder(config.flight_transfers, config.flight_steps),
            ring=deque(maxlen=config.events_max),
        )

    def asked(self, command: cmd.Command, now_ms: float) -> None:
        """The engine asked for something; a registration or an offer starts a transfer."""
        if isinstance(command, cmd.Register):
            side, step = CONSUMER, ASKED_TO_RECEIVE
        elif isinstance(command, cmd.Offer):
            side, step = PRODUCER, ASKED_TO_SEND
        else:
            return
        self.started[side] += 1
        self._note(
            Step(
                t_ms=now_ms,
                transfer_id=command.transfer_id,
                attempt=Attempt(0),
                step=step,
                tag=command.tag,
                traceparent=command.traceparent,
            )
        )

    def traced(self, trace: fx.Trace, now_ms: float) -> None:
        """A step of the core."""
        step = Step(
            t_ms=now_ms,
            transfer_id=trace.transfer_id,
            attempt=trace.attempt,
            step=trace.step,
            peer=trace.peer,
            part=trace.part,
            reason=trace.reason,
        )
        self._note(step)
        self.phases.note(step)
        self.logger.debug("%s %s attempt %d", trace.step, trace.transfer_id, trace.attempt)

    def told(self, result: rs.Result, now_ms: float) -> None:
        """The engine is told something; all but LetGo end a transfer."""
        match result:
            case rs.Landed(bytes_received=size, descriptors=count):
                self._end(CONSUMER, "landed")
                self._told(result, now_ms, result.attempt, size_bytes=size, descriptors=count)
            case rs.Sent(bytes_written=size, descriptors=count):
                self._end(PRODUCER, "sent")
                self._told(result, now_ms, 0, size_bytes=size, descriptors=count)
            case rs.Lost(attempt=attempt, reason=reason, detail=detail):
                self._end(CONSUMER, outcome_of(reason), reason)
                self._told(result, now_ms, attempt, reason=reason, detail=detail)
                self._write_out(result, now_ms)
            case rs.Unsent(reason=reason, detail=detail):
                self._end(PRODUCER, outcome_of(reason), reason)
                self._told(result, now_ms, 0, reason=reason, detail=detail)
                self._write_out(result, now_ms)
            case rs.LetGo(attempt=attempt):
                self._told(result, now_ms, attempt)
            case _:
                assert_never(result)

    def outcomes(self, counters: Mapping[str, int]) -> Outcomes:
        """The outcomes that go with `counters`, which were taken between turns."""
        live = {side: counters[f"{side}_live"] for side in SIDES}
        return Outcomes(dict(self.started), dict(self.ended), live)

    def transcript_of(self, transfer_id: TransferId) -> str:
        """What is known of a transfer, for people. Any thread may ask."""
        return transcript(f"transfer {transfer_id} at {self.name}", self.flight.of(transfer_id))

    def _note(self, step: Step) -> None:
        self.ring.append(step)
        self.flight.note(step)
        if self.tap is not None:
            self.tap.put(step)

    def _told(self, result: rs.Result, now_ms: float, attempt: int, **more: Any) -> None:
        self._note(
            Step(
                t_ms=now_ms,
                transfer_id=result.transfer_id,
                attempt=attempt,
                step=TOLD + _WORDS[type(result)],
                tag=result.tag,
                **more,
            )
        )

    def _end(self, side: str, outcome: str, reason: Reason = Reason.NONE) -> None:
        self.ended[side, outcome, reason] += 1

    def _write_out(self, result: rs.Lost | rs.Unsent, now_ms: float) -> None:
        """A failure goes to the log with its steps, so many a minute."""
        if outcome_of(result.reason) != "failed" or not self.flight.transfers_max:
            return
        if now_ms - self._minute_ms >= MINUTE_MS:
            self._minute_ms, self._written = now_ms, 0
        if self._written >= TRANSCRIPTS_PER_MINUTE:
            self._kept_back += 1
            return
        self._written += 1
        word = _WORDS[type(result)]
        title = f"transfer {result.transfer_id} at {self.name}: {word}, {result.reason.name}"
        if self._kept_back:
            title += f" ({self._kept_back} failures before it were not written out)"
            self._kept_back = 0
        self.logger.warning("%s", transcript(title, self.flight.of(result.transfer_id)))


_WORDS: Final[dict[type, str]] = {
    rs.Landed: "landed",
    rs.Lost: "lost",
    rs.LetGo: "let go",
    rs.Sent: "sent",
    rs.Unsent: "unsent",
}
