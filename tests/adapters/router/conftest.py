"""Fake engines on loopback, the real router between them, and a client.

A test is an `async def` that asks for the fixture `pair`. Each fake engine
notes every exchange and whether it was answered or its connection was closed.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web
from multidict import CIMultiDictProxy
from prometheus_client.parser import text_string_to_metric_families

from kvxfer_router import (
    Coordinates,
    EngineSpec,
    Mode,
    OnPrefillFailure,
    RouterConfig,
    build_runner,
)
from kvxfer_router.app import SHARED, Shared
from kvxfer_router.checks import check_once

TEST_BOUND_S = 30.0
MODES = ("push", "pull", "decode")
COORDINATES = Coordinates(engine_id="eng-P", kv_host="127.0.0.1", kv_port=5610)
P_PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
    "remote_block_ids": [[3, 4]],
    "remote_request_id": "cmpl-made-by-P",
}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test in a fresh loop, within a bound."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def bounded() -> None:
        async with asyncio.timeout(TEST_BOUND_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


@attrs.define
class Exchange:
    """One request as an engine saw it, and how it ended: answered or closed."""

    path: str
    headers: CIMultiDictProxy[str]
    body: dict[str, Any]
    request: web.Request
    outcome: str = "open"
    ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = self.body["kv_transfer_params"]
        return params

    async def stream(self, *chunks: bytes) -> web.StreamResponse:
        """Start a server-sent stream and send these chunks of it."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Engine": "D"}
        )
        await response.prepare(self.request)
        for chunk in chunks:
            await response.write(chunk)
        return response


Behaviour = Callable[[Exchange], Awaitable[web.StreamResponse]]


@attrs.define
class FakeEngine:
    """An HTTP engine whose answer a test chooses by setting `behave`."""

    behave: Behaviour
    url: str = ""
    exchanges: list[Exchange] = attrs.field(factory=list)
    health_status: int = 200
    _arrived: asyncio.Condition = attrs.field(factory=asyncio.Condition)

    async def exchange(self, index: int = 0) -> Exchange:
        """Exchange number `index`, waiting until it arrives."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.exchanges) > index)
        return self.exchanges[index]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        exchange = Exchange(request.path, request.headers, await request.json(), request)
        async with self._arrived:
            self.exchanges.append(exchange)
            self._arrived.notify_all()
        try:
            response = await self.behave(exchange)
        except (asyncio.CancelledError, ConnectionError):
            exchange.outcome = "closed"
            raise
        else:
            exchange.outcome = "answered"
            return response
        finally:
            exchange.ended.set()

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health_status)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny"}]})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/v1/completions", self.handle)
        app.router.add_post("/v1/chat/completions", self.handle)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        async with listening(runner) as self.url:
            yield


@asynccontextmanager
async def listening(runner: web.AppRunner) -> AsyncIterator[str]:
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        if runner.server is not None:
            await runner.cleanup()


def reply(payload: object, status: int = 200) -> Behaviour:
    """Answer with this JSON."""

    async def behave(_: Exchange) -> web.Response:
        return web.json_response(payload, status=status)

    return behave


def held(gate: asyncio.Event, then: Behaviour) -> Behaviour:
    """Answer only when the gate opens."""

    async def behave(exchange: Exchange) -> web.StreamResponse:
        await gate.wait()
        return await then(exchange)

    return behave


async def never(_: Exchange) -> web.StreamResponse:
    """Hold the request until its connection is closed."""
    await asyncio.Event().wait()
    raise AssertionError


def parse_samples(text: str) -> dict[str, float]:
    """Samples of Prometheus text by name and labels: 'dispatches_total push failed'."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [sample.labels[name] for name in sorted(sample.labels)]
            name = sample.name.removeprefix("kvxfer_router_")
            samples[" ".join([name, *labels])] = sample.value
    return samples


