"""Which legs go out, when, and under which names."""

from __future__ import annotations

import asyncio
from typing import Any

from kvxfer_router import Mode

BODY = {"model": "tiny", "prompt": "one two three", "max_tokens": 8}


async def test_push_sends_both_legs_at_once(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        d_has_come = asyncio.Event()
        net.prefill.behave = net.held(d_has_come, net.reply({"id": "p"}))
        p_has_ended = asyncio.Event()
        net.decode.behave = net.held(p_has_ended, net.reply({"id": "d"}))
        answer = net.post(BODY)
        await net.decode.exchange()
        # P answers only now: legs in series would never have come here.
        d_has_come.set()
        prefill = await net.prefill.exchange()
        await prefill.ended.wait()
        p_has_ended.set()
        assert await answer == (200, {"id": "d"})
        assert prefill.outcome == "answered"


async def test_pull_sends_d_s_leg_after_p_s_answer(pair: Any) -> None:
    async with pair(Mode.PULL) as net:
        gate = asyncio.Event()
        net.prefill.behave = net.held(gate, net.reply({"kv_transfer_params": net.p_params}))
        answer = net.post(BODY)
        prefill = await net.prefill.exchange()
        assert net.decode.exchanges == []
        gate.set()
        assert (await answer)[0] == 200
        (decode,) = net.decode.exchanges
        transfer_id = prefill.params["transfer_id"]
        assert decode.body == {
            **BODY,
            "kv_transfer_params": {**net.p_params, "transfer_id": transfer_id},
        }


async def test_both_legs_share_path_and_names(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        for path, engine_id in (
            ("/v1/completions", "cmpl-{}-0"),
            ("/v1/chat/completions", "chatcmpl-{}"),
        ):
            index = len(net.decode.exchanges)
            await net.post(BODY, path=path)
            prefill, decode = await net.prefill.exchange(index), await net.decode.exchange(index)
            request_id = decode.headers["X-Request-Id"]
            assert prefill.path == decode.path == path
            assert prefill.headers["X-Request-Id"] == request_id
            assert prefill.params["transfer_id"] == decode.params["transfer_id"]
            assert decode.params["remote_request_id"] == engine_id.format(request_id)


async def test_a_client_s_id_is_never_used_twice(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        headers = {"X-Request-Id": "same id/äö"}
        answers = [net.post(BODY, headers=headers) for _ in range(2)]
        await asyncio.gather(*answers)
        ids = {exchange.headers["X-Request-Id"] for exchange in net.decode.exchanges}
        transfers = {exchange.params["transfer_id"] for exchange in net.decode.exchanges}
        assert len(ids) == len(transfers) == 2
        assert all(request_id.startswith("sameid-") for request_id in ids)
        assert ids == {exchange.headers["X-Request-Id"] for exchange in net.prefill.exchanges}


async def test_the_client_is_told_the_id_of_its_dispatch(pair: Any) -> None:
    async with pair(Mode.PUSH) as net, net.open(BODY) as response:
        (decode,) = net.decode.exchanges
        assert response.headers["X-Request-Id"] == decode.headers["X-Request-Id"]


async def test_a_header_chooses_the_order_for_one_request(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        await net.post(BODY, headers={"X-Kvxfer-Mode": "Pull"})
        await net.post(BODY)
        in_pull, in_push = net.decode.exchanges
        assert in_pull.params["remote_block_ids"] == net.p_params["remote_block_ids"]
        assert "remote_block_ids" not in in_push.params


async def test_an_unknown_order_is_refused(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        status, answer = await net.post(BODY, headers={"X-Kvxfer-Mode": "shove"})
        assert status == 400
        assert "X-Kvxfer-Mode" in answer["error"]["message"]
        assert net.prefill.exchanges == net.decode.exchanges == []


async def test_push_without_coordinates_is_refused_until_p_has_told_them(pair: Any) -> None:
    async with pair(Mode.PULL, known=False) as net:
        push = {"X-Kvxfer-Mode": "push"}
        status, answer = await net.post(BODY, headers=push)
        assert status == 400
        assert "coordinates" in answer["error"]["message"]
        await net.post(BODY)
        assert (await net.post(BODY, headers=push))[0] == 200
        assert net.decode.exchanges[-1].params["remote_engine_id"] == "eng-P"


async def test_several_prompts_go_to_d_alone(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        body = {**BODY, "prompt": ["one", "two"], "kv_transfer_params": {"remote_host": "evil"}}
        assert (await net.post(body))[0] == 200
        assert net.prefill.exchanges == []
        assert net.decode.exchanges[0].body == {**BODY, "prompt": ["one", "two"]}
        samples = await net.samples()
        assert samples["requests_not_split_total several_prompts"] == 1
        assert samples["dispatches_total decode completed"] == 1


async def test_a_client_cannot_name_peers(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        await net.post({**BODY, "kv_transfer_params": {"remote_host": "evil", "extra": 1}})
        for engine in (net.prefill, net.decode):
            params = (await engine.exchange()).params
            assert params["remote_host"] != "evil"
            assert "extra" not in params


async def test_coordinates_in_p_s_answer_are_used_next(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        restarted = {**net.p_params, "remote_engine_id": "eng-P-2", "remote_port": 6000}
        net.prefill.behave = net.reply({"kv_transfer_params": restarted})
        await net.post(BODY)
        await net.until_sample("coordinates_adopted_total", 1)
        await net.post(BODY)
        old, new = (exchange.params for exchange in net.decode.exchanges)
        assert (old["remote_engine_id"], old["remote_port"]) == ("eng-P", 5610)
        assert (new["remote_engine_id"], new["remote_port"]) == ("eng-P-2", 6000)
        assert (await net.samples())["coordinates_adopted_total"] == 1


async def test_keys_and_traces_reach_both_engines(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        passed = {"Authorization": "Bearer k", "traceparent": "00-1-2-01", "tracestate": "a=b"}
        await net.post(BODY, headers={**passed, "Cookie": "c=d"})
        for engine in (net.prefill, net.decode):
            headers = (await engine.exchange()).headers
            assert {name: headers[name] for name in passed} == passed
            assert "Cookie" not in headers
            assert headers["Accept-Encoding"] == "identity"
