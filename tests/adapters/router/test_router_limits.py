"""What is refused, with what words, and how the command drains."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from kvxfer_router import Mode

BODY = {"model": "tiny", "prompt": "one two three", "max_tokens": 8}
FROM_D = {"id": "d", "choices": [{"text": "from D"}]}


async def test_more_requests_than_the_bound_are_refused(pair: Any) -> None:
    async with pair(Mode.PULL, requests_max=2) as net:
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply(FROM_D))
        first = [net.post(BODY) for _ in range(2)]
        await net.decode.exchange(1)
        async with net.open(BODY) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
            assert "2 requests are open" in (await response.json())["error"]["message"]
        gate.set()
        assert [await one for one in first] == [(200, FROM_D)] * 2
        assert await net.post(BODY) == (200, FROM_D)
        assert (await net.samples())["requests_refused_total too_many"] == 1


async def test_a_client_that_sends_its_body_too_slowly_is_refused(pair: Any) -> None:
    async with pair(Mode.PULL, body_timeout_s=0.05) as net:
        reader, writer = await asyncio.open_connection(*net.url.removeprefix("http://").split(":"))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 100\r\n\r\n{")
        status = await reader.readline()
        assert b"408" in status
        writer.close()
        await net.until_sample("requests_refused_total slow_body", 1)
        assert net.prefill.exchanges == []


async def test_a_header_above_the_bound_is_refused(pair: Any) -> None:
    async with pair(Mode.PULL, header_bytes_max=4096) as net:
        assert await net.post(BODY, headers={"X-Long": "x" * 3000}) == (200, FROM_D)
        async with net.open(BODY, headers={"X-Long": "x" * 5000}) as response:
            assert response.status == 400
        assert len(net.decode.exchanges) == 1


@asynccontextmanager
async def router_process(net: Any, *options: str) -> AsyncIterator[tuple[Any, str]]:
    """The command before the engines of `net`, and its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvxfer_router", "--port", "0", "--mode", "pull"),
        *("--prefill", net.prefill.url, "--decode", net.decode.url, *options),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        words = (await process.stdout.readline()).decode().split()
        yield process, next(word for word in words if word.startswith("http")).rstrip(",")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def post_to(net: Any, url: str) -> tuple[int, str, Any]:
    async with net.client.post(url + "/v1/completions", json=BODY) as response:
        return response.status, response.headers.get("Retry-After", ""), await response.json()


async def test_a_signal_lets_open_requests_end_and_refuses_new_ones(pair: Any) -> None:
    async with pair(Mode.PULL) as net, router_process(net, "--drain-s", "60") as (process, url):
        gate = asyncio.Event()
        net.decode.behave = net.held(gate, net.reply(FROM_D))
        running = asyncio.create_task(post_to(net, url))
        await net.decode.exchange()
        process.send_signal(signal.SIGTERM)
        ready = 200
        while ready == 200:
            async with net.client.get(url + "/ready") as response:
                state, ready = await response.json(), response.status
        assert state["draining"]
        status, retry_after, answer = await post_to(net, url)
        assert (status, retry_after) == (503, "1")
        assert "about to stop" in answer["error"]["message"]
        assert not running.done()
        gate.set()
        assert await running == (200, "", FROM_D)
        assert await process.wait() == 0


async def test_a_drain_ends_at_its_bound(pair: Any) -> None:
    async with pair(Mode.PULL) as net, router_process(net, "--drain-s", "0.05") as (process, url):
        net.decode.behave = net.never
        running = asyncio.create_task(post_to(net, url))
        decode = await net.decode.exchange()
        process.send_signal(signal.SIGTERM)
        await decode.ended.wait()
        assert decode.outcome == "closed"
        with pytest.raises(aiohttp.ClientError):
            await running
        assert await process.wait() == 0


async def test_a_second_signal_ends_the_drain(pair: Any) -> None:
    async with pair(Mode.PULL) as net, router_process(net, "--drain-s", "3600") as (process, url):
        net.decode.behave = net.never
        running = asyncio.create_task(post_to(net, url))
        await net.decode.exchange()
        process.send_signal(signal.SIGTERM)
        while (await post_to(net, url))[0] != 503:
            pass
        process.send_signal(signal.SIGTERM)
        with pytest.raises(aiohttp.ClientError):
            await running
        assert await process.wait() == 0
