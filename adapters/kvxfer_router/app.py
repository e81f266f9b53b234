"""The HTTP face of the router.

Owns the routes, the errors in OpenAI's form, and the life of what the routes
share. Refuses to know the order of legs. Invariant: whatever a client sends, it
gets an answer in OpenAI's form or a cut connection, never a stack trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import attrs
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from kvxfer_router.config import RouterConfig
from kvxfer_router.dispatch import DECODE, PREFILL, Dispatcher
from kvxfer_router.engine import CLIENT_ERRORS, FailureKind, LegFailed, failure_of, open_session
from kvxfer_router.intake import REQUEST_ID, Refused, engine_headers, make_names, read_call
from kvxfer_router.legs import CHAT, COMPLETIONS
from kvxfer_router.metrics import Metrics
from kvxfer_router.relay import Relay, passed_headers
from kvxfer_router.tracing import traced


@attrs.define
class Shared:
    """What all requests of one running router share."""

    config: RouterConfig
    metrics: Metrics
    session: aiohttp.ClientSession
    dispatcher: Dispatcher
    draining: bool = False


SHARED: Final = web.AppKey("shared", Shared)

FORCED_END_S: Final = 1.0
"""After the drain, how long handlers that were ended may take to unwind."""


def build_runner(config: RouterConfig) -> web.AppRunner:
    """The application with the settings of the server that it relies on.

    A client that goes away must end its handler, and so its legs; aiohttp does
    that only when asked. The bounded wait at the end is `Dispatcher.drain`.
    """
    return web.AppRunner(
        build_app(config),
        handler_cancellation=True,
        shutdown_timeout=FORCED_END_S,
        access_log=None,
    )


def build_app(config: RouterConfig) -> web.Application:
    """The routes and what they share. Serve it with `build_runner`."""
    app = web.Application(client_max_size=config.body_mib_max << 20)

    async def share(app: web.Application) -> AsyncIterator[None]:
        metrics = Metrics()
        async with open_session(config) as session:
            dispatcher = Dispatcher(config, session, metrics)
            app[SHARED] = Shared(config, metrics, session, dispatcher)
            yield

    app.cleanup_ctx.append(share)
    app.on_shutdown.append(_drain)
    app.router.add_post(COMPLETIONS, serve_call)
    app.router.add_post(CHAT, serve_call)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/health", tell_health)
    app.router.add_get("/ready", tell_ready)
    app.router.add_get("/metrics", tell_metrics)
    return app


async def _drain(app: web.Application) -> None:
    app[SHARED].draining = True
    await app[SHARED].dispatcher.drain()


def error_response(status: int, message: str) -> web.Response:
    """An error in the form that OpenAI's clients read."""
    kind = "invalid_request_error" if status < 500 else "router_error"
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}},
        status=status,
    )


def _failed_response(failed: LegFailed) -> web.Response:
    """What a client gets for a leg that failed before anything was sent to it."""
    match failed.kind:
        case FailureKind.STATUS if 400 <= failed.status < 500:
            # The engine found the request wrong, which the client must hear as it is.
            return web.Response(
                status=failed.status, body=failed.text, content_type="application/json"
            )
        case FailureKind.TIMEOUT:
            return error_response(504, str(failed))
        case _:
            return error_response(502, str(failed))


async def serve_call(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions and /v1/chat/completions."""
    shared = request.app[SHARED]
    try:
        call = await read_call(request, shared.config.mode)
        relay = Relay(request, {REQUEST_ID: call.names.request_id})
        with traced(call) as traced_call:
            await shared.dispatcher.serve(traced_call, relay.pass_on)
    except Refused as refused:
        shared.metrics.refused(refused.reason)
        return error_response(refused.status, str(refused))
    except LegFailed as failed:
        if relay.response is not None:
            relay.cut()
            return relay.response
        response = _failed_response(failed)
        response.headers[REQUEST_ID] = call.names.request_id
        return response
    assert relay.response is not None
    return relay.response


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models, answered by D."""
    shared = request.app[SHARED]
    headers = engine_headers(request.headers, make_names("").request_id)
    url = shared.config.decode_url.rstrip("/") + "/v1/models"
    try:
        async with shared.session.get(url, headers=headers) as response:
            body = await response.read()
            return web.Response(
                status=response.status, body=body, headers=passed_headers(response.headers)
            )
    except CLIENT_ERRORS as error:
        return _failed_response(failure_of(DECODE, error))


async def tell_health(_: web.Request) -> web.Response:
    """GET /health: this process serves requests. Says nothing about the engines."""
    return web.json_response({"status": "ok"})


async def tell_ready(request: web.Request) -> web.Response:
    """GET /ready: 200 when both engines answer /health and no shutdown is under way."""
    shared = request.app[SHARED]
    prefill, decode = await asyncio.gather(
        _engine_state(shared, PREFILL, shared.config.prefill_url),
        _engine_state(shared, DECODE, shared.config.decode_url),
    )
    ready = prefill == decode == "ok" and not shared.draining
    state = {"ready": ready, PREFILL: prefill, DECODE: decode, "draining": shared.draining}
    return web.json_response(state, status=200 if ready else 503)


async def _engine_state(shared: Shared, name: str, base_url: str) -> str:
    try:
        async with (
            asyncio.timeout(shared.config.health_timeout_s),
            shared.session.get(base_url.rstrip("/") + "/health") as response,
        ):
            return "ok" if response.status == 200 else f"status {response.status}"
    except CLIENT_ERRORS as error:
        return str(failure_of(name, error))


async def tell_metrics(request: web.Request) -> web.Response:
    """GET /metrics in the Prometheus text format."""
    return web.Response(
        body=request.app[SHARED].metrics.text(),
        headers={"Content-Type": CONTENT_TYPE_LATEST},
    )
