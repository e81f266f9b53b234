"""Whatever the engines do, every request has one outcome, and no names go out twice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import attrs
from aiohttp import web
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from kvxfer_router import Mode

WHOLE = b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'
FATES = (
    *("answer", "answer", "answer", "answer"),
    *("hang up", "500", "503", "400", "odd", "error event", "torn stream", "slow"),
)
"""What becomes of one exchange at an engine."""


@attrs.define
class Plan:
    """The fates of one engine's exchanges, in turn; then it answers."""

    fates: list[str]

    async def behave(self, exchange: Any) -> web.StreamResponse:
        fate = self.fates.pop(0) if self.fates else "answer"
        if fate == "hang up":
            exchange.request.transport.abort()
            return web.Response()
        if fate in ("500", "503", "400"):
            return web.json_response({"error": {"code": int(fate)}}, status=int(fate))
        if fate == "odd":
            return web.Response(text="so sorry")
        if fate == "slow":
            # Yields to everything else, so that others overtake it.
            for _ in range(50):
                await asyncio.sleep(0)
        if exchange.body.get("stream"):
            return await self._stream(exchange, fate)
        return web.json_response({"kv_transfer_params": {"do_remote_prefill": True, "x": 1}})

    async def _stream(self, exchange: Any, fate: str) -> web.StreamResponse:
        if fate == "error event":
            return await exchange.stream(b'data: {"error": {"code": 500}}\n\n')
        response = await exchange.stream(WHOLE[:40])
        if fate == "torn stream":
            exchange.request.transport.close()
            return response
        await response.write(WHOLE[40:])
        return response


async def one_request(net: Any, number: int, mode: str, leaves: bool) -> str:
    """What a client sees of its request, in one word."""
    body = {"model": "tiny", "prompt": f"{number} " * 40, "stream": True}
    task = asyncio.create_task(_read(net, body, mode))
    if leaves:
        for _ in range(number * 7 % 60):
            await asyncio.sleep(0)
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return "left"


async def _read(net: Any, body: dict[str, Any], mode: str) -> str:
    try:
        async with net.open(body, headers={"X-Kvxfer-Mode": mode}) as response:
            text = await response.read()
    except aiohttp.ClientError:
        return "cut"
    if response.status != 200:
        return "error"
    if text == WHOLE or text == b"so sorry":
        return "whole"
    assert b'data: {"error"' in text, text
    assert b"[DONE]" not in text
    return "error event"


REQUESTS = st.lists(
    st.tuples(st.sampled_from(["push", "pull", "auto"]), st.sampled_from([False, False, True])),
    min_size=1,
    max_size=8,
)
PLANS = st.lists(st.lists(st.sampled_from(FATES), max_size=4), min_size=4, max_size=4)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    requests=REQUESTS,
    plans=PLANS,
    policy=st.sampled_from(["fail", "decode"]),
    retries=st.integers(0, 2),
)
def test_every_request_has_one_outcome(
    fleet: Any, requests: list[Any], plans: list[list[str]], policy: str, retries: int
) -> None:
    async def play() -> None:
        async with fleet(
            Mode.AUTO, p_count=2, d_count=2, policy=policy, retries=retries, pause_s=0.0
        ) as net:
            engines = [*net.prefills, *net.decodes]
            for engine, fates in zip(engines, plans, strict=True):
                engine.behave = Plan(list(fates)).behave
            seen = await asyncio.gather(
                *(one_request(net, number, *one) for number, one in enumerate(requests))
            )
            await net.until_empty()
            samples = await net.samples()
            check(net, seen, samples)

    asyncio.run(play())


def check(net: Any, seen: list[str], samples: dict[str, float]) -> None:
    """The counters agree with what the clients saw, and the engines with the rule of names."""
    for outcome in sorted(set(seen)):
        event(outcome)

    def total(name: str) -> float:
        return sum(v for k, v in samples.items() if k.startswith("dispatches_total") and name in k)

    left = seen.count("left")
    # Who left may have been too early to be a request, or too late to change its outcome.
    assert total("cancelled") <= left
    assert seen.count("whole") <= total("completed") <= seen.count("whole") + left
    bad = seen.count("error") + seen.count("error event") + seen.count("cut")
    assert bad <= total("failed") <= bad + left
    for engine in [*net.prefills, *net.decodes]:
        ids = [exchange.headers["X-Request-Id"] for exchange in engine.exchanges]
        assert len(ids) == len(set(ids))
        transfers = [
            exchange.params["transfer_id"]
            for exchange in engine.exchanges
            if "kv_transfer_params" in exchange.body
        ]
        assert len(transfers) == len(set(transfers))
