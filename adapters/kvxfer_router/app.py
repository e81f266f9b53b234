"""The HTTP face of the router.

Owns the routes, the errors in OpenAI's form, and the life of what the routes
share. Refuses to know the order of legs. Invariant: whatever a client sends, it
gets an answer in OpenAI's form or a cut connection, never a stack trace.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
import attrs
from aiohttp import web
from multidict import CIMultiDict
from prometheus_client import CONTENT_TYPE_LATEST

from kvxfer_router.checks import checking
from kvxfer_router.config import OnPrefillFailure, RouterConfig
from kvxfer_router.dispatch import Dispatcher
from kvxfer_router.engine import CLIENT_ERRORS, FailureKind, LegFailed, failure_of, open_session
from kvxfer_router.events import error_object
from kvxfer_router.health import State
from kvxfer_router.intake import REQUEST_ID, Refused, engine_headers, make_names, read_call
from kvxfer_router.legs import CHAT, COMPLETIONS
from kvxfer_router.metrics import Metrics
from kvxfer_router.pool import Engine, Pool
from kvxfer_router.prompts import NO_PROMPT
from kvxfer_router.relay import Relay, passed_headers
from kvxfer_router.rounds import DECODE, PREFILL
from kvxfer_router.tracing import traced

RETRY_AFTER_S: Final = 1
"""What a client is told that comes while there is no room or no engine."""


@attrs.define
class Shared:
    """What all requests of one running router share."""

    config: RouterConfig
    metrics: Metrics
    session: aiohttp.ClientSession
    dispatcher: Dispatcher
    draining: bool = False
    open_requests: int = 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Room for one request, from before its body is read. Raises Refused."""
        if self.draining:
            raise Refused(503, "draining", "this router is about to stop")
        if self.open_requests >= self.config.requests_max:
            raise Refused(503, "too_many", f"{self.open_requests} requests are open")
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1

    async def drain(self) -> None:
        """Refuse what comes from now on; return when all that is open has ended or was ended."""
        self.draining = True
        await self.dispatcher.drain()


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
        max_line_size=config.header_bytes_max,
        max_field_size=config.header_bytes_max,
    )


def build_app(config: RouterConfig) -> web.Application:
    """The routes and what they share. Serve it with `build_runner`."""
    app = web.Application(client_max_size=config.body_mib_max << 20, middlewares=[errors_as_json])

    async def share(app: web.Application) -> AsyncIterator[None]:
        metrics = Metrics()
        async with open_session(config) as session:
            dispatcher = Dispatcher(config, session, metrics)
            app[SHARED] = Shared(config, metrics, session, dispatcher)
            async with checking(dispatcher.fleet, session, config):
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
    shared = app[SHARED]
    # Who has begun to drain and stops now wants to wait no longer.
    await (shared.dispatcher.end_open() if shared.draining else shared.drain())


@web.middleware
async def errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """An unknown path or method is answered in OpenAI's form, too."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(error.status, f"{request.method} {request.path}: {error.reason}")


def error_response(status: int, message: str) -> web.Response:
    """An error in the form that OpenAI's clients read."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    return web.json_response(error_object(status, message), status=status, headers=headers)


def _failed_response(failed: LegFailed) -> web.Response:
    """What a client gets for a leg that failed before anything was sent to it."""
    match failed.kind:
        case FailureKind.STATUS if failed.leg == DECODE or 400 <= failed.status < 500:
            # D's own word, or a request that P found wrong: the client must hear it as it is.
            headers = passed_headers(failed.headers) or CIMultiDict(
                {"Content-Type": "application/json"}
            )
            return web.Response(status=failed.status, body=failed.text, headers=headers)
        case FailureKind.TIMEOUT:
            return error_response(504, str(failed))
        case FailureKind.NO_ENGINE:
            return error_response(503, str(failed))
        case _:
            return error_response(502, str(failed))


async def serve_call(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions and /v1/chat/completions."""
    shared = request.app[SHARED]
    try:
        with shared.admitted():
            call = await read_call(request, shared.config)
            relay = Relay(request, {REQUEST_ID: call.names.request_id})
            with traced(call) as traced_call:
                await shared.dispatcher.serve(traced_call, relay.pass_on)
    except Refused as refused:
        shared.metrics.refused(refused.reason)
        return error_response(refused.status, str(refused))
    except LegFailed as failed:
        if relay.response is not None:
            await relay.break_off(failed)
            return relay.response
        response = _failed_response(failed)
        response.headers[REQUEST_ID] = call.names.request_id
        return response
    assert relay.response is not None
    return relay.response


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models, answered by a decode engine."""
    shared = request.app[SHARED]
    engine = shared.dispatcher.fleet.decode.choose(NO_PROMPT, time.monotonic())
    if engine is None:
        return error_response(503, "no decode engine is healthy")
    headers = engine_headers(request.headers, make_names("").request_id)
    url = engine.spec.url.rstrip("/") + "/v1/models"
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
    """GET /ready: 200 when requests can be served now and no shutdown is under way.

    A decode engine must have passed its last check, and a prefill engine, too, unless
    the policy is to do without.
    """
    shared = request.app[SHARED]
    fleet = shared.dispatcher.fleet
    alone = shared.config.on_prefill_failure is OnPrefillFailure.DECODE
    served = _serves(fleet.decode) and (alone or _serves(fleet.prefill))
    ready = served and not shared.draining
    state = {
        "ready": ready,
        "draining": shared.draining,
        PREFILL: [_engine_state(engine) for engine in fleet.prefill.engines],
        DECODE: [_engine_state(engine) for engine in fleet.decode.engines],
    }
    return web.json_response(state, status=200 if ready else 503)


def _serves(pool: Pool) -> bool:
    # Whoever asks may send no request before the answer is yes, so a pause that is over counts.
    now_s = time.monotonic()
    healths = (engine.health for engine in pool.engines)
    return any(
        one.check_good and (one.state is not State.OUT or one.is_pause_over(now_s))
        for one in healths
    )


def _engine_state(engine: Engine) -> dict[str, Any]:
    """One engine as /ready shows it. `check` is null before the first check has ended."""
    return {
        "engine": engine.spec.name,
        "state": engine.health.state.value,
        "check": engine.health.check_good,
        "legs": engine.open_legs,
    }


async def tell_metrics(request: web.Request) -> web.Response:
    """GET /metrics in the Prometheus text format."""
    shared = request.app[SHARED]
    fleet = shared.dispatcher.fleet
    for leg, pool in ((PREFILL, fleet.prefill), (DECODE, fleet.decode)):
        for engine in pool.engines:
            up = engine.health.state is State.UP and engine.health.check_good is not False
            shared.metrics.engine_seen(leg, engine.spec.name, up=up, open_legs=engine.open_legs)
    return web.Response(
        body=shared.metrics.text(),
        headers={"Content-Type": CONTENT_TYPE_LATEST},
    )
