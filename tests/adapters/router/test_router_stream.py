"""D's answer on its way to the client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvxfer_router import Mode

BODY = {"model": "tiny", "prompt": "one two three", "max_tokens": 8, "stream": True}
FIRST, SECOND, LAST = b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\n', b"data: [DONE]\n\n"


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_chunks_pass_one_by_one(pair: Any, mode: Mode) -> None:
    async with pair(mode) as net:
        read: asyncio.Queue[bytes] = asyncio.Queue()

        async def step_by_step(exchange: Any) -> web.StreamResponse:
            response = await exchange.stream(FIRST)
            # Each chunk is sent only after the client has read the one before.
            assert await read.get() == FIRST
            await response.write(SECOND)
            assert await read.get() == SECOND
            await response.write(LAST)
            await response.write_eof()
            return response

        net.decode.behave = step_by_step
        async with net.open(BODY) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert response.headers["X-Engine"] == "D"
            for expected in (FIRST, SECOND, LAST):
                chunk = await response.content.readany()
                assert chunk == expected
                read.put_nowait(chunk)
            assert await response.content.readany() == b""


async def test_the_decode_leg_keeps_the_client_s_stream_options(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        asked = {**BODY, "stream_options": {"include_usage": True}}
        await net.post(asked)
        decode, prefill = await net.decode.exchange(), await net.prefill.exchange()
        assert asked.items() <= decode.body.items()
        assert prefill.body["stream"] is False
        assert "stream_options" not in prefill.body


async def test_a_whole_answer_keeps_its_length(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        payload = {"choices": [{"text": "x" * 300_000}]}
        net.decode.behave = net.reply(payload)
        async with net.open({**BODY, "stream": False}) as response:
            assert int(response.headers["Content-Length"]) == len(json.dumps(payload))
            assert await response.json() == payload


async def test_an_empty_answer_is_passed_on(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:

        async def empty(_: Any) -> web.Response:
            return web.Response(status=200)

        net.decode.behave = empty
        async with net.open(BODY) as response:
            assert response.status == 200
            assert await response.read() == b""


@pytest.mark.parametrize("torn", [b"", b'data: {"id": "d", "choi'])
async def test_a_stream_that_breaks_off_at_d_ends_with_an_error_event(
    pair: Any, torn: bytes
) -> None:
    """Nothing of a torn event reaches the client, or the error event would be part of it."""
    async with pair(Mode.PUSH) as net:
        read = asyncio.Event()

        async def break_off(exchange: Any) -> web.StreamResponse:
            response = await exchange.stream(FIRST)
            await read.wait()
            if torn:
                await response.write(torn)
            exchange.request.transport.close()
            return response

        net.decode.behave = break_off
        async with net.open(BODY) as response:
            assert await response.content.readany() == FIRST
            read.set()
            last = await response.read()
        assert last.startswith(b'data: {"error": {"message": "decode leg: connection broke off')
        assert last.endswith(b"\n\n")
        assert b"[DONE]" not in last
        await net.until_sample("dispatches_total push failed", 1)
        assert (await net.samples())["leg_failures_total broken decode"] == 1


async def test_a_stream_that_is_no_event_stream_is_cut(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:

        async def break_off(exchange: Any) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(exchange.request)
            await response.write(b"only this")
            exchange.request.transport.close()
            return response

        net.decode.behave = break_off
        with pytest.raises(aiohttp.ClientError):
            async with net.open(BODY) as response:
                await response.read()
        await net.until_sample("dispatches_total push failed", 1)


async def test_a_short_answer_of_d_is_cut_not_completed(pair: Any) -> None:
    """D announces more bytes than it sends."""
    async with pair(Mode.PUSH) as net:

        async def short(exchange: Any) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(exchange.request)
            await response.write(b"only this")
            exchange.request.transport.close()
            return response

        net.decode.behave = short
        with pytest.raises(aiohttp.ClientError):
            async with net.open(BODY) as response:
                await response.read()
        await net.until_sample("dispatches_total push failed", 1)
