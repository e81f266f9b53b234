"""A real P that preempts a prefill in the middle of its stream. Needs vLLM and minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from kvxfer_vllm.pd.bench import ANSWER_S, ANSWER_TOKENS, DEADLINE_S, LEASE_S, SLACK_S, Bench
from kvxfer_vllm.pd.client import Client, completion
from kvxfer_vllm.pd.engines import Mode, Policy, Stack, Tuning
from kvxfer_vllm.pd.legs import fresh_name
from kvxfer_vllm.pd.metrics import STREAMED
from kvxfer_vllm.pd.model import ModelShape, write_model
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.processes import Supervisor
from kvxfer_vllm.pd.prompts import prompt

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

BLOCK = 128
PROMPT_TOKENS = 31 * BLOCK
"""With one block for the request beside it, this fills the cache."""
BESIDE_TOKENS = 90
"""Its second block is due 38 tokens later, while the prefill takes some 32 steps."""
TRIES = 8
PREEMPTIONS = "vllm:num_preemptions_total"


def tuning(policy: Policy) -> Tuning:
    return Tuning(
        block_tokens=BLOCK,
        step_tokens_max=BLOCK,
        cache_bytes=33 * BLOCK * ModelShape().kv_bytes_per_token("float32"),
        log_level="DEBUG",
        policy=policy,
        options={"kvxfer_deadline_s": DEADLINE_S, "kv_lease_duration": LEASE_S},
    )


async def preempt(bench: Bench, token_ids: Sequence[int], seed: str) -> bool:
    """One request whose prefill P should preempt; True where it did so in mid-stream."""
    pair = bench.pair
    before = await pair.scrape(pair.prefill)
    beside = completion(prompt(BESIDE_TOKENS, seed), 120, stream=True)
    decoding = bench.send(pair.prefill.url, beside)
    await decoding.await_first_bytes(ANSWER_S)
    name = fresh_name()
    decode = bench.send_decode(name, token_ids)
    prefill = bench.send_prefill(name, token_ids)
    await bench.note_end(decode, token_ids, DEADLINE_S + SLACK_S, ANSWER_TOKENS)
    answer = await prefill.wait(ANSWER_S)
    bench.note("P's leg ends well", answer is not None and answer.good, answer)
    beside_answer = await decoding.wait(ANSWER_S)
    bench.note("the request beside it ends well", beside_answer is not None and beside_answer.good)
    # After a preemption the prefill is offered anew, and nobody comes any more.
    await bench.note_free(pair.decode)
    await bench.note_free(pair.prefill, limit_s=LEASE_S + SLACK_S)
    after = await pair.scrape(pair.prefill)
    grown = {n: after.value(n) - before.value(n) for n in (PREEMPTIONS, STREAMED)}
    pair.setting.say(f"{grown}, D: {await decode.wait(0)}")
    return min(grown.values()) > 0


@pytest.mark.parametrize("policy", list(Policy), ids=lambda policy: policy.value)
def test_a_preempted_stream_gives_no_wrong_token_and_no_leak(
    tmp_path: Path, policy: Policy
) -> None:
    async def work(bench: Bench) -> None:
        await bench.begin()
        for number in range(TRIES):
            token_ids = prompt(PROMPT_TOKENS, f"preempted {number}")
            if await preempt(bench, token_ids, f"beside {number}"):
                break
        else:
            pytest.skip(f"P preempted nothing in {TRIES} tries")
        await bench.note_next("next")

    write_model(tmp_path / "model", ModelShape())
    failed = asyncio.run(findings(tmp_path, policy, work))
    assert failed == []


async def findings(
    run: Path, policy: Policy, work: Callable[[Bench], Awaitable[None]]
) -> list[str]:
    """Start a pair that streams, do `work`, end it; what did not hold."""
    with Supervisor() as supervisor:
        async with Client.open() as client:
            setting = Setting(
                supervisor=supervisor, client=client, model=run / "model", run=run, say=print
            )
            pair = await Pair.start(setting, Stack(mode=Mode.PUSH_STREAM), tuning(policy))
            bench = Bench(pair, policy)
            try:
                await work(bench)
            finally:
                await bench.end()
    assert bench.findings
    return [str(finding) for finding in bench.findings if not finding.ok]
