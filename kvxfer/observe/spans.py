"""OpenTelemetry spans of transfers, made from the steps of an agent.

Owns the names of spans, events and attributes. Needs opentelemetry-api (the extra
`traces`); where spans go is the matter of the process's tracer provider. Invariants:
every span has its times from the steps; D's span and P's have the same parent, which
the engines were given or which both derive from the transfer's name; the table of
open spans is bounded. Runs in the tap's thread: the writer thread pays for one append.

    kvxfer.receive   at D, from the engine's registration to the last word about it
    kvxfer.send      at P, from the engine's offer to sent or unsent
    kvxfer.move      child of the one whose side posts: first post to last completion
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import attrs
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvxfer import __version__
from kvxfer.core.ids import Reason, TransferId
from kvxfer.observe.context import traceparent_of
from kvxfer.record.steps import ASKED_TO_RECEIVE, ASKED_TO_SEND, TOLD, Step
from kvxfer.record.transcript import part_words

OPEN_MAX: Final = 10_000
"""Open spans of one agent; the one that began first is ended when there are more."""
EVENTS_MAX: Final = 100
"""Events of one span; the steps of a long stream are many."""

_PRODUCER_STEPS: Final = frozenset(
    {"offered", "grant parked", "matched", "written", "lent", "sent", "unsent"}
)
_MOVED: Final = frozenset({"written", "read"})
_QUIET: Final = frozenset({Reason.CANCELLED_BY_CONSUMER, Reason.PRODUCER_ABORTED, Reason.NONE})


@attrs.define(eq=False)
class _Open:
    """A span that has not ended, and when its operations began and ended."""

    span: Span
    tag: str
    attempt: int = 0
    events: int = 0
    posted_ms: float = 0.0
    moved_ms: float = 0.0


@attrs.define(eq=False)
class SpanSink:
    """Give it to `AgentConfig(sinks=...)`.

    Without a provider that of the process is used, as it is when the first span is made.
    """

    engine_id: str
    rank: int
    provider: TracerProvider | None = None
    _receiving: dict[TransferId, list[_Open]] = attrs.field(factory=dict)
    _sending: dict[TransferId, list[_Open]] = attrs.field(factory=dict)
    _open_count: int = 0
    _offset_ms: float = attrs.field(factory=lambda: (time.time() - time.monotonic()) * 1e3)

    def take(self, steps: Sequence[Step], dropped: int) -> None:  # noqa: ARG002
        """Begin, feed and end spans. Where steps were dropped, spans may lack their end."""
        for step in steps:
            if step.step == ASKED_TO_RECEIVE:
                self._begin(self._receiving, "kvxfer.receive", SpanKind.CONSUMER, step)
            elif step.step == ASKED_TO_SEND:
                self._begin(self._sending, "kvxfer.send", SpanKind.PRODUCER, step)
            elif step.step.startswith(TOLD):
                self._told(step)
            else:
                self._feed(step)

    def close(self) -> None:
        """The agent has ended: so have its spans."""
        for table in (self._receiving, self._sending):
            for one in [one for several in table.values() for one in several]:
                one.span.end()
            table.clear()
        self._open_count = 0

    def __len__(self) -> int:
        return self._open_count

    # --- a span's life ---

    def _begin(
        self, table: dict[TransferId, list[_Open]], name: str, kind: SpanKind, step: Step
    ) -> None:
        carrier = {"traceparent": traceparent_of(step.traceparent, step.transfer_id)}
        span = self._tracer().start_span(
            name,
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=kind,
            start_time=self._ns(step.t_ms),
            attributes={
                "kvxfer.transfer_id": step.transfer_id,
                "kvxfer.engine_id": self.engine_id,
                "kvxfer.rank": self.rank,
                "kvxfer.tag": step.tag,
            },
        )
        table.setdefault(step.transfer_id, []).append(_Open(span, step.tag))
        self._open_count += 1
        if self._open_count > OPEN_MAX:
            self._evict()

    def _feed(self, step: Step) -> None:
        """A step of the core is an event, and may be a milestone of the moving."""
        one = self._of_core(step)
        if one is None:
            return
        if step.step == "posted" and not one.posted_ms:
            one.posted_ms = step.t_ms
        elif step.step in _MOVED:
            one.moved_ms = step.t_ms
        one.events += 1
        if one.events <= EVENTS_MAX:
            one.span.add_event(step.step, _attributes(step), timestamp=self._ns(step.t_ms))

    def _of_core(self, step: Step) -> _Open | None:
        """Whose step it is: by the attempt at D; at P one offer of a name is open at a time."""
        receiving = self._receiving.get(step.transfer_id, ())
        for one in receiving:
            if step.step == "registered" and not one.attempt:
                one.attempt = step.attempt
            if one.attempt and one.attempt == step.attempt and step.step not in _PRODUCER_STEPS:
                return one
        sending = self._sending.get(step.transfer_id)
        return sending[0] if sending else None

    def _told(self, step: Step) -> None:
        word = step.step.removeprefix(TOLD)
        table = self._sending if word in ("sent", "unsent") else self._receiving
        several = table.get(step.transfer_id, [])
        one = next((o for o in several if o.tag == step.tag and o.attempt == step.attempt), None)
        if one is None:
            return
        if word != "let go":
            self._say_outcome(one, step, word)
        if word not in ("landed", "lost"):
            several.remove(one)
            if not several:
                del table[step.transfer_id]
            self._open_count -= 1
            one.span.end(self._ns(step.t_ms))

    def _say_outcome(self, one: _Open, step: Step, word: str) -> None:
        span = one.span
        span.set_attribute("kvxfer.outcome", word)
        span.set_attribute("kvxfer.attempt", step.attempt)
        if step.size_bytes:
            span.set_attribute("kvxfer.bytes", step.size_bytes)
            span.set_attribute("kvxfer.descriptors", step.descriptors)
        if step.reason is not Reason.NONE:
            span.set_attribute("kvxfer.reason", step.reason.name)
        if step.reason not in _QUIET:
            span.set_status(Status(StatusCode.ERROR, f"{step.reason.name} {step.detail}".strip()))
        if one.posted_ms and one.moved_ms:
            move = self._tracer().start_span(
                "kvxfer.move",
                context=trace.set_span_in_context(span),
                start_time=self._ns(one.posted_ms),
                attributes={"kvxfer.bytes": step.size_bytes},
            )
            move.end(self._ns(one.moved_ms))

    def _evict(self) -> None:
        table = self._receiving if len(self._receiving) >= len(self._sending) else self._sending
        transfer_id = next(iter(table))
        for one in table.pop(transfer_id):
            self._open_count -= 1
            one.span.set_attribute("kvxfer.outcome", "not followed to its end")
            one.span.end()

    def _tracer(self) -> trace.Tracer:
        return trace.get_tracer("kvxfer", __version__, self.provider)

    def _ns(self, t_ms: float) -> int:
        return round((t_ms + self._offset_ms) * 1e6)


def _attributes(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if step.peer is not None:
        found["kvxfer.peer"] = f"{step.peer.engine_id}/{step.peer.rank}"
    if step.part is not None:
        found["kvxfer.part"] = part_words(step.part)
    if step.reason is not Reason.NONE:
        found["kvxfer.reason"] = step.reason.name
    return found
