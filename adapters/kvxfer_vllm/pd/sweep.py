"""Real pairs side by side: ours and vLLM's own, the same prompts, in turns.

Owns the order of the measurement and its rows. Refuses to judge. Invariants: while one
pair is measured the others are stopped where they are, so that no pair pays for another
one's spinning threads; every round asks every pair, in an order that rotates, so that a
machine that slows down slows all; ratios are of the same round.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import attrs

from kvxfer.bench.environment import environment
from kvxfer.errors import BadValue, LocalFault
from kvxfer_vllm.pd.engines import Mode, Stack, Tuning
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.prompts import prompt
from kvxfer_vllm.pd.sweep_figures import ALONE, figures, ratios
from kvxfer_vllm.pd.timing import Times, timed

ARMS = {
    "kvxfer-push": Stack(),
    "kvxfer-stream": Stack(mode=Mode.PUSH_STREAM),
    "kvxfer-layers": Stack(mode=Mode.PUSH_LAYERS),
    "kvxfer-pull": Stack(connector="NixlPullConnector", mode=Mode.PULL),
    "vllm-push": Stack(module=None),
    "vllm-pull": Stack(connector="NixlConnector", module=None, mode=Mode.PULL),
}
"""Pairs that can be compared, by name."""
WAYS = (*ARMS, ALONE)
SETTLE_S = 0.2
"""From letting a pair go on until it is asked: its timers have fired by then."""
WARM_ROUNDS = 2
THAW_TOKENS = 16
"""A small request that is not counted goes before what is: it meets what a pair's having been
stopped has broken."""


@attrs.frozen(kw_only=True)
class Plan:
    """Sizes in tokens, rates in requests a second."""

    arms: Sequence[str]
    lengths: Sequence[int] = (256, 1024, 3000)
    rounds: int = 20
    rates: Sequence[float] = (1.0, 2.0, 4.0)
    open_tokens: int = 1024
    open_requests: int = 30
    open_rounds: int = 2
    answer_tokens: int = 16
    idle_s: float = 5.0
    seed: int = 1

    def __attrs_post_init__(self) -> None:
        for name in self.arms:
            if name not in WAYS:
                raise BadValue("arm", name, f"one of {', '.join(WAYS)}")
        if len(set(self.arms)) < len(self.arms) or not set(self.arms) - {ALONE}:
            raise BadValue("arms", list(self.arms), "a pair or more, no two alike")
        if self.rounds < 1 or self.open_rounds < 0 or self.open_requests < 1:
            raise BadValue("rounds", self.rounds, "1 or more")


@attrs.define(eq=False)
class Sweep:
    """The pairs of one run."""

    plan: Plan
    setting: Setting
    session: aiohttp.ClientSession
    pairs: dict[str, Pair] = attrs.field(factory=dict)
    failed: dict[str, int] = attrs.field(factory=dict)

    async def start(self, tuning: Tuning) -> None:
        """Start one pair after the other; each is stopped once it is warm."""
        for name in (one for one in self.plan.arms if one != ALONE):
            run = self.setting.run / name
            run.mkdir(parents=True, exist_ok=True)
            for log in run.glob("*.log"):
                log.unlink()
            self.setting.say(f"starting {name}")
            setting = attrs.evolve(self.setting, run=run)
            self.pairs[name] = await Pair.start(setting, ARMS[name], tuning)
            self.failed[name] = 0
            for number in range(WARM_ROUNDS):
                for length in (*self.plan.lengths, self.plan.open_tokens):
                    await self._ask(name, prompt(length, f"warm {number}"))
            self.pairs[name].freeze_all(on=True)
        if ALONE in self.plan.arms:
            # Asked directly, a D of ours is an engine like any other; it keeps no prefixes.
            self.pairs[ALONE] = next(iter(self.pairs.values()))
            self.failed[ALONE] = 0

    async def _ask(self, name: str, token_ids: Sequence[int]) -> Times | None:
        pair = self.pairs[name]
        url = pair.decode.url if name == ALONE else pair.router_url
        got = await timed(self.session, url, token_ids, self.plan.answer_tokens)
        if got is None:
            self.failed[name] += 1
        return got

    async def closed(self, length: int) -> list[dict[str, Any]]:
        """One request at a time: a row per arm, with its ratio to the best of vLLM's."""
        found: dict[str, list[Times | None]] = {name: [] for name in self.pairs}
        for number in range(self.plan.rounds):
            token_ids = prompt(length, f"{self.plan.seed}/{number}")
            for name in rotated(list(self.pairs), number):
                async with _Running(self, name):
                    found[name].append(await self._ask(name, token_ids))
        self._compare(found)
        return [
            {"load": "closed", "tokens": length, "rate": 0.0, "way": name}
            | figures(times)
            | ratios(found, name)
            for name, times in found.items()
        ]

    async def idle(self) -> list[dict[str, Any]]:
        """Nobody asks anything: how much of a processor each engine of a pair uses then."""
        rows = []
        for name, pair in self.pairs.items():
            if name == ALONE:
                continue
            async with _Running(self, name):
                await asyncio.sleep(SETTLE_S)
                specs, began_s = (pair.prefill, pair.decode), time.monotonic()
                before = [pair.cpu_seconds(spec) for spec in specs]
                await asyncio.sleep(self.plan.idle_s)
                spent = [pair.cpu_seconds(spec) for spec in specs]
                wall_s = time.monotonic() - began_s
            p_cpus, d_cpus = ((a - b) / wall_s for a, b in zip(spent, before, strict=True))
            used = {"p_cpus": round(p_cpus, 3), "d_cpus": round(d_cpus, 3)}
            rows.append({"load": "idle", "tokens": 0, "rate": 0.0, "way": name} | used)
        return rows

    async def open(self, rate: float) -> list[dict[str, Any]]:
        """Requests that arrive whether or not the last one has been answered."""
        found: dict[str, list[Times | None]] = {name: [] for name in self.pairs}
        for number in range(self.plan.open_rounds):
            for name in rotated(list(self.pairs), number):
                async with _Running(self, name):
                    found[name] += await self._burst(name, rate, number)
        self._compare(found)
        return [
            {"load": "open", "tokens": self.plan.open_tokens, "rate": rate, "way": name}
            | figures(times)
            for name, times in found.items()
        ]

    async def _burst(self, name: str, rate: float, number: int) -> list[Times | None]:
        draw = random.Random(f"{self.plan.seed}/{rate}/{number}")
        tasks = []
        async with asyncio.TaskGroup() as group:
            for index in range(self.plan.open_requests):
                token_ids = prompt(self.plan.open_tokens, f"{self.plan.seed}/{number}/{index}")
                tasks.append(group.create_task(self._ask(name, token_ids)))
                await asyncio.sleep(draw.expovariate(rate))
        return [task.result() for task in tasks]

    def _compare(self, found: dict[str, list[Times | None]]) -> None:
        """The same prompt has the same answer, whoever moved its KV. Raises LocalFault."""
        for answers in zip(*found.values(), strict=True):
            if len({one.tokens for one in answers if one is not None}) > 1:
                raise LocalFault(f"answers to one prompt differ: {answers}")


