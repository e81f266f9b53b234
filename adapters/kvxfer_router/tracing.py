"""The router's span of a request, and the context that both legs carry.

Owns the span's name. Invariants: the `traceparent` that goes to P and D names the
router's span where one is recorded, else what the client sent; without the package
opentelemetry, or without a provider in the process, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from kvxfer_router.intake import ClientCall

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    FOUND = False
else:
    FOUND = True


@contextmanager
def traced(call: ClientCall) -> Iterator[ClientCall]:
    """The call with the trace context for its legs; the span ends with the block."""
    if not FOUND:
        yield call
        return
    propagator = TraceContextTextMapPropagator()
    carrier = {name.lower(): value for name, value in call.headers.items()}
    tracer = trace.get_tracer("kvxfer.router")
    with tracer.start_as_current_span(
        "kvxfer.route",
        context=propagator.extract(carrier),
        kind=trace.SpanKind.SERVER,
        attributes={
            "kvxfer.transfer_id": call.names.transfer_id,
            "kvxfer.mode": call.mode.value,
            "url.path": call.path,
        },
    ):
        given: dict[str, str] = {}
        propagator.inject(given)
        dropped = ("traceparent", "tracestate") if given else ()
        kept = {k: v for k, v in call.headers.items() if k.lower() not in dropped}
        yield attrs.evolve(call, headers={**kept, **given})
