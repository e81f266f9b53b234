"""One request's spans at the router, P and D are one trace, with the right parents."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from kvxfer.core.ids import TransferId
from kvxfer.driver import Role
from kvxfer.observe.context import derived_traceparent
from kvxfer_router import Mode
from kvxfer_router import tracing as router_tracing

sys.path.insert(0, str(Path(__file__).parents[1]))
from vllm_loopback_pair import Engine, Status, request

PROMPT = list(range(500, 600))
P_BLOCKS, D_BLOCKS = [3, 1, 4, 11, 5, 9, 2], [8, 6, 7, 10, 12, 13, 14]
P_ID, D_ID = "cmpl-x-0-0badcafe", "cmpl-x-0-12345678"
BODY = {"model": "tiny", "prompt": "one two three"}
CLIENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Every tracer that is asked for writes here."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_: provider.get_tracer(name))
    yield exporter
    provider.shutdown()


def move(headers: tuple[Mapping[str, str], Mapping[str, str]], params: tuple[Any, Any]) -> None:
    """Both legs on real scheduler sides, worker sides and agents."""
    patient = {"traces": True, "deadline_ms": 60_000, "offer_lease_ms": 60_000}
    p = Engine.start("P", Role.PRODUCER, **patient)
    d = Engine.start("D", Role.CONSUMER, **patient)
    try:
        prefill = request(params[0], P_ID, PROMPT)
        prefill.trace_headers = headers[0]
        p.scheduler.on_new_request(prefill)
        p.step()
        decode = request({**params[1], **p.place}, D_ID, PROMPT)
        decode.trace_headers = headers[1]
        d.park(decode, D_BLOCKS)
        p.compute(P_BLOCKS, 0, len(PROMPT), seed=1)
        prefill.num_computed_tokens = len(PROMPT)
        p.finish(prefill, P_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
        p.step()
        d.until(lambda: D_ID in d.received)
        p.until(lambda: P_ID in p.sent)
    finally:
        p.close()
        d.close()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert len(found) == len(exporter.get_finished_spans())
    return found


async def test_router_p_and_d_share_a_trace(pair: Any, spans: InMemorySpanExporter) -> None:
    async with pair(Mode.PUSH) as net:
        assert (await net.post(BODY, headers={"traceparent": CLIENT}))[0] == 200
        legs = [await engine.exchange() for engine in (net.prefill, net.decode)]
        headers = tuple({"traceparent": leg.headers["traceparent"]} for leg in legs)
        params = tuple(leg.params for leg in legs)
    await asyncio.to_thread(move, headers, params)

    found = by_name(spans)
    assert set(found) == {"kvxfer.route", "kvxfer.receive", "kvxfer.send", "kvxfer.move"}
    route, receive = found["kvxfer.route"], found["kvxfer.receive"]
    send, moved = found["kvxfer.send"], found["kvxfer.move"]
    assert {f"{s.context.trace_id:032x}" for s in found.values()} == {CLIENT[3:35]}
    assert f"{route.parent.span_id:016x}" == CLIENT[36:52]
    assert receive.parent.span_id == send.parent.span_id == route.context.span_id
    assert moved.parent.span_id == send.context.span_id
    kinds = [span.kind for span in (route, receive, send)]
    assert kinds == [SpanKind.SERVER, SpanKind.CONSUMER, SpanKind.PRODUCER]
    assert send.start_time < moved.start_time <= moved.end_time <= send.end_time
    assert [e.name for e in receive.events] == ["registered", "granted", "landed", "let go"]
    assert {"matched", "posted", "written", "sent"} <= {e.name for e in send.events}
    assert receive.attributes["kvxfer.transfer_id"] == send.attributes["kvxfer.transfer_id"]
    assert receive.attributes["kvxfer.bytes"] == send.attributes["kvxfer.bytes"] > 0
    assert receive.attributes["kvxfer.outcome"] == "landed"
    assert receive.status.is_unset


async def test_without_a_context_p_and_d_derive_the_same(spans: InMemorySpanExporter) -> None:
    produce = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "abc"}
    await asyncio.to_thread(move, ({}, {}), (produce, {"transfer_id": "abc"}))
    found = by_name(spans)
    expected = derived_traceparent(TransferId("x0.0:abc"))
    for name in ("kvxfer.receive", "kvxfer.send"):
        assert f"{found[name].context.trace_id:032x}" == expected[3:35]
        assert f"{found[name].parent.span_id:016x}" == expected[36:52]


async def test_a_router_without_the_package_passes_the_context_on(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_tracing, "FOUND", False)
    async with pair(Mode.PUSH) as net:
        await net.post(BODY, headers={"traceparent": CLIENT, "tracestate": "a=b"})
        leg = await net.decode.exchange()
    assert (leg.headers["traceparent"], leg.headers["tracestate"]) == (CLIENT, "a=b")


async def test_a_router_without_a_provider_passes_the_context_on(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        await net.post(BODY, headers={"traceparent": CLIENT, "tracestate": "a=b"})
        legs = [await engine.exchange() for engine in (net.prefill, net.decode)]
    for leg in legs:
        assert leg.headers["traceparent"][:52] == CLIENT[:52]
        assert leg.headers["tracestate"] == "a=b"


async def test_no_context_from_nobody_is_made_up(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        await net.post(BODY)
        leg = await net.decode.exchange()
    assert "traceparent" not in leg.headers


def test_the_module_loads_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    try:
        assert importlib.reload(router_tracing).FOUND is False
    finally:
        monkeypatch.undo()
        assert importlib.reload(router_tracing).FOUND is True