@attrs.define
class _Running:
    """One pair goes on while the block runs."""

    sweep: Sweep
    name: str

    async def __aenter__(self) -> None:
        self.sweep.pairs[self.name].freeze_all(on=False)
        await asyncio.sleep(SETTLE_S)
        await self.sweep._ask(self.name, prompt(THAW_TOKENS, "thaw"))

    async def __aexit__(self, *_: object) -> None:
        self.sweep.pairs[self.name].freeze_all(on=True)


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The same names, another one first each time."""
    shift = number % len(names)
    return [*names[shift:], *names[:shift]]


async def run_sweep(setting: Setting, plan: Plan, tuning: Tuning) -> dict[str, Any]:
    """Start, measure, report. Raises LocalFault where answers differ or a pair does not start."""
    rows: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        sweep = Sweep(plan, setting, session)
        await sweep.start(tuning)
        setting.say("idle")
        rows += await sweep.idle()
        for length in plan.lengths:
            setting.say(f"one at a time, {length} tokens")
            rows += await sweep.closed(length)
        for rate in plan.rates if plan.open_rounds else ():
            setting.say(f"{rate:g} requests a second, {plan.open_tokens} tokens")
            rows += await sweep.open(rate)
        # Stopped processes cannot end when they are asked to.
        for pair in sweep.pairs.values():
            pair.freeze_all(on=False)
    return {
        "bench": "pd",
        "environment": environment(),
        "plan": attrs.asdict(plan),
        "failed": sweep.failed,
        "rows": rows,
    }
