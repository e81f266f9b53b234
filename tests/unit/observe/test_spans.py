"""Spans from steps: failures, refusals, pull, bounds, and contexts that are none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kvxfer.core.ids import Reason, TransferId
from kvxfer.observe import spans as spans_module
from kvxfer.observe.context import derived_traceparent, is_traceparent, traceparent_of
from kvxfer.observe.spans import EVENTS_MAX, SpanSink
from kvxfer.record import Step

sys.path.insert(0, str(Path(__file__).parent))
from made_up import PART, D, P, step

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class Rig:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.sink = SpanSink("D", 0, provider)

    def feed(self, *steps: Step) -> list[ReadableSpan]:
        """Spans that have ended, in the order of their ends."""
        self.sink.take(steps, 0)
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def asked(tid: str = "t", tag: str = "r", name: str = "asked to receive") -> Step:
    return step(1, tid, name, 0, tag=tag, traceparent=PARENT)


def test_a_lost_transfer_is_an_error_with_its_reason_and_lasts_until_let_go(rig: Rig) -> None:
    (span,) = rig.feed(
        asked(),
        step(1, "t", "registered"),
        step(2, "t", "granted", peer=P),
        step(5, "t", "lost", reason=Reason.PEER_LOST),
        step(5, "t", "told lost", tag="r", reason=Reason.PEER_LOST, detail="gone"),
        step(9, "t", "let go"),
        step(9, "t", "told let go", tag="r"),
    )
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "PEER_LOST gone"
    assert span.attributes["kvxfer.outcome"] == "lost"
    assert span.end_time - span.start_time == pytest.approx(8e6, abs=2e3)
    assert span.events[1].attributes["kvxfer.peer"] == "P/0"
    assert len(rig.sink) == 0


def test_what_an_engine_cancelled_is_no_error(rig: Rig) -> None:
    cancelled = {"tag": "r", "reason": Reason.CANCELLED_BY_CONSUMER}
    (span,) = rig.feed(
        asked(),
        step(1, "t", "registered"),
        step(5, "t", "told lost", **cancelled),
        step(5, "t", "told let go", tag="r"),
    )
    assert span.status.is_unset


def test_a_refused_second_request_ends_alone(rig: Rig) -> None:
    used = {"tag": "r2", "reason": Reason.ALREADY_IN_USE}
    ended = rig.feed(
        asked(),
        step(1, "t", "registered"),
        asked(tag="r2"),
        step(1, "t", "told lost", 0, **used),
        step(1, "t", "told let go", 0, tag="r2"),
    )
    assert [span.attributes["kvxfer.tag"] for span in ended] == ["r2"]
    assert len(rig.sink) == 1
    ended = rig.feed(step(3, "t", "told landed", tag="r"), step(3, "t", "told let go", tag="r"))
    assert [span.attributes["kvxfer.tag"] for span in ended] == ["r2", "r"]


def test_a_read_is_a_child_of_the_consumer(rig: Rig) -> None:
    move, receive = rig.feed(
        asked(),
        step(1, "t", "registered"),
        step(2, "t", "posted", peer=P, part=PART),
        step(6, "t", "read", peer=P, part=PART),
        step(7, "t", "told landed", tag="r", size_bytes=64, descriptors=1),
        step(7, "t", "told let go", tag="r"),
    )
    assert (move.name, receive.name) == ("kvxfer.move", "kvxfer.receive")
    assert move.parent.span_id == receive.context.span_id
    assert move.end_time - move.start_time == pytest.approx(4e6, abs=2e3)


def test_steps_of_an_offer_belong_to_the_span_of_the_offer(rig: Rig) -> None:
    move, send = rig.feed(
        asked(name="asked to send"),
        step(1, "t", "offered", 0),
        step(2, "t", "matched", peer=D),
        step(3, "t", "posted", peer=D, part=PART),
        step(4, "t", "written", peer=D, part=PART),
        step(4, "t", "sent", 0),
        step(4, "t", "told sent", 0, tag="r", size_bytes=64),
    )
    assert [event.name for event in send.events] == [
        "offered",
        "matched",
        "posted",
        "written",
        "sent",
    ]
    assert move.parent.span_id == send.context.span_id


def test_a_grant_before_the_offer_makes_no_span(rig: Rig) -> None:
    assert rig.feed(step(1, "t", "grant parked", peer=D)) == []
    assert len(rig.sink) == 0


def test_events_and_open_spans_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "OPEN_MAX", 3)
    rig.feed(asked("a"), step(1, "a", "registered"))
    rig.feed(*(step(2, "a", "posted", part=PART) for _ in range(3 * EVENTS_MAX)))
    (first,) = rig.feed(asked("b"), asked("c"), asked("d"))
    assert first.attributes["kvxfer.transfer_id"] == "a"
    assert first.attributes["kvxfer.outcome"] == "not followed to its end"
    assert len(first.events) == EVENTS_MAX
    assert len(rig.sink) == 3
    rig.sink.close()
    assert len(rig.sink) == 0
    assert len(rig.exporter.get_finished_spans()) == 4


@pytest.mark.parametrize(
    "text",
    ["", "00", PARENT[:-1], PARENT.replace("a", "A"), PARENT.replace("a", "0"), "ff" + PARENT[2:]],
)
def test_a_context_that_is_none_gives_way_to_the_derived_one(text: str) -> None:
    assert not is_traceparent(text)
    assert traceparent_of(text, TransferId("t")) == derived_traceparent(TransferId("t"))


@given(st.text())
def test_the_derived_context_is_valid_for_every_name(name: str) -> None:
    assert is_traceparent(derived_traceparent(TransferId(name)))
    assert traceparent_of(PARENT, TransferId(name)) == PARENT
