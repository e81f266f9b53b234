"""Engines that fail, in each phase and under each policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from kvxfer_router import Mode
from kvxfer_router.engine import FailureKind, LegFailed

BODY = {"model": "tiny", "prompt": "one two three", "max_tokens": 8}
ERROR = {"error": {"message": "told by the engine", "code": 500}}


async def hang_up(exchange: Any) -> web.StreamResponse:
    exchange.request.transport.abort()
    return web.Response()


async def not_json(_: Any) -> web.Response:
    return web.Response(text="so sorry")


@pytest.mark.parametrize("policy", ["fail", "decode"])
async def test_push_an_error_of_p_does_not_end_d_s_leg(pair: Any, policy: str) -> None:
    async with pair(Mode.PUSH, policy=policy) as net:
        net.prefill.behave = net.reply(ERROR, status=500)
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply({"id": "recomputed"}))
        answer = net.post(BODY)
        await net.until_sample("leg_failures_total status prefill", 1)
        decode = await net.decode.exchange()
        assert decode.outcome == "open"
        gate.set()
        assert await answer == (200, {"id": "recomputed"})
        assert len(net.decode.exchanges) == 1
        assert decode.outcome == "answered"


async def test_push_both_fail_and_d_s_error_is_told(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.prefill.behave = net.reply({"error": "of P"}, status=500)
        p_failed = asyncio.Event()
        net.decode.behave = net.held(p_failed, net.reply(ERROR, status=503))
        answer = net.post(BODY)
        await net.until_sample("leg_failures_total status prefill", 1)
        p_failed.set()
        assert await answer == (503, ERROR)
        samples = await net.samples()
        assert samples["dispatches_total push failed"] == 1
        assert samples["leg_failures_total status decode"] == 1


async def test_push_p_down_and_policy_fail_leaves_it_to_d(pair: Any, down_url: str) -> None:
    async with pair(Mode.PUSH, prefill_urls=(down_url,)) as net:
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply(ERROR, status=500))
        answer = net.post(BODY)
        await net.until_sample("leg_failures_total unreachable prefill", 1)
        gate.set()
        assert await answer == (500, ERROR)
        assert len(net.decode.exchanges) == 1


async def test_push_p_down_and_policy_decode(pair: Any, down_url: str) -> None:
    async with pair(Mode.PUSH, policy="decode", prefill_urls=(down_url,)) as net:

        async def wait_for_kv(exchange: Any) -> web.StreamResponse:
            if "kv_transfer_params" in exchange.body:
                return await net.never(exchange)
            return web.json_response({"id": "alone"})

        net.decode.behave = wait_for_kv
        assert await net.post(BODY) == (200, {"id": "alone"})
        assert net.decode.exchanges[-1].body == BODY
        samples = await net.samples()
        assert samples["fallbacks_total push"] == 1
        assert samples["dispatches_total push completed"] == 1


async def test_push_p_found_down_after_d_s_headers(pair: Any, monkeypatch: Any) -> None:
    """A stream's headers come before its KV: they must not bind the router to that leg."""
    async with pair(Mode.PUSH, policy="decode") as net:
        waiting = asyncio.Event()

        async def refused_late(*_: Any) -> None:
            await waiting.wait()
            raise LegFailed("prefill", FailureKind.UNREACHABLE, "no connection")

        async def wait_for_kv(exchange: Any) -> web.StreamResponse:
            if "kv_transfer_params" not in exchange.body:
                # The dropped leg ends before D is asked again, not after.
                await net.decode.exchanges[0].ended.wait()
                return web.json_response({"id": "alone"})
            await exchange.stream()
            waiting.set()
            return await net.never(exchange)

        monkeypatch.setattr("kvxfer_router.engine.Leg.ask", refused_late)
        net.decode.behave = wait_for_kv
        streamed = {**BODY, "stream": True}
        assert await net.post(streamed) == (200, {"id": "alone"})
        first, alone = net.decode.exchanges
        assert first.outcome == "closed"
        assert alone.body == streamed
        # D may still hold the first leg under its id.
        assert alone.headers["X-Request-Id"] != first.headers["X-Request-Id"]


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_an_error_of_d_is_told_as_it_is(pair: Any, mode: Mode) -> None:
    async with pair(mode) as net:
        net.decode.behave = net.reply(ERROR, status=400)
        assert await net.post(BODY) == (400, ERROR)
        assert (await net.samples())[f"dispatches_total {mode.value} failed"] == 1


