"""What fails before the first token goes elsewhere, and under which names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from kvxfer_router import Mode
from kvxfer_router.prompts import prompt_of

BODY = {"model": "tiny", "prompt": "one two three", "max_tokens": 8}
ERROR = {"error": {"message": "told by the engine", "code": 500}}
FROM_D = {"id": "d", "choices": [{"text": "from D"}]}


async def hang_up(exchange: Any) -> web.StreamResponse:
    exchange.request.transport.abort()
    return web.Response()


async def error_event(exchange: Any) -> web.StreamResponse:
    response = await exchange.stream(b'data: {"error": {"message": "KV ')
    await response.write(b'is lost", "code": 500}}\n\n')
    return response


def names(exchange: Any) -> tuple[str, str]:
    return exchange.params["transfer_id"], exchange.headers["X-Request-Id"]


async def test_push_a_d_that_is_down_is_replaced_under_the_same_names(
    fleet: Any, down_url: str
) -> None:
    """It never heard them; P's leg, which has, goes on."""
    async with fleet(Mode.PUSH, d_count=2, decode_urls=(down_url,)) as net:
        gate = asyncio.Event()
        net.prefill.behave = net.held(gate, net.reply({"kv_transfer_params": net.p_params}))
        assert await net.post(BODY) == (200, FROM_D)
        gate.set()
        (prefill,), (decode,) = net.prefill.exchanges, net.decode.exchanges
        assert names(prefill) == names(decode)
        assert decode.params["attempt"] == 2
        await prefill.ended.wait()
        assert prefill.outcome == "answered"
        samples = await net.samples()
        assert samples["retries_total decode"] == 1
        assert samples["dispatches_total push completed"] == 1


async def test_pull_a_d_that_is_down_is_replaced_with_p_s_answer(fleet: Any, down_url: str) -> None:
    async with fleet(Mode.PULL, d_count=2, decode_urls=(down_url,)) as net:
        assert await net.post(BODY) == (200, FROM_D)
        (prefill,), (decode,) = net.prefill.exchanges, net.decode.exchanges
        assert names(prefill) == names(decode)


async def test_pull_a_p_that_is_down_is_replaced_under_the_same_names(
    fleet: Any, down_url: str
) -> None:
    async with fleet(Mode.PULL, p_count=2, prefill_urls=(down_url,)) as net:
        assert await net.post(BODY, headers={"X-Request-Id": "mine"}) == (200, FROM_D)
        (prefill,) = net.prefill.exchanges
        assert names(prefill)[1] == f"mine-{names(prefill)[0]}"
        samples = await net.samples()
        assert samples["retries_total prefill"] == 1
        assert "fallbacks_total pull" not in samples


async def test_push_a_p_that_is_down_ends_d_s_leg_and_both_begin_anew(
    fleet: Any, down_url: str
) -> None:
    """D has registered with the P that is down: its names are used up."""
    async with fleet(Mode.PUSH, p_count=2, prefill_urls=(down_url,)) as net:
        waited = asyncio.Event()

        async def wait_once(exchange: Any) -> web.StreamResponse:
            if exchange is net.decode.exchanges[0]:
                waited.set()
                return await net.never(exchange)
            return web.json_response(FROM_D)

        net.decode.behave = wait_once
        assert await net.post(BODY) == (200, FROM_D)
        (prefill,) = net.prefill.exchanges
        last = net.decode.exchanges[-1]
        assert names(prefill) == names(last)
        assert last.params["remote_port"] == 5611
        assert last.params["attempt"] == 1
        if waited.is_set():
            first = net.decode.exchanges[0]
            await first.ended.wait()
            assert first.outcome == "closed"
            assert names(first)[0] != names(last)[0]
            assert names(first)[1] != names(last)[1]


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_an_engine_that_is_down_is_asked_once_however_good_it_looks(
    fleet: Any, down_url: str, mode: Mode
) -> None:
    async with fleet(mode, d_count=2, decode_urls=(down_url,)) as net:
        long = {**BODY, "prompt": "a long system prompt " * 100}
        down = net.engines[down_url]
        net.shared.dispatcher.fleet.decode.prefixes.learn(prompt_of("/v1/completions", long), down)
        assert await net.post(long) == (200, FROM_D)
        assert (await net.samples())["leg_failures_total unreachable decode"] == 1


