"""The chaos run: a pair under load, hit again and again, and what held.

Owns the order of a run and its report. Invariant: every figure is counted by this harness or
read from the engines' own gauges after the load; a figure that could not be read is not good.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence

import attrs

from kvxfer.errors import KvxferError, LocalFault
from kvxfer_vllm.pd.chaos_faults import Faults, Window, schedule
from kvxfer_vllm.pd.chaos_load import ANSWER_TOKENS, Ended, Fate, Known, Load
from kvxfer_vllm.pd.client import completion
from kvxfer_vllm.pd.engines import EngineSpec, Policy, Stack
from kvxfer_vllm.pd.metrics import QUARANTINED
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.prompts import prompt
from kvxfer_vllm.pd.runner import tuning_for

PROMPTS = 24
LENGTHS = (8, 900)
AFTER = 5
"""Requests after the load, which all have to be right."""
AFTER_S = 30.0
DRAIN_S = 40.0
CALM_S = 5.0
"""A request is in calm where no incident was felt in its life and so long before."""
FAILURES_SHOWN = 12


@attrs.frozen(kw_only=True)
class ChaosReport:
    """What a chaos run found."""

    connector: str
    mode: str
    policy: str
    seed: int
    rate: float
    up_s: float
    """Load with both engines up; while one starts again the load goes on on top."""
    requests: int
    right: int
    wrong: int
    failed: int
    failed_in_calm: int
    """Failed though no incident was near."""
    cut: int
    hung: int
    kills: int
    stalls: int
    right_after: int
    asked_after: int
    leaked: dict[str, int | None]
    """Blocks that each engine holds at rest; None where it could not be read."""
    quarantined: int | None
    seconds: float

    @property
    def good(self) -> bool:
        return (
            self.wrong == self.hung == 0 < self.right
            and self.kills > 0
            and self.right_after == self.asked_after > 0
            and all(held == 0 for held in self.leaked.values())
            and self.quarantined == 0
        )

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps({"good": self.good, **attrs.asdict(self)})


async def run_chaos(
    setting: Setting,
    stack: Stack,
    policy: Policy,
    dtype: str,
    *,
    seconds: float,
    rate: float,
    seed: int,
) -> ChaosReport:
    """Start a pair, load and hit it for `seconds`, let it rest, read it, end it."""
    started_s = time.monotonic()
    rng = random.Random(seed)
    tuning = attrs.evolve(tuning_for(policy, dtype), log_level="INFO")
    pair = await Pair.start(setting, stack, tuning)
    load = Load(pair, await _known(pair), rng)
    faults = Faults(pair)
    setting.say(f"{rate:g} requests/s for {seconds:.0f} s, seed {seed}")
    sending = asyncio.create_task(load.run(rate))
    try:
        await faults.run(schedule(seconds, rng), seconds)
    finally:
        sending.cancel()
    await load.settle()
    ended = list(load.ended)
    after = [await load.ask(known, AFTER_S) for known in load.prompts[:AFTER]]
    leaked = {spec.name: await _held(pair, spec) for spec in (pair.prefill, pair.decode)}
    quarantined = await _quarantined(pair)
    pair.end()
    fates = Counter(one.fate for one in ended)
    for line in _failures(ended, faults.windows):
        setting.say(f"    {line}")
    kinds = Counter(window.incident.kind.value for window in faults.windows)
    return ChaosReport(
        connector=stack.name,
        mode=stack.mode.value,
        policy=policy.value,
        seed=seed,
        rate=rate,
        up_s=seconds,
        requests=len(ended),
        right=fates[Fate.RIGHT],
        wrong=fates[Fate.WRONG],
        failed=fates[Fate.FAILED],
        failed_in_calm=len(in_calm(ended, faults.windows)),
        cut=fates[Fate.CUT],
        hung=fates[Fate.HUNG],
        kills=kinds["kill"],
        stalls=kinds["stall"],
        right_after=after.count(Fate.RIGHT),
        asked_after=len(after),
        leaked=leaked,
        quarantined=quarantined,
        seconds=round(time.monotonic() - started_s, 1),
    )


async def _known(pair: Pair) -> list[Known]:
    """Prompts with D's own answers, computed before anything is transferred."""
    rng = random.Random("chaos lengths")
    found = []
    for index in range(PROMPTS):
        token_ids = prompt(rng.randint(*LENGTHS), f"chaos/{index}")
        body = completion(token_ids, ANSWER_TOKENS)
        answer = await pair.setting.client.complete(pair.decode.url, body)
        if not answer.good:
            raise LocalFault(f"D gave no reference: {answer}")
        found.append(Known(token_ids=token_ids, expected=answer.tokens))
    return found


async def _held(pair: Pair, spec: EngineSpec) -> int | None:
    try:
        return await pair.drained(spec, DRAIN_S)
    except KvxferError as fault:
        pair.setting.say(f"    {spec.name} cannot be read: {fault}")
        return None


async def _quarantined(pair: Pair) -> int | None:
    try:
        return round((await pair.scrape(pair.decode)).value(QUARANTINED))
    except KvxferError:
        return None


def in_calm(ended: Sequence[Ended], windows: Sequence[Window]) -> list[Ended]:
    """Failed requests in whose life, and CALM_S before, no incident was felt."""
    return [
        one
        for one in ended
        if one.fate is Fate.FAILED
        and not any(
            window.begun_s < one.ended_s and one.begun_s - CALM_S < window.ended_s
            for window in windows
        )
    ]


def _failures(ended: Sequence[Ended], windows: Sequence[Window]) -> list[str]:
    """Failures in calm, and how often each other one was seen."""
    calm = in_calm(ended, windows)
    lines = [f"failed in calm: {one.what}" for one in calm[:FAILURES_SHOWN]]
    rest = Counter(one.what[:100] for one in ended if one.fate is Fate.FAILED and one not in calm)
    return [
        *lines,
        *(f"{count} failed: {what}" for what, count in rest.most_common(FAILURES_SHOWN)),
    ]
