"""`kvxfer bench transport`: our transports beside the raw libraries and the machine's limits.

Owns the run: two processes on one host, all movers in turns, and the report. Knows no
terminal. Invariant: a ratio is made of samples of the same round, so that a machine
that slows down for a while slows both; each mover's bytes are checked before it is timed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from kvxfer.bench.environment import environment
from kvxfer.bench.harness import Row
from kvxfer.bench.transport_aims import Aim, aims_of
from kvxfer.bench.transport_near import Near, Subject
from kvxfer.errors import BadValue

KIB: Final = 1 << 10
MIB: Final = 1 << 20
ROUND_TRIPS: Final = 100
"""Notifications sent and sent back in one sample of a round trip."""
ROUNDS_MAX: Final = 1000


@attrs.frozen(kw_only=True)
class Shape:
    """A list of ranges: how many, and how long each is."""

    name: str
    count: int
    range_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.count * self.range_bytes


SHAPES: Final = (
    Shape(name="1 x 256 MiB", count=1, range_bytes=256 * MIB),
    Shape(name="1,024 x 64 KiB", count=1024, range_bytes=64 * KIB),
    Shape(name="16,384 x 4 KiB", count=16384, range_bytes=4 * KIB),
)
ROUND_TRIP: Final = "notification round trip"


@attrs.frozen(kw_only=True)
class Measured:
    """Samples of one subject for one shape, in the order of the rounds. Seconds."""

    subject: str
    shape: str
    count: int
    total_bytes: int
    whole_s: list[float] = attrs.field(factory=list)
    post_s: list[float] = attrs.field(factory=list)

    def _rate(self) -> dict[str, float]:
        """Of the median, in 10^9 bytes a second."""
        if not self.whole_s or not self.total_bytes:
            return {}
        return {"rate": round(self.total_bytes / statistics.median(self.whole_s) / 1e9, 3)}

    def rows(self) -> list[Row]:
        """The whole transfer, and the post call where there is one."""
        facts: dict[str, str | int | float | bool] = {
            "subject": self.subject,
            "shape": self.shape,
            "ranges": self.count,
            "bytes": self.total_bytes,
        }
        whole = f"{self.subject}, {self.shape}"
        rows = [Row(name=whole, facts=facts | self._rate(), samples_ms=_ms(self.whole_s))]
        if self.post_s:
            post = f"{self.subject}, {self.shape}, post call"
            rows.append(Row(name=post, facts=facts | {"post": True}, samples_ms=_ms(self.post_s)))
        return rows


@attrs.frozen(kw_only=True)
class TransportReport:
    """All rows of a run, what could not run, and how the aims came out."""

    rows: tuple[Row, ...]
    aims: tuple[Aim, ...]
    environment: Mapping[str, str | int | float]
    seed: int

    def to_plain(self) -> dict[str, Any]:
        return {
            "bench": "transport",
            "environment": dict(self.environment),
            "seed": self.seed,
            "cases": [row.to_plain() for row in self.rows],
            "aims": [attrs.asdict(aim) for aim in self.aims],
        }


def run_transport(
    *,
    rounds: int = 15,
    warmup: int = 2,
    seed: int = 0,
    only: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    shapes: Sequence[Shape] = SHAPES,
    on_round: Callable[[str, int], None] = lambda _name, _number: None,
) -> TransportReport:
    """Measure. `only` names subjects; `options` are those of UCX, for our rows and the raw ones.

    Raises BadValue for a number of rounds out of its bound, and where no subject is left.
    """
    if not 1 <= rounds <= ROUNDS_MAX:
        raise BadValue("rounds", rounds, f"from 1 to {ROUNDS_MAX}")
    length = max(shape.total_bytes for shape in shapes)
    measured: list[Measured] = []
    with Near(length, seed, dict(options or {}), only) as near:
        where = environment() | near.versions()
        if not near.subjects:
            raise BadValue("only", list(only), f"of {near.known()}, those that can be used here")
        for shape in shapes:
            near.shape(shape.count, shape.range_bytes)
            found = _take_turns(
                near, [s for s in near.subjects if s.write], shape, rounds, warmup, on_round
            )
            measured += found
        echoing = [s for s in near.subjects if s.round_trip]
        small = Shape(name=ROUND_TRIP, count=0, range_bytes=0)
        measured += _take_turns(near, echoing, small, rounds, warmup, on_round)
        skipped = [
            Row(name=name, facts={"subject": name}, skipped=reason)
            for name, reason in near.skipped.items()
        ]
    rows = [row for one in measured for row in one.rows()]
    return TransportReport(
        rows=(*rows, *skipped), aims=tuple(aims_of(measured)), environment=where, seed=seed
    )


def _take_turns(
    near: Near,
    subjects: Sequence[Subject],
    shape: Shape,
    rounds: int,
    warmup: int,
    on_round: Callable[[str, int], None],
) -> list[Measured]:
    """Every subject once per round, in an order that rotates."""
    found = [
        Measured(
            subject=subject.name,
            shape=shape.name,
            count=shape.count,
            total_bytes=shape.total_bytes,
        )
        for subject in subjects
    ]
    pairs = list(zip(subjects, found))
    for subject in subjects if shape.count else ():
        near.check(subject)
    gc.collect()
    gc.disable()
    try:
        for number in range(-warmup, rounds):
            first = number % len(pairs) if pairs else 0
            for subject, kept in pairs[first:] + pairs[:first]:
                near.drive(subject, echo=shape.count == 0)
                whole, post = _sample(near, subject, shape)
                if number >= 0:
                    kept.whole_s.append(whole)
                    if post is not None:
                        kept.post_s.append(post)
            on_round(shape.name, number)
    finally:
        gc.enable()
    return found


def _sample(near: Near, subject: Subject, shape: Shape) -> tuple[float, float | None]:
    start = time.perf_counter()
    if shape.count == 0:
        assert subject.round_trip is not None
        for _ in range(ROUND_TRIPS):
            subject.round_trip()
        return (time.perf_counter() - start) / ROUND_TRIPS, None
    assert subject.write is not None
    post = subject.write(near.columns(subject))
    return time.perf_counter() - start, post


def _ms(samples_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(sample * 1e3 for sample in samples_s)