D_FAILURES = ["status", "broken", "event"]


def failing(net: Any, name: str) -> Any:
    return {
        "status": net.reply(ERROR, status=500),
        "broken": hang_up,
        "event": error_event,
    }[name]


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
@pytest.mark.parametrize("failure", D_FAILURES)
async def test_a_d_that_fails_before_the_first_token_is_replaced_under_new_names(
    fleet: Any, mode: Mode, failure: str
) -> None:
    async with fleet(mode, d_count=2) as net:
        bad, good = net.decodes
        bad.behave = failing(net, failure)
        assert await net.post({**BODY, "stream": True}) == (200, FROM_D)
        (first,), (second,) = bad.exchanges, good.exchanges
        assert names(first)[0] != names(second)[0]
        assert names(first)[1] != names(second)[1]
        assert names(second)[1].startswith(names(first)[1])
        assert names(net.prefill.exchanges[-1]) == names(second)
        samples = await net.samples()
        assert samples["retries_total decode"] == 1
        assert samples[f"dispatches_total {mode.value} completed"] == 1


async def test_push_a_p_that_fails_is_replaced_and_d_does_not_wait_for_it(fleet: Any) -> None:
    async with fleet(Mode.PUSH, p_count=2) as net:
        net.prefills[0].behave = net.reply(ERROR, status=500)

        async def wait_for_the_good_p(exchange: Any) -> web.StreamResponse:
            if exchange.params["remote_port"] == 5610:
                return await net.never(exchange)
            return web.json_response(FROM_D)

        net.decode.behave = wait_for_the_good_p
        assert await net.post(BODY) == (200, FROM_D)
        assert (await net.samples())["retries_total prefill"] == 1


async def test_an_error_of_d_with_one_d_and_two_ps_tries_the_other_p(fleet: Any) -> None:
    """D's error may be the KV that P has lost."""
    async with fleet(Mode.PUSH, p_count=2) as net:

        async def lost_from_the_first(exchange: Any) -> web.StreamResponse:
            if exchange.params["remote_port"] == 5610:
                return web.json_response(ERROR, status=500)
            return web.json_response(FROM_D)

        net.decode.behave = lost_from_the_first
        assert await net.post(BODY) == (200, FROM_D)
        assert len(net.decode.exchanges) == 2


async def test_an_error_of_d_after_p_failed_falls_back(fleet: Any) -> None:
    async with fleet(Mode.PUSH, policy="decode") as net:
        net.prefill.behave = net.reply(ERROR, status=500)
        p_failed = asyncio.Event()

        async def fail_with_p(exchange: Any) -> web.StreamResponse:
            if "kv_transfer_params" not in exchange.body:
                return web.json_response(FROM_D)
            await p_failed.wait()
            return web.json_response(ERROR, status=500)

        net.decode.behave = fail_with_p
        answer = net.post(BODY)
        await net.until_sample("leg_failures_total status prefill", 1)
        p_failed.set()
        assert await answer == (200, FROM_D)
        assert net.decode.exchanges[-1].body == BODY
        assert (await net.samples())["fallbacks_total push"] == 1


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_retries_are_bounded(fleet: Any, mode: Mode) -> None:
    async with fleet(mode, d_count=4, retries=2) as net:
        for decode in net.decodes:
            decode.behave = net.reply(ERROR, status=500)
        assert await net.post(BODY) == (500, ERROR)
        assert sorted(len(decode.exchanges) for decode in net.decodes) == [0, 1, 1, 1]
        samples = await net.samples()
        assert samples["retries_total decode"] == 2
        assert samples[f"dispatches_total {mode.value} failed"] == 1