async def test_push_an_error_of_d_ends_p_s_leg(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.prefill.behave = net.never
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply(ERROR, status=500))
        answer = net.post(BODY)
        prefill = await net.prefill.exchange()
        gate.set()
        assert (await answer)[0] == 500
        await prefill.ended.wait()
        assert prefill.outcome == "closed"


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_d_down(pair: Any, down_url: str, mode: Mode) -> None:
    async with pair(mode, decode_urls=(down_url,)) as net:
        status, answer = await net.post(BODY)
        assert status == 502
        assert "decode leg: no connection" in answer["error"]["message"]
        samples = await net.samples()
        assert samples["leg_failures_total unreachable decode"] == 1
        assert samples[f"dispatches_total {mode.value} failed"] == 1


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_d_hangs_up_before_it_answers(pair: Any, mode: Mode) -> None:
    async with pair(mode) as net:
        net.decode.behave = hang_up
        status, answer = await net.post(BODY)
        assert status == 502
        assert "decode leg: connection broke off" in answer["error"]["message"]


async def test_d_silent_for_too_long(pair: Any) -> None:
    async with pair(Mode.PUSH, idle_timeout_s=0.05) as net:
        net.decode.behave = net.never
        status, answer = await net.post(BODY)
        assert status == 504
        assert "decode leg: silent" in answer["error"]["message"]
        await (await net.decode.exchange()).ended.wait()


PULL_FAILURES = [
    pytest.param("status", "status 500: ", id="status"),
    pytest.param("broken", "connection broke off", id="broken"),
    pytest.param("not JSON", "not JSON", id="text"),
    pytest.param("no params", "no kv_transfer_params", id="no-params"),
]


def failing(net: Any, name: str) -> Any:
    return {
        "status": net.reply(ERROR, status=500),
        "broken": hang_up,
        "not JSON": not_json,
        "no params": net.reply({"id": "p", "kv_transfer_params": None}),
    }[name]


@pytest.mark.parametrize(("failure", "told"), PULL_FAILURES)
async def test_pull_p_fails_and_policy_fail(pair: Any, failure: str, told: str) -> None:
    async with pair(Mode.PULL) as net:
        net.prefill.behave = failing(net, failure)
        status, answer = await net.post(BODY)
        assert status == 502
        assert f"prefill leg: {told}" in answer["error"]["message"]
        assert net.decode.exchanges == []
        samples = await net.samples()
        assert samples["dispatches_total pull failed"] == 1
        assert sum(v for k, v in samples.items() if k.startswith("leg_failures_total ")) == 1


@pytest.mark.parametrize(("failure", "told"), PULL_FAILURES)
async def test_pull_p_fails_and_policy_decode(pair: Any, failure: str, told: str) -> None:
    async with pair(Mode.PULL, policy="decode") as net:
        net.prefill.behave = failing(net, failure)
        assert (await net.post(BODY))[0] == 200
        (plain,) = net.decode.exchanges
        assert plain.body == BODY
        samples = await net.samples()
        assert samples["fallbacks_total pull"] == 1
        assert sum(v for k, v in samples.items() if k.startswith("leg_failures_total ")) == 1


async def test_pull_p_down(pair: Any, down_url: str) -> None:
    async with pair(Mode.PULL, prefill_urls=(down_url,)) as net:
        status, answer = await net.post(BODY)
        assert status == 502
        assert "prefill leg: no connection" in answer["error"]["message"]


async def test_pull_a_request_that_p_finds_wrong(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        told = {"error": {"message": "prompt too long", "code": 400}}
        net.prefill.behave = net.reply(told, status=400)
        assert await net.post(BODY) == (400, told)


async def test_pull_an_answer_of_p_without_end(pair: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("kvxfer_router.engine.ANSWER_BYTES_MAX", 1000)
    async with pair(Mode.PULL) as net:
        net.prefill.behave = net.reply({"kv_transfer_params": {"x": "y" * 2000}})
        status, answer = await net.post(BODY)
        assert status == 502
        assert "exceeds 1000 bytes" in answer["error"]["message"]


async def test_a_restarted_p_serves_the_next_request(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        net.prefill.behave = hang_up
        assert (await net.post(BODY))[0] == 502
        net.prefill.behave = net.reply({"kv_transfer_params": net.p_params})
        assert (await net.post(BODY))[0] == 200
