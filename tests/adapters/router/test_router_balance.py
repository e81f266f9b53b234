"""Many engines: who is asked, when D is chosen, and data-parallel ranks."""

from __future__ import annotations

import asyncio
from typing import Any

from kvxfer_router import EngineSpec, Mode

FROM_D = {"id": "d", "choices": [{"text": "from D"}]}


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 8, **fields}


def asked(engines: list[Any]) -> list[int]:
    return [len(engine.exchanges) for engine in engines]


async def test_unlike_prompts_are_spread(fleet: Any) -> None:
    async with fleet(Mode.PUSH, p_count=3, d_count=2) as net:
        for number in range(12):
            assert (await net.post(body(f"{number} " * 200)))[0] == 200
        assert asked(net.prefills) == [4, 4, 4]
        assert asked(net.decodes) == [6, 6]


async def test_a_known_beginning_finds_its_engines_again(fleet: Any) -> None:
    async with fleet(Mode.PUSH, p_count=3, d_count=3) as net:
        start = "a long system prompt " * 100
        for number in range(5):
            assert (await net.post(body(f"{start} and question {number}")))[0] == 200
        assert sorted(asked(net.prefills)) == [0, 0, 5]
        assert sorted(asked(net.decodes)) == [0, 0, 5]


async def test_a_busy_engine_loses_even_what_it_knows(fleet: Any) -> None:
    async with fleet(Mode.PULL, p_count=2) as net:
        start = "a long system prompt " * 100
        assert (await net.post(body(start)))[0] == 200
        (knows,) = [engine for engine in net.prefills if engine.exchanges]
        (other,) = [engine for engine in net.prefills if not engine.exchanges]
        gate = asyncio.Event()
        knows.behave = net.held(gate, net.reply({"kv_transfer_params": net.p_params}))
        waiting = [net.post(body(start + str(number))) for number in range(4)]
        await other.exchange(0)
        gate.set()
        assert [(await one)[0] for one in waiting] == [200] * 4


async def test_push_chooses_d_early_and_pull_late(fleet: Any) -> None:
    for mode, expected in ((Mode.PUSH, [1, 0]), (Mode.PULL, [0, 1])):
        async with fleet(mode, d_count=2) as net:
            gate = asyncio.Event()
            net.prefill.behave = net.held(gate, net.reply({"kv_transfer_params": net.p_params}))
            answer = net.post(body("split"))
            await net.prefill.exchange()
            if mode is Mode.PUSH:
                await net.decodes[0].exchange()
            # While P computes, the first D gets a long time's work.
            net.engines[net.decodes[0].url].sit(100_000)
            gate.set()
            assert (await answer)[0] == 200
            assert asked(net.decodes) == expected
            net.engines[net.decodes[0].url].load_tokens = 0
            net.engines[net.decodes[0].url].open_legs = 0


async def test_auto_is_push_while_p_has_little_to_do(fleet: Any) -> None:
    async with fleet(Mode.AUTO, auto_push_tokens_max=1000) as net:
        assert (await net.post(body("short")))[0] == 200
        seat = net.engines[net.prefill.url].sit(1001)
        assert (await net.post(body("short")))[0] == 200
        seat.leave()
        assert (await net.post(body("short")))[0] == 200
        samples = await net.samples()
        assert samples["dispatches_total push completed"] == 2
        assert samples["dispatches_total pull completed"] == 1


async def test_auto_is_pull_until_p_has_told_where_it_is(fleet: Any) -> None:
    async with fleet(Mode.AUTO, known=False) as net:
        for _ in range(2):
            assert (await net.post(body("short")))[0] == 200
        samples = await net.samples()
        assert samples["dispatches_total pull completed"] == 1
        assert samples["dispatches_total push completed"] == 1
        assert net.decode.exchanges[1].params["remote_engine_id"] == "eng-P"


async def test_auto_is_chosen_by_a_header(fleet: Any) -> None:
    async with fleet(Mode.PULL) as net:
        answer = net.post(body("short"), headers={"X-Kvxfer-Mode": "auto"})
        assert await answer == (200, FROM_D)
        assert (await net.samples())["dispatches_total push completed"] == 1


async def test_each_p_has_its_own_coordinates(fleet: Any) -> None:
    async with fleet(Mode.PUSH, p_count=2) as net:
        for number in range(4):
            assert (await net.post(body(f"{number} " * 300)))[0] == 200
        by_transfer = {
            exchange.params["transfer_id"]: 5610 + number
            for number, engine in enumerate(net.prefills)
            for exchange in engine.exchanges
        }
        assert len(by_transfer) == 4
        for exchange in net.decode.exchanges:
            params = exchange.params
            assert params["remote_port"] == by_transfer[params["transfer_id"]]


async def test_a_rank_is_named_in_the_header_and_the_coordinates(fleet: Any) -> None:
    async with fleet(Mode.PUSH) as alone:
        first = alone.shared.config.prefills[0]
        ranks = EngineSpec(url=first.url, coordinates=first.coordinates).ranks(2)
        async with fleet(Mode.PUSH, prefills=ranks) as net:
            for number in range(2):
                assert (await net.post(body(f"{number} " * 300)))[0] == 200
            seen = {
                exchange.params["transfer_id"]: exchange.headers["X-data-parallel-rank"]
                for exchange in alone.prefill.exchanges
            }
            assert sorted(seen.values()) == ["0", "1"]
            for exchange in net.decode.exchanges:
                rank = seen[exchange.params["transfer_id"]]
                assert exchange.params["remote_engine_id"] == f"eng-P_dp{rank}"
                assert exchange.params["remote_port"] == 5610 + int(rank)
                assert "X-data-parallel-rank" not in exchange.headers