@attrs.define
class Pair:
    """Two fake engines, the router between them, and a client session.

    Test modules cannot import a conftest, so the behaviours hang here too.
    """

    reply = staticmethod(reply)
    held = staticmethod(held)
    never = staticmethod(never)
    p_params = P_PARAMS
    parse_samples = staticmethod(parse_samples)

    prefills: list[FakeEngine]
    decodes: list[FakeEngine]
    url: str
    client: aiohttp.ClientSession
    runner: web.AppRunner

    @property
    def prefill(self) -> FakeEngine:
        return self.prefills[0]

    @property
    def decode(self) -> FakeEngine:
        return self.decodes[0]

    @property
    def engines(self) -> dict[str, Any]:
        """The router's engines by URL."""
        fleet = self.shared.dispatcher.fleet
        return {one.spec.url: one for one in fleet.prefill.engines + fleet.decode.engines}

    async def check(self, fake: FakeEngine) -> None:
        """A health check of this engine happens now."""
        fleet = self.shared.dispatcher.fleet
        pool = fleet.prefill if fake in self.prefills else fleet.decode
        await check_once(pool, self.engines[fake.url], self.shared.session, TEST_BOUND_S)

    async def take_out(self, fake: FakeEngine) -> None:
        """This engine is left out from now on: its checks fail."""
        await self.until_checked()
        fake.health_status = 503
        for _ in range(self.shared.config.failures_max):
            await self.check(fake)

    async def samples_of_metrics(self) -> dict[str, float]:
        """What GET /metrics tells."""
        async with self.client.get(self.url + "/metrics") as response:
            return parse_samples(await response.text())

    async def until_checked(self) -> None:
        """Wait until the check at the start of each engine has ended."""
        while any(engine.health.check_good is None for engine in self.engines.values()):
            await asyncio.sleep(0.001)

    async def until_empty(self) -> None:
        """Wait until no leg is open; then nothing may weigh on any engine."""
        while any(engine.open_legs for engine in self.engines.values()):
            await asyncio.sleep(0.001)
        assert not any(engine.load_tokens for engine in self.engines.values())

    def post(
        self, body: object, *, path: str = "/v1/completions", headers: dict[str, str] | None = None
    ) -> asyncio.Task[tuple[int, Any]]:
        """Send a request beside the test; the task gives (status, JSON)."""

        async def exchange() -> tuple[int, Any]:
            async with self.open(body, path=path, headers=headers) as response:
                return response.status, await response.json()

        return asyncio.create_task(exchange())

    def open(
        self, body: object, *, path: str = "/v1/completions", headers: dict[str, str] | None = None
    ) -> Any:
        """Send a request; a context manager that gives the response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(self.url + path, data=io.BytesIO(data), headers=headers or {})

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(self.url + path) as response:
            return response.status, await response.json()

    @property
    def shared(self) -> Shared:
        return self.runner.app[SHARED]

    async def stop(self) -> None:
        """Stop the router as a signal does."""
        await self.runner.cleanup()

    def counts(self) -> dict[str, float]:
        """What the router counts now; names as in `parse_samples`."""
        return parse_samples(self.shared.metrics.text().decode())

    async def samples(self) -> dict[str, float]:
        """What the router counted, once no dispatch is open."""
        while any(self.counts().get(f"dispatches_live {mode}") for mode in MODES):
            await asyncio.sleep(0.001)
        return self.counts()

    async def until_sample(self, name: str, value: float) -> None:
        """Wait until a sample has this value; the test's bound ends a wait in vain."""
        while self.counts().get(name) != value:
            await asyncio.sleep(0.001)


def check_sums(samples: dict[str, float]) -> None:
    """Each dispatch that started has ended in exactly one outcome."""
    for mode in MODES:
        ended = sum(
            samples.get(f"dispatches_total {mode} {outcome}", 0)
            for outcome in ("completed", "failed", "cancelled")
        )
        assert samples.get(f"dispatches_started_total {mode}", 0) == ended, (mode, samples)
        assert samples.get(f"dispatches_live {mode}", 0) == 0


OpenPair = Callable[..., AbstractAsyncContextManager[Pair]]


def fake_p(number: int = 0) -> FakeEngine:
    """A P that answers with the params of its number; number 0 has those of COORDINATES."""
    return FakeEngine(
        reply({"id": "p", "kv_transfer_params": P_PARAMS | {"remote_port": 5610 + number}})
    )


def fake_d() -> FakeEngine:
    return FakeEngine(reply({"id": "d", "choices": [{"text": "from D"}]}))


@asynccontextmanager
async def open_fleet(
    mode: Mode = Mode.PUSH,
    *,
    p_count: int = 1,
    d_count: int = 1,
    policy: str = "fail",
    prefill_urls: tuple[str, ...] = (),
    decode_urls: tuple[str, ...] = (),
    known: bool = True,
    **changes: Any,
) -> AsyncIterator[Pair]:
    """A router before so many fake engines; URLs given come first, in place of as many."""
    prefills = [fake_p(number) for number in range(p_count)]
    decodes = [fake_d() for _ in range(d_count)]
    async with AsyncExitStack() as stack:
        for engine in prefills + decodes:
            await stack.enter_async_context(engine.running())
        p_urls = [*prefill_urls, *(engine.url for engine in prefills)][:p_count]
        d_urls = [*decode_urls, *(engine.url for engine in decodes)][:d_count]
        settings: dict[str, Any] = {
            "prefills": tuple(
                EngineSpec(url=url, coordinates=coordinates_of(number) if known else None)
                for number, url in enumerate(p_urls)
            ),
            "decodes": tuple(EngineSpec(url=url) for url in d_urls),
            "drain_s": 0.0,
            # The first check of each engine runs at the start; tests make the others happen.
            "check_s": 3600.0,
            **changes,
        }
        config = RouterConfig(mode=mode, on_prefill_failure=OnPrefillFailure(policy), **settings)
        runner = build_runner(config)
        url = await stack.enter_async_context(listening(runner))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        opened = Pair(prefills, decodes, url, client, runner)
        yield opened
        check_sums(await opened.samples())
        await opened.until_empty()


def coordinates_of(number: int) -> Coordinates:
    return attrs.evolve(COORDINATES, kv_port=COORDINATES.kv_port + number)


@pytest.fixture
def pair() -> OpenPair:
    """Open a P, a D and a router: P answers with params, D with a text, until told otherwise."""
    return open_fleet


@pytest.fixture
def fleet() -> OpenPair:
    """The same under the name for tests with more engines."""
    return open_fleet


@pytest.fixture
def down_url() -> Iterator[str]:
    """A URL where nothing listens: a bound port that stays ours."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
