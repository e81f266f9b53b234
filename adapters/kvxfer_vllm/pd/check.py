"""The check of a healthy pair: every answer equals the plain engine's, by transfer alone.

Owns the order of its steps and the collection of numbers; `report` judges them.
Invariant: the references come from an engine that has no connector at all, and the
engines' own counters, not the harness, say where the KV came from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import attrs

from kvxfer.errors import LocalFault
from kvxfer_vllm.pd.client import completion
from kvxfer_vllm.pd.crossing import crossed_prompts, differing, refused
from kvxfer_vllm.pd.engines import EngineSpec, Stack, Tuning
from kvxfer_vllm.pd.metrics import (
    QUARANTINED,
    SLICED,
    STREAMED,
    Received,
    Snapshot,
    received_between,
)
from kvxfer_vllm.pd.model import ModelShape
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.ports import pick_ports
from kvxfer_vllm.pd.prompts import check_prompts
from kvxfer_vllm.pd.report import CheckReport, Control

ANSWER_TOKENS = 32
CONCURRENCY = 4
DRAIN_S = 30.0
COUNTERS_S = 10.0
POLL_S = 0.25
SEED = "pair check"

Tokens = tuple[int, ...]


@attrs.frozen(kw_only=True)
class Traffic:
    """What came of the ordinary requests."""

    identical: int
    received: Received


@attrs.frozen(kw_only=True)
class Remains:
    """What a pair still holds after the drain, both engines together."""

    leaked: int
    quarantined: int
    streamed: int
    """Offers that P began while it still computed, since its start."""
    sliced: int
    """Those of them whose last chunk it began before its last layer."""


async def run_check(
    setting: Setting, stack: Stack, tuning: Tuning, shape: ModelShape, requests: int
) -> CheckReport:
    """Start everything, check `requests` prompts and the negative control, end everything."""
    started_s = time.monotonic()
    prompts = check_prompts(requests, SEED)
    crossed = crossed_prompts(SEED)
    plain = EngineSpec(name="R", port=pick_ports(1)[0])
    pair = await Pair.start(setting, stack, tuning, beside=plain)
    setting.say(f"{requests} references from the plain engine")
    reference = await references(setting, plain.url, [*prompts, *(own for own, _ in crossed)])
    pair.end(plain.name)
    # Before the ordinary requests, which then show that a refusal did no harm.
    refusals = await refused(pair, crossed) if stack.is_kvxfer else None
    setting.say(f"{requests} requests through the router, {CONCURRENCY} at a time")
    traffic = await check_traffic(pair, prompts, reference[:requests])
    remains = [await remains_of(pair)]
    if stack.is_kvxfer:
        pair.end()
        # A stream asks for the check of the prompt: it is left out with it.
        blind = {"check_prompt_digest": False, "stream": False, "layer_slices": 1}
        unchecked = attrs.evolve(tuning, options={**tuning.options, **blind})
        pair = await Pair.start(setting, stack, unchecked)
    differs = await differing(pair, crossed, reference[requests:])
    remains.append(await remains_of(pair))
    pair.end()
    prompt_tokens = sum(len(token_ids) for token_ids in prompts)
    in_series = stack.mode.order == "pull"
    bytes_per_token = shape.kv_bytes_per_token(tuning.dtype)
    return CheckReport(
        connector=stack.name,
        mode=stack.mode.value,
        dtype=tuning.dtype,
        requests=requests,
        identical=traffic.identical,
        prompt_tokens=prompt_tokens,
        external_tokens=traffic.received.external_tokens,
        recomputed_tokens=traffic.received.local_tokens,
        recomputed_requests=None if in_series else traffic.received.recomputed_requests,
        kv_bytes_received=bytes_received(traffic.received, bytes_per_token),
        kv_bytes_expected=prompt_tokens * bytes_per_token,
        kv_bytes_read=traffic.received.bytes_read,
        streamed=remains[0].streamed if stack.is_kvxfer else None,
        sliced=remains[0].sliced if stack.is_kvxfer else None,
        quarantined=sum(some.quarantined for some in remains),
        leaked=sum(some.leaked for some in remains),
        negative_control=Control(crossed=len(crossed), refused=refusals, differs=differs),
        seconds=round(time.monotonic() - started_s, 1),
    )


def bytes_received(received: Received, bytes_per_token: int) -> int:
    """Bytes of KV that D received.

    kvxfer's consumer counts them. The in-tree push connector counts bytes at the producer
    only; there the prompt tokens that D's scheduler took from outside are the one
    statement D makes itself, and each stands for `bytes_per_token`.
    """
    if received.bytes_received is not None:
        return received.bytes_received
    return received.external_tokens * bytes_per_token


async def references(setting: Setting, url: str, prompts: Sequence[Sequence[int]]) -> list[Tokens]:
    """The plain engine's answers, one at a time: nothing shares a batch with anything."""
    answers = []
    for token_ids in prompts:
        answer = await setting.client.complete(url, completion(token_ids, ANSWER_TOKENS))
        if not answer.good:
            raise LocalFault(f"the plain engine gave no reference: {answer}")
        answers.append(answer.tokens)
    return answers


async def check_traffic(
    pair: Pair, prompts: Sequence[Sequence[int]], reference: Sequence[Tokens]
) -> Traffic:
    """Send the prompts through the router and read D's counters around them."""
    before = await pair.scrape(pair.decode)
    answers = await through_router(pair, prompts)
    received = await received_since(pair, before, len(prompts))
    for token_ids, tokens, expected in zip(prompts, answers, reference, strict=True):
        if tokens != expected:
            pair.setting.say(f"prompt of {len(token_ids)} tokens: {tokens} instead of {expected}")
    return Traffic(
        identical=sum(tokens == expected for tokens, expected in zip(answers, reference)),
        received=received,
    )


async def received_since(pair: Pair, before: Snapshot, requests: int) -> Received:
    """D's counters since `before`, once all `requests` are in them.

    They are published behind the answers. Nothing else is sent to D meanwhile, so every
    token counted is one of these requests'.
    """
    deadline = time.monotonic() + COUNTERS_S
    while True:
        received = received_between(before, await pair.scrape(pair.decode))
        if received.finished_requests >= requests or time.monotonic() >= deadline:
            return received
        await asyncio.sleep(POLL_S)


async def through_router(pair: Pair, prompts: Sequence[Sequence[int]]) -> list[Tokens]:
    """The answers in the order of the prompts; an empty one where the request failed."""
    limit = asyncio.Semaphore(CONCURRENCY)

    async def ask(token_ids: Sequence[int]) -> Tokens:
        async with limit:
            body = completion(token_ids, ANSWER_TOKENS)
            answer = await pair.setting.client.complete(pair.router_url, body)
        if not answer.good:
            pair.setting.say(f"prompt of {len(token_ids)} tokens: {answer}")
        return answer.tokens

    return list(await asyncio.gather(*(ask(token_ids) for token_ids in prompts)))


async def remains_of(pair: Pair) -> Remains:
    """Blocks still held, and transfers still in quarantine, after the drain."""
    leaked = quarantined = 0
    for spec in (pair.prefill, pair.decode):
        leaked += await pair.drained(spec, DRAIN_S)
        quarantined += round((await pair.scrape(spec)).value(QUARANTINED))
    at_p = await pair.scrape(pair.prefill)
    return Remains(
        leaked=leaked,
        quarantined=quarantined,
        streamed=round(at_p.value(STREAMED)),
        sliced=round(at_p.value(SLICED)),
    )
