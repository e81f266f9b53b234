"""The comparison of pairs: turns, ratios, and the reading of a stream; no engine is started."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from kvxfer.errors import BadValue, LocalFault
from kvxfer_vllm.pd.bench_pd import bench_pd
from kvxfer_vllm.pd.sweep import ARMS, Plan, Sweep, rotated
from kvxfer_vllm.pd.sweep_figures import ALONE, figures, interval, ratios
from kvxfer_vllm.pd.timing import Times, timed


def times(ttft_s: float, tpot_s: float = 0.01, tokens: tuple[int, ...] = (1, 2)) -> Times:
    return Times(ttft_s=ttft_s, tpot_s=tpot_s, gap_s_max=tpot_s, tokens=tokens)


def test_turns_rotate() -> None:
    assert [rotated("abc", n) for n in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_figures_leave_out_what_failed() -> None:
    row = figures([times(0.1), None, times(0.3)])
    assert (row["requests"], row["failed"]) == (2, 1)
    assert row["ttft_ms_p50"] == 300.0
    assert figures([None])["ttft_ms_p50"] is None


def test_ratios_are_of_the_same_round() -> None:
    """The machine became ten times slower in the second round: the ratio did not."""
    found: dict[str, list[Times | None]] = {
        "kvxfer-push": [times(0.1), times(1.0), times(0.2)],
        "vllm-push": [times(0.2), times(2.0), None],
    }
    row = ratios(found, "kvxfer-push")
    assert row["ttft_to_vllm-push"] == [0.5, 0.5, 0.5]
    assert row["tpot_to_vllm-push"] == [1.0, 1.0, 1.0]
    assert ratios(found, "vllm-push") == {}


def test_one_engine_alone_is_told_apart_in_milliseconds() -> None:
    found = {"vllm-push": [times(0.3), times(0.5)], ALONE: [times(0.1), times(0.2)]}
    row = ratios(found, "vllm-push")
    assert row["ttft_ms_over_one-engine"] == [250.0, 200.0, 300.0]
    assert "ttft_to_one-engine" not in row
    assert ratios(found, ALONE)["ttft_to_vllm-push"][0] == round((1 / 3 + 0.4) / 2, 3)


def test_an_interval_holds_the_median() -> None:
    middle, low, high = interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert low <= middle == 3.0 <= high
    assert interval([1.0, 2.0, 3.0, 4.0, 100.0]) == (middle, low, high)


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": ("x",)},
        {"arms": ()},
        {"arms": (ALONE,)},
        {"arms": ("vllm-push",) * 2},
        {"rounds": 0},
    ],
)
def test_wrong_plans_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        Plan(**({"arms": tuple(ARMS)} | changes))


def test_answers_that_differ_end_the_run() -> None:
    sweep = Sweep(Plan(arms=("kvxfer-push",)), setting=None, session=None)  # type: ignore[arg-type]
    sweep._compare({"a": [times(1), None], "b": [times(2), times(1)]})
    with pytest.raises(LocalFault, match="differ"):
        sweep._compare({"a": [times(1)], "b": [times(1, tokens=(3, 4))]})


def event(*tokens: int) -> bytes:
    return f"data: {json.dumps({'choices': [{'token_ids': list(tokens)}]})}\n\n".encode()


async def _served(parts: list[bytes], status: int, wanted: int) -> Times | None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            return await timed(session, f"http://127.0.0.1:{port}", [1], wanted)
    finally:
        await runner.cleanup()


def served(parts: list[bytes], status: int = 200, wanted: int = 3) -> Times | None:
    return asyncio.run(_served(parts, status, wanted))


def test_a_whole_stream_has_times() -> None:
    found = served([event(5), b": ping\n\n", event(6, 7), b"data: [DONE]\n\n"])
    assert found is not None
    assert found.tokens == (5, 6, 7)
    assert 0 <= found.tpot_s <= found.gap_s_max
    assert found.ttft_s > 0


@pytest.mark.parametrize(
    ("parts", "status"),
    [([event(5)], 200), ([event(5), event(6), event(7)], 500), ([b"data: {\n\n"], 200)],
)
def test_what_is_not_whole_has_none(parts: list[bytes], status: int) -> None:
    assert served(parts, status) is None


def test_nobody_there_has_none() -> None:
    async def ask() -> Times | None:
        async with aiohttp.ClientSession() as session:
            return await timed(session, "http://127.0.0.1:9", [1], 1)

    assert asyncio.run(ask()) is None


def test_the_command_names_a_wrong_arm() -> None:
    ran = CliRunner().invoke(bench_pd, ["--arm", "x"])
    assert ran.exit_code == 2
    assert "kvxfer-push" in ran.output
