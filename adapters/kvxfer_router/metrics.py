"""What the router counts, as Prometheus text.

Owns the counters of one router. Refuses to know requests and engines. Invariant:
a dispatch that was started ends in exactly one outcome, so that at any moment
started = completed + failed + cancelled + live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import attrs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Outcome(Enum):
    """How a dispatch ended, seen from the client."""

    COMPLETED = "completed"
    """A whole answer with a status below 400 reached the client."""
    FAILED = "failed"
    """An error, or an answer that broke off."""
    CANCELLED = "cancelled"
    """The client went away, or the router was stopped."""


@attrs.define
class Tally:
    """The outcome of one dispatch, None while it is not settled."""

    outcome: Outcome | None = None


class Metrics:
    """The counters of one router, in a registry of their own.

    Labels: `mode` is push, pull or decode (the order in which the request began); `leg`
    is prefill or decode; `kind` is a FailureKind of `engine.py`; `engine` is its URL, and
    its data-parallel rank where it has one.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._started = self._counter(
            "dispatches_started", "Requests that were not refused", "mode"
        )
        self._ended = self._counter("dispatches", "Requests that ended", "mode", "outcome")
        self._live = self._gauge("dispatches_live", "Requests that are open now", "mode")
        self._engine_up = self._gauge("engine_up", "1 where the engine is asked", "leg", "engine")
        self._engine_legs = self._gauge("engine_legs", "Open legs of ours", "leg", "engine")
        self._refused = self._counter(
            "requests_refused", "Requests that reached no engine", "reason"
        )
        self._leg_failures = self._counter("leg_failures", "Legs that failed", "leg", "kind")
        self._retries = self._counter(
            "retries", "Legs that failed and were begun anew at another engine", "leg"
        )
        self._fallbacks = self._counter(
            "fallbacks", "Requests that D computed alone since P had failed", "mode"
        )
        self._not_split = self._counter(
            "requests_not_split", "Requests for D alone by their nature", "reason"
        )
        self._adopted = self._counter(
            "coordinates_adopted", "Changes of P's coordinates, learned from its answers"
        )
        self._first_byte = Histogram(
            "kvxfer_router_first_byte_seconds",
            "From the dispatch to the first byte of D's answer",
            ["mode"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvxfer_router_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"kvxfer_router_{name}", text, labels, registry=self._registry)

    @contextmanager
    def dispatch(self, mode: str) -> Iterator[Tally]:
        """Count one dispatch from its start to its one outcome.

        What is not settled when the block ends was cancelled if the handler was,
        and has failed otherwise. A client that leaves later changes nothing.
        """
        tally = Tally()
        self._started.labels(mode).inc()
        self._live.labels(mode).inc()
        try:
            yield tally
        except asyncio.CancelledError:
            tally.outcome = tally.outcome or Outcome.CANCELLED
            raise
        finally:
            self._live.labels(mode).dec()
            self._ended.labels(mode, (tally.outcome or Outcome.FAILED).value).inc()

    def refused(self, reason: str) -> None:
        """A request that the router itself turned down."""
        self._refused.labels(reason).inc()

    def leg_failed(self, leg: str, kind: str) -> None:
        """A leg that brought no usable answer. A leg that was cancelled did not fail."""
        self._leg_failures.labels(leg, kind).inc()

    def retried(self, leg: str) -> None:
        """This leg failed, and another engine was asked."""
        self._retries.labels(leg).inc()

    def fell_back(self, mode: str) -> None:
        """P failed and D was asked for the plain request."""
        self._fallbacks.labels(mode).inc()

    def not_split(self, reason: str) -> None:
        """The request went to D alone: see `legs.reason_not_to_split`."""
        self._not_split.labels(reason).inc()

    def coordinates_adopted(self) -> None:
        """P's answer named other coordinates than the known ones."""
        self._adopted.inc()

    def first_byte(self, mode: str, seconds: float) -> None:
        """Time from the start of a dispatch to the first byte of D's answer."""
        self._first_byte.labels(mode).observe(seconds)

    def engine_seen(self, leg: str, engine: str, *, up: bool, open_legs: int) -> None:
        """How an engine stands at the moment of a scrape."""
        self._engine_up.labels(leg, engine).set(up)
        self._engine_legs.labels(leg, engine).set(open_legs)

    def text(self) -> bytes:
        """Everything in the Prometheus text format."""
        text: bytes = generate_latest(self._registry)
        return text
