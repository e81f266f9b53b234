"""A client that goes away, and a router that stops: no leg stays open."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvxfer_router import Mode

BODY = {"model": "tiny", "prompt": "one two three", "max_tokens": 8, "stream": True}


async def leave(answer: asyncio.Task[Any]) -> None:
    """The client closes its connection before an answer has come."""
    answer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await answer


async def stream_then_wait(exchange: Any) -> web.StreamResponse:
    response = await exchange.stream(b"data: 1\n\n")
    await asyncio.Event().wait()
    return response


async def test_push_while_both_legs_wait(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.prefill.behave = net.decode.behave = net.never
        answer = net.post(BODY)
        prefill, decode = await net.prefill.exchange(), await net.decode.exchange()
        await leave(answer)
        await asyncio.gather(prefill.ended.wait(), decode.ended.wait())
        assert prefill.outcome == decode.outcome == "closed"
        await net.until_sample("dispatches_total push cancelled", 1)


async def test_push_after_p_has_answered(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.decode.behave = net.never
        answer = net.post(BODY)
        prefill, decode = await net.prefill.exchange(), await net.decode.exchange()
        await prefill.ended.wait()
        await leave(answer)
        await decode.ended.wait()
        assert (prefill.outcome, decode.outcome) == ("answered", "closed")
        await net.until_sample("dispatches_total push cancelled", 1)


async def test_push_before_d_s_first_byte_but_after_its_headers(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        started = asyncio.Event()

        async def headers_only(exchange: Any) -> web.StreamResponse:
            response = await exchange.stream()
            started.set()
            await asyncio.Event().wait()
            return response

        net.prefill.behave, net.decode.behave = net.never, headers_only
        answer = net.post(BODY)
        prefill, decode = await net.prefill.exchange(), await net.decode.exchange()
        await started.wait()
        await leave(answer)
        await asyncio.gather(prefill.ended.wait(), decode.ended.wait())
        assert prefill.outcome == decode.outcome == "closed"


async def test_push_while_d_streams_and_p_is_open(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.prefill.behave, net.decode.behave = net.never, stream_then_wait
        async with net.open(BODY) as response:
            await response.content.readany()
            prefill, decode = await net.prefill.exchange(), await net.decode.exchange()
            response.close()
        await asyncio.gather(prefill.ended.wait(), decode.ended.wait())
        assert prefill.outcome == decode.outcome == "closed"
        await net.until_sample("dispatches_total push cancelled", 1)


async def test_pull_during_p_s_leg(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        net.prefill.behave = net.never
        answer = net.post(BODY)
        prefill = await net.prefill.exchange()
        await leave(answer)
        await prefill.ended.wait()
        assert prefill.outcome == "closed"
        await net.until_sample("dispatches_total pull cancelled", 1)
        assert net.decode.exchanges == []


async def test_pull_during_d_s_leg(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        net.decode.behave = net.never
        answer = net.post(BODY)
        decode = await net.decode.exchange()
        await leave(answer)
        await decode.ended.wait()
        assert decode.outcome == "closed"
        await net.until_sample("dispatches_total pull cancelled", 1)


async def test_d_alone(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.decode.behave = stream_then_wait
        async with net.open({**BODY, "n": 2}) as response:
            await response.content.readany()
            decode = await net.decode.exchange()
            response.close()
        await decode.ended.wait()
        assert decode.outcome == "closed"
        await net.until_sample("dispatches_total decode cancelled", 1)


async def test_a_cancelled_leg_is_not_a_failed_leg(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        net.prefill.behave = net.decode.behave = net.never
        answer = net.post(BODY)
        await asyncio.gather(net.prefill.exchange(), net.decode.exchange())
        await leave(answer)
        await net.until_sample("dispatches_total push cancelled", 1)
        assert not [name for name in await net.samples() if name.startswith("leg_failures_total ")]


async def test_p_may_finish_behind_a_whole_answer(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        gate = asyncio.Event()
        net.prefill.behave = net.held(gate, net.reply({"id": "p"}))
        assert (await net.post(BODY))[0] == 200
        await net.until_sample("dispatches_total push completed", 1)
        prefill = await net.prefill.exchange()
        assert prefill.outcome == "open"
        gate.set()
        await prefill.ended.wait()
        assert prefill.outcome == "answered"


async def test_p_is_ended_when_it_trails_too_long(pair: Any) -> None:
    async with pair(Mode.PUSH, trailing_s=0.0) as net:
        net.prefill.behave = net.never
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply({"id": "d"}))
        answer = net.post(BODY)
        prefill = await net.prefill.exchange()
        gate.set()
        assert (await answer)[0] == 200
        await prefill.ended.wait()
        assert prefill.outcome == "closed"


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_a_stop_ends_what_is_open_after_the_drain(pair: Any, mode: Mode) -> None:
    async with pair(mode, drain_s=0.0) as net:
        net.decode.behave = net.never
        answer = net.post(BODY)
        decode = await net.decode.exchange()
        await net.stop()
        await decode.ended.wait()
        assert decode.outcome == "closed"
        with pytest.raises(aiohttp.ClientError):
            await answer


async def test_a_stop_lets_open_requests_finish_within_the_drain(
    pair: Any, monkeypatch: Any
) -> None:
    # Without the drain, the server would end its handlers at once.
    monkeypatch.setattr("kvxfer_router.app.FORCED_END_S", 0.001)
    async with pair(Mode.PUSH, drain_s=60.0) as net:
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply({"id": "d"}))
        answer = net.post(BODY)
        await net.decode.exchange()
        stopping = asyncio.create_task(net.stop())
        while not net.shared.draining:
            await asyncio.sleep(0)
        await asyncio.wait([stopping, answer], timeout=0.1)
        assert not answer.done()
        assert not stopping.done()
        gate.set()
        assert await answer == (200, {"id": "d"})
        await stopping


async def test_a_stop_ends_a_trailing_leg(pair: Any) -> None:
    async with pair(Mode.PUSH, trailing_s=3600.0) as net:
        net.prefill.behave = net.never
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply({"id": "d"}))
        answer = net.post(BODY)
        prefill = await net.prefill.exchange()
        gate.set()
        assert (await answer)[0] == 200
        await net.stop()
        await prefill.ended.wait()
        assert prefill.outcome == "closed"
        # It was ended, it did not fail when its connection was taken away.
        assert not [name for name in net.counts() if name.startswith("leg_failures_total ")]
