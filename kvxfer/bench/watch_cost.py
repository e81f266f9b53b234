"""What watching costs a transfer: on the writer thread, and in the thread beside it.

Owns the measurement. Feeds the steps of a push of one part, both sides, through an
agent's notes. Invariant: every figure is the best of several runs on CPU time of this
process, with the collector off and no other thread at work.
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from kvxfer.bench.harness import cpu_s
from kvxfer.core import effects as fx
from kvxfer.core.ids import Attempt, Part, PeerKey, Role, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.driver.watch import Watch
from kvxfer.record.files import RecordingFile, header_of
from kvxfer.record.flight import FlightRecorder
from kvxfer.record.steps import Step
from kvxfer.record.tap import Tap

P, D, PART = PeerKey("P", 0), PeerKey("D", 0), Part(0, 0, 0, 1024)

RECEIVING = (
    ("registered", None),
    ("granted", P),
    ("landed", None),
    ("let go", None),
)
SENDING = (
    ("grant parked", D),
    ("offered", None),
    ("matched", D),
    ("posted", D),
    ("written", D),
    ("sent", None),
)


@attrs.frozen(kw_only=True)
class WatchCost:
    """CPU microseconds per transfer, both sides together."""

    steps: int
    """Steps of a transfer, both sides together."""
    kept_us: float
    """Notes that are always made, without the flight recorder."""
    flight_us: float
    """With the flight recorder: what every agent pays."""
    tapped_us: float
    """With a tap besides, on the writer thread: recording or traces are on."""
    recording_us: float | None
    """The recording's lines, in the tap's own thread."""
    spans_us: float | None
    """The spans, in the tap's own thread; None where OpenTelemetry's SDK is not there."""

    def summary(self) -> dict[str, Any]:
        return attrs.asdict(self)


def measure(transfers: int = 5_000, rounds: int = 5) -> WatchCost:
    """Measure all of it."""
    steps = _steps_of_one()
    # What the notes are told of is made by core and engine anyway.
    given = _best(rounds, transfers, _Nobody)
    with TemporaryDirectory() as folder:
        return WatchCost(
            steps=len(steps),
            kept_us=_best(rounds, transfers, lambda: _watch(flight=0)) - given,
            flight_us=_best(rounds, transfers, lambda: _watch(flight=512)) - given,
            tapped_us=_best(rounds, transfers, lambda: _watch(flight=512, tap=_IdleTap())) - given,
            recording_us=_sink_us(rounds, transfers, _recordings(Path(folder))),
            spans_us=_sink_us(rounds, transfers, _span_sinks()),
        )


class _Nobody:
    """Is told all and notes nothing."""

    def asked(self, command: cmd.Command, now_ms: float) -> None: ...

    def traced(self, trace: fx.Trace, now_ms: float) -> None: ...

    def told(self, result: rs.Result, now_ms: float) -> None: ...


class _IdleTap(Tap):
    """A tap whose thread does not run, so that only the writer's part is measured."""

    def __init__(self) -> None:
        super().__init__([], logging.getLogger("kvxfer.bench"))
        self.close()

    def put(self, step: Step) -> None:
        super().put(step)
        if len(self._queue) > 1_000:
            self._queue.clear()


def _watch(flight: int, tap: Tap | None = None) -> Watch:
    logger = logging.getLogger("kvxfer.bench")
    return Watch(
        name="D/0",
        logger=logger,
        flight=FlightRecorder(flight, 64),
        ring=deque(maxlen=100_000),
        tap=tap,
    )


def _transfer(watch: Watch | _Nobody, number: int) -> None:
    """All that an agent's notes are told of one transfer: at D, then at P."""
    tid, tag, now = TransferId(f"t{number}"), f"r{number}", float(number)
    empty: tuple[()] = ()
    watch.asked(
        cmd.Register(
            transfer_id=tid, producers=empty, tables=empty, token_start=0, token_stop=1, tag=tag
        ),
        now,
    )
    for step, peer in RECEIVING:
        watch.traced(fx.Trace(transfer_id=tid, attempt=1, step=step, peer=peer), now)
    watch.told(rs.Landed(transfer_id=tid, attempt=1, tag=tag, bytes_received=1 << 20), now)
    watch.told(rs.LetGo(transfer_id=tid, attempt=1, tag=tag), now)
    watch.asked(cmd.Offer(transfer_id=tid, tables=empty, token_count=1, tag=tag), now)
    for step, peer in SENDING:
        part = PART if step in ("posted", "written") else None
        watch.traced(fx.Trace(transfer_id=tid, attempt=1, step=step, peer=peer, part=part), now)
    watch.told(rs.Sent(transfer_id=tid, tag=tag, bytes_written=1 << 20, descriptors=64), now)


def _best(rounds: int, transfers: int, make: Callable[[], Watch | _Nobody]) -> float:
    found = []
    for _ in range(rounds):
        gc.collect()
        found.append(cpu_s(partial(_transfers, make(), transfers)))
    return min(found) * 1e6 / transfers


def _transfers(watch: Watch | _Nobody, count: int) -> None:
    for number in range(count):
        _transfer(watch, number)


def _steps_of_one() -> list[Step]:
    watch = _watch(flight=0)
    _transfer(watch, 0)
    return list(watch.ring)


def _sink_us(rounds: int, transfers: int, sinks: Iterator[Any]) -> float | None:
    steps = _steps_of_one()
    batch = [
        attrs.evolve(step, transfer_id=TransferId(f"t{number}"), attempt=Attempt(step.attempt))
        for number in range(transfers)
        for step in steps
    ]
    found = []
    for _, sink in zip(range(rounds), sinks, strict=False):
        gc.collect()
        found.append(cpu_s(partial(sink.take, batch, 0)))
        sink.close()
    return min(found) * 1e6 / transfers if found else None


def _recordings(folder: Path) -> Iterator[RecordingFile]:
    incarnation = 0
    while True:
        incarnation += 1
        yield RecordingFile.open(folder, header_of("D", 0, Role.BOTH, incarnation))


def _span_sinks() -> Iterator[Any]:
    """Spans that are recorded and dropped at their end: what an exporter does is its own."""
    try:
        from opentelemetry.sdk.trace import TracerProvider

        from kvxfer.observe.spans import SpanSink
    except ImportError:
        return
    while True:
        yield SpanSink("D", 0, TracerProvider())
