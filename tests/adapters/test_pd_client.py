"""Calls that can be cut, answers for everything that goes wrong, and both legs' bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
from aiohttp import web

from kvxfer_vllm.pd.client import Answer, Client, completion, tokens_of
from kvxfer_vllm.pd.engines import (
    LAYER_SLICES,
    EngineSpec,
    Mode,
    Policy,
    Stack,
    Tuning,
    argv,
    environment,
)
from kvxfer_vllm.pd.legs import ProducerPlace, decode_leg, prefill_leg
from kvxfer_vllm.pd.logs import LogTail
from kvxfer_vllm.pd.ports import LOOPBACK, pick_ports

LIMIT_S = 20.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serving(handler: Handler) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0)
    await site.start()
    return runner, f"http://{LOOPBACK}:{runner.addresses[0][1]}"


def ask(handler: Handler) -> Answer:
    async def work() -> Answer:
        runner, url = await serving(handler)
        try:
            async with Client.open() as client:
                return await client.complete(url, completion([1, 2], 4))
        finally:
            await runner.cleanup()

    return asyncio.run(work())


def test_a_good_answer_has_its_tokens() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"token_ids": [5, 6]}]})

    good = ask(answer)
    assert (good.status, good.tokens, good.good) == (200, (5, 6), True)


def test_an_error_status_is_an_answer() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"error": "load failed"}, status=500)

    bad = ask(answer)
    assert (bad.status, bad.good) == (500, False)
    assert "load failed" in str(bad)


def test_a_success_without_tokens_is_not_good() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"token_ids": []}]})

    assert not ask(answer).good


def test_a_connection_that_breaks_in_the_answer_is_status_0() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"choices"')
        assert request.transport is not None
        request.transport.abort()
        return response

    broken = ask(answer)
    assert (broken.status, broken.good) == (0, False)
    assert broken.text


def test_nobody_listening_is_status_0() -> None:
    async def work() -> Answer:
        async with Client.open() as client:
            url = f"http://{LOOPBACK}:{pick_ports(1)[0]}"
            assert not await client.is_up(url)
            return await client.complete(url, completion([1], 1))

    assert asyncio.run(work()).status == 0


def test_cutting_a_call_ends_the_handler_at_the_server() -> None:
    async def work() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def hang(_: web.Request) -> web.Response:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return web.Response()

        runner, url = await serving(hang)
        try:
            async with Client.open() as client:
                call = client.start(url, completion([1], 1))
                await asyncio.wait_for(started.wait(), LIMIT_S)
                assert await call.wait(0.01) is None
                assert not call.answered
                await call.cut()
                await asyncio.wait_for(ended.wait(), LIMIT_S)
                assert call.answered
        finally:
            await runner.cleanup()

    asyncio.run(work())


def test_first_bytes_come_before_the_end() -> None:
    async def work() -> None:
        go_on = asyncio.Event()

        async def stream(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(event(3))
            await go_on.wait()
            await response.write(event(4) + b"data: [DONE]\n\n")
            return response

        runner, url = await serving(stream)
        try:
            async with Client.open() as client:
                call = client.start(url, completion([1], 2, stream=True))
                assert await call.await_first_bytes(LIMIT_S)
                assert not call.answered
                go_on.set()
                assert (await call.result()).tokens == (3, 4)
        finally:
            await runner.cleanup()

    asyncio.run(work())


def event(token: int) -> bytes:
    return f"data: {json.dumps({'choices': [{'token_ids': [token]}]})}\n\n".encode()


def test_tokens_of_anything_else_are_none() -> None:
    for text in (
        "",
        "{}",
        "[]",
        '{"choices": []}',
        '{"choices": [{"token_ids": null}]}',
        "data: x",
    ):
        assert tokens_of(text) == ()


def test_both_legs_carry_one_name() -> None:
    place = ProducerPlace(engine_id="P-1", kv_port=1234)
    prefill = prefill_leg("name", [1, 2, 3])
    decode = decode_leg("name", [1, 2, 3], place, 16)
    assert prefill["max_tokens"] == 1
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert decode["kv_transfer_params"]["do_remote_prefill"] is True
    assert decode["kv_transfer_params"]["remote_engine_id"] == "P-1"
    assert decode["kv_transfer_params"]["remote_port"] == 1234
    for leg in (prefill, decode):
        assert leg["kv_transfer_params"]["transfer_id"] == "name"


def config_of(command: list[str]) -> dict[str, object]:
    config: dict[str, object] = json.loads(command[command.index("--kv-transfer-config") + 1])
    return config


def test_an_engine_of_the_pair_is_told_its_connector() -> None:
    spec = EngineSpec(name="P", port=1, role="kv_producer", engine_id="P-1", kv_port=2)
    tuning = Tuning(policy=Policy.RECOMPUTE, options={"kvxfer_deadline_s": 20})
    config = config_of(argv(spec, Stack(), tuning, Path("model")))
    assert config["kv_connector_module_path"] == "kvxfer_vllm"
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"] == {"kvxfer_deadline_s": 20}
    assert environment(spec, tuning)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "2"
    in_tree = config_of(argv(spec, Stack(module=None), Tuning(), Path("model")))
    assert "kv_connector_module_path" not in in_tree
    assert "kv_connector_extra_config" not in in_tree


def test_the_mode_names_the_connector_and_asks_for_streams() -> None:
    spec = EngineSpec(name="P", port=1, role="kv_producer", engine_id="P-1", kv_port=2)
    stream = Stack(connector=Mode.PUSH_STREAM.connector, mode=Mode.PUSH_STREAM)
    config = config_of(argv(spec, stream, Tuning(), Path("model")))
    assert config["kv_connector"] == "NixlPushConnector"
    assert config["kv_connector_extra_config"] == {"stream": True}
    unchecked = config_of(argv(spec, stream, Tuning(options={"stream": False}), Path("model")))
    assert unchecked["kv_connector_extra_config"] == {"stream": False}
    assert (Mode.PULL.connector, Mode.PULL.order) == ("NixlPullConnector", "pull")
    assert Mode.PUSH_STREAM.order == "push"
    layers = attrs.evolve(stream, mode=Mode.PUSH_LAYERS)
    assert layers.options == {"stream": True, "layer_slices": LAYER_SLICES}
    assert [mode.streams for mode in Mode] == [False, False, True, True]
    assert attrs.evolve(stream, module=None).options == {}


def test_a_plain_engine_has_no_connector() -> None:
    spec = EngineSpec(name="R", port=1)
    assert "--kv-transfer-config" not in argv(spec, Stack(), Tuning(), Path("model"))
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in environment(spec, Tuning())


def test_a_log_line_from_before_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "P.log"
    log.write_text("grant parked x0.0:one\n")
    tail = LogTail(log)
    assert not asyncio.run(tail.wait_for("grant parked .*one", 0.0))
    with log.open("a") as more:
        more.write("grant parked x0.0:one\n")
    assert asyncio.run(tail.wait_for("grant parked .*one", LIMIT_S))