async def test_no_retries_where_none_are_wanted(fleet: Any) -> None:
    async with fleet(Mode.PULL, d_count=2, retries=0) as net:
        net.decodes[0].behave = net.reply(ERROR, status=500)
        assert await net.post(BODY) == (500, ERROR)
        assert net.decodes[1].exchanges == []


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_a_wrong_request_goes_nowhere_else(fleet: Any, mode: Mode) -> None:
    async with fleet(mode, p_count=2, d_count=2, policy="decode") as net:
        told = {"error": {"message": "prompt too long", "code": 400}}
        for decode in net.decodes:
            decode.behave = net.reply(told, status=400)
        assert await net.post(BODY) == (400, told)
        assert sum(len(decode.exchanges) for decode in net.decodes) == 1
        assert "retries_total decode" not in await net.samples()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_d_without_room_sends_the_request_to_another(fleet: Any, status: int) -> None:
    """P did well, and has the prompt in its cache now: it is asked again."""
    async with fleet(Mode.PULL, p_count=2, d_count=2) as net:
        net.decodes[0].behave = net.reply(ERROR, status=status)
        long = {**BODY, "prompt": "a long system prompt " * 100}
        assert await net.post(long) == (200, FROM_D)
        assert [len(prefill.exchanges) for prefill in net.prefills] == [2, 0]


async def test_a_d_that_fails_for_a_reason_unknown_gets_another_p_too(fleet: Any) -> None:
    async with fleet(Mode.PULL, p_count=2, d_count=2) as net:
        net.decodes[0].behave = net.reply(ERROR, status=500)
        long = {**BODY, "prompt": "a long system prompt " * 100}
        assert await net.post(long) == (200, FROM_D)
        assert [len(prefill.exchanges) for prefill in net.prefills] == [1, 1]


async def test_after_the_first_token_nothing_is_tried_again(fleet: Any) -> None:
    async with fleet(Mode.PUSH, d_count=2) as net:

        async def one_token(exchange: Any) -> web.StreamResponse:
            response = await exchange.stream(b'data: {"choices": [{"text": "a"}]}\n\n')
            exchange.request.transport.close()
            return response

        net.decodes[0].behave = one_token
        async with net.open({**BODY, "stream": True}) as response:
            text = await response.read()
        assert text.startswith(b'data: {"choices"')
        assert b'\n\ndata: {"error"' in text
        assert net.decodes[1].exchanges == []


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL, Mode.AUTO])
async def test_without_any_p_d_does_it_alone(fleet: Any, mode: Mode) -> None:
    async with fleet(mode, policy="decode") as net:
        await net.take_out(net.prefill)
        assert await net.post(BODY) == (200, FROM_D)
        (plain,) = net.decode.exchanges
        assert plain.body == BODY
        assert net.prefill.exchanges == []
        samples = await net.samples()
        assert sum(v for k, v in samples.items() if k.startswith("fallbacks_total")) == 1


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_without_any_p_and_policy_fail(fleet: Any, mode: Mode) -> None:
    async with fleet(mode) as net:
        await net.take_out(net.prefill)
        async with net.open(BODY) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
            assert "no prefill engine" in (await response.json())["error"]["message"]
        assert net.decode.exchanges == []


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_without_any_d(fleet: Any, mode: Mode) -> None:
    async with fleet(mode, policy="decode") as net:
        await net.take_out(net.decode)
        status, answer = await net.post(BODY)
        assert status == 503
        assert "no decode engine" in answer["error"]["message"]
        assert net.prefill.exchanges == [], "it would hold what nobody fetches"


async def test_a_d_that_fails_again_and_again_is_left_out_and_tried_again(fleet: Any) -> None:
    async with fleet(Mode.PULL, d_count=2, failures_max=2, pause_s=3600.0) as net:
        bad = net.decodes[0]
        bad.behave = hang_up
        for _ in range(6):
            assert await net.post(BODY) == (200, FROM_D)
        assert len(bad.exchanges) == 2
        assert (await net.samples_of_metrics())[f"engine_up {bad.url} decode"] == 0
        bad.behave = net.reply(FROM_D)
        net.engines[bad.url].health.until_s = 0.0
        for _ in range(4):
            assert await net.post(BODY) == (200, FROM_D)
        assert len(bad.exchanges) > 2
        assert (await net.samples_of_metrics())[f"engine_up {bad.url} decode"] == 1
