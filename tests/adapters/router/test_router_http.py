"""The routes beside the two that dispatch, and requests that reach no engine."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kvxfer_router import Mode
from kvxfer_router.checks import pause_after

BODY = {"model": "tiny", "prompt": "one two three"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("body", "reason", "told"),
    [
        (b"", "bad_json", "not JSON"),
        (b"{oops", "bad_json", "not JSON"),
        (b"\xff\xfe\xfd", "bad_json", "not JSON"),
        (b"[" * 100_000, "bad_json", "not JSON"),
        (b"[1]", "not_an_object", "must be a JSON object, got list"),
        (b"null", "not_an_object", "must be a JSON object, got NoneType"),
    ],
)
async def test_a_bad_body_is_refused(
    pair: Any, path: str, body: bytes, reason: str, told: str
) -> None:
    async with pair(Mode.PUSH) as net:
        status, answer = await net.post(body, path=path)
        assert status == 400
        assert told in answer["error"]["message"]
        assert answer["error"]["type"] == "invalid_request_error"
        assert net.prefill.exchanges == net.decode.exchanges == []
        assert (await net.samples())[f"requests_refused_total {reason}"] == 1


async def test_a_body_above_the_bound_is_refused(pair: Any) -> None:
    async with pair(Mode.PUSH, body_mib_max=1) as net:
        status, answer = await net.post({**BODY, "prompt": "x" * (1 << 20)})
        assert status == 413
        assert str(1 << 20) in answer["error"]["message"]
        assert (await net.post({**BODY, "prompt": "x" * (1 << 19)}))[0] == 200


async def test_health_needs_no_engine(pair: Any, down_url: str) -> None:
    async with pair(Mode.PUSH, prefill_urls=(down_url,), decode_urls=(down_url,)) as net:
        assert await net.get("/health") == (200, {"status": "ok"})


async def test_ready_when_both_engines_are_healthy(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        await net.until_checked()
        status, state = await net.get("/ready")
        assert (status, state["ready"]) == (200, True)
        assert state["decode"] == [
            {"engine": net.decode.url, "state": "up", "check": True, "legs": 0}
        ]
        net.decode.health_status = 503
        await net.check(net.decode)
        status, state = await net.get("/ready")
        assert (status, state["ready"], state["decode"][0]["check"]) == (503, False, False)


async def test_ready_again_although_nobody_has_sent_a_request_since(pair: Any) -> None:
    """Whoever heeds /ready sends none before; that one would have ended the pause."""
    async with pair(Mode.PUSH, pause_s=0.0) as net:
        await net.until_checked()
        await net.take_out(net.decode)
        assert (await net.get("/ready"))[0] == 503
        net.decode.health_status = 200
        await net.check(net.decode)
        status, state = await net.get("/ready")
        # To ask changes nothing: the first request is still the one that tries it.
        assert (status, state["decode"][0]["state"]) == (200, "out")


async def test_an_engine_that_is_out_is_checked_as_soon_as_its_pause_is_over(pair: Any) -> None:
    """Until then requests have to do without it."""
    async with pair(Mode.PUSH, pause_s=2.0, check_s=5.0) as net:
        engine, config = net.engines[net.decode.url], net.shared.config
        assert pause_after(engine, config) == 5.0
        await net.take_out(net.decode)
        assert pause_after(engine, config) == 2.0
        assert pause_after(engine, attrs.evolve(config, check_s=1.0)) == 1.0
        assert pause_after(engine, attrs.evolve(config, pause_s=0.0)) > 0.0


@pytest.mark.parametrize(("policy", "status"), [("fail", 503), ("decode", 200)])
async def test_ready_without_any_p_only_if_d_may_do_alone(
    pair: Any, down_url: str, policy: str, status: int
) -> None:
    async with pair(Mode.PUSH, policy=policy, prefill_urls=(down_url,)) as net:
        await net.until_checked()
        told, state = await net.get("/ready")
        assert (told, state["prefill"][0]["check"]) == (status, False)


async def test_not_ready_before_the_first_check(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        await net.until_checked()
        for engine in net.engines.values():
            engine.health.check_good = None
        status, state = await net.get("/ready")
        assert (status, state["decode"][0]["check"]) == (503, None)


async def test_an_unknown_path_is_told_in_openai_s_form(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        status, answer = await net.get("/v1/embeddings")
        assert (status, answer["error"]["code"]) == (404, 404)
        assert "GET /v1/embeddings" in answer["error"]["message"]


async def test_models_are_d_s(pair: Any, down_url: str) -> None:
    async with pair(Mode.PUSH) as net:
        status, models = await net.get("/v1/models")
        assert (status, models["data"]) == (200, [{"id": "tiny"}])
    async with pair(Mode.PUSH, decode_urls=(down_url,)) as net:
        assert (await net.get("/v1/models"))[0] == 502


async def test_outcomes_add_up(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        await net.post(BODY)
        await net.post(BODY, headers={"X-Kvxfer-Mode": "pull"})
        await net.post({**BODY, "n": 3})
        net.decode.behave = net.reply({}, status=500)
        await net.post(BODY)
        await net.until_sample("dispatches_total push failed", 1)
        samples = await net.samples()
        assert samples["dispatches_started_total push"] == 2
        assert samples["dispatches_total push completed"] == 1
        assert samples["dispatches_total pull completed"] == 1
        assert samples["dispatches_total decode completed"] == 1
        assert samples["first_byte_seconds_count push"] == 1


async def test_metrics_are_prometheus_text(pair: Any) -> None:
    async with pair(Mode.PUSH) as net:
        await net.post(BODY)
        await net.until_sample("dispatches_total push completed", 1)
        async with net.client.get(net.url + "/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            samples = net.parse_samples(await response.text())
        assert samples["dispatches_total push completed"] == 1
