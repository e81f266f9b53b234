"""The load of a chaos run: requests at a steady rate, some of which are cut.

Owns what becomes of each request. Knows no fault but the cuts that it makes itself.
Invariant: every request that was sent ends in exactly one Fate, and the run waits for all.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum

import attrs

from kvxfer_vllm.pd.client import Answer, Call, completion
from kvxfer_vllm.pd.legs import decode_leg, fresh_name, prefill_leg
from kvxfer_vllm.pd.pair import Pair

HANG_S = 90.0
"""No deadline of the protocol, no stall and no queue of this load takes as long."""
ANSWER_TOKENS = 16
CUT_SHARE = 0.15
LEG_SHARE = 0.15
CUT_S_MAX = 1.5


class Fate(Enum):
    """How a request ended."""

    RIGHT = "right"
    WRONG = "wrong"
    """Answered as good, with other tokens than the reference."""
    FAILED = "failed"
    """An error status or a broken connection, in time."""
    CUT = "cut"
    """We left before it was answered."""
    HUNG = "hung"
    """No answer within HANG_S."""


@attrs.frozen(kw_only=True)
class Known:
    """A prompt and the tokens that follow it."""

    token_ids: Sequence[int]
    expected: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Ended:
    """One request. Times as of `time.monotonic`."""

    fate: Fate
    begun_s: float
    ended_s: float
    what: str


@attrs.define
class Load:
    """All requests of one run."""

    pair: Pair
    prompts: Sequence[Known]
    rng: random.Random
    ended: list[Ended] = attrs.field(factory=list)
    _open: set[asyncio.Task[None]] = attrs.field(factory=set)

    async def run(self, rate: float) -> None:
        """Send at `rate` requests per second until cancelled, whatever becomes of them."""
        while True:
            task = asyncio.create_task(self._one())
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(self.rng.expovariate(rate))

    async def settle(self) -> None:
        """Wait for the end of all that was sent, at most HANG_S."""
        if self._open:
            await asyncio.gather(*self._open)

    def counts(self) -> Counter[Fate]:
        return Counter(one.fate for one in self.ended)

    async def ask(self, known: Known, limit_s: float) -> Fate:
        """One request through the router, not cut."""
        return await self._judged(self._routed(known), known.expected, limit_s, "routed")

    async def _one(self) -> None:
        known, draw = self.rng.choice(self.prompts), self.rng.random()
        if draw < CUT_SHARE:
            await self._cut(self._routed(known), self.rng.uniform(0, CUT_S_MAX), "client left")
        elif draw < CUT_SHARE + LEG_SHARE and self.pair.stack.mode.order == "push":
            await self._legs(known)
        else:
            await self.ask(known, HANG_S)

    async def _legs(self, known: Known) -> None:
        """Both legs sent here, and one of them, or both, cut: as a router dies or gives up."""
        pair, name = self.pair, fresh_name()
        client = pair.setting.client
        prefill = client.start(pair.prefill.url, prefill_leg(name, known.token_ids), name)
        body = decode_leg(name, known.token_ids, pair.place, ANSWER_TOKENS)
        decode = client.start(pair.decode.url, body, name)
        after_s = self.rng.uniform(0, CUT_S_MAX)
        match self.rng.randrange(3):
            case 0:
                first = known.expected[:1]
                await asyncio.gather(
                    self._cut(decode, after_s, "D's leg cut"),
                    self._judged(prefill, first, HANG_S, "P's leg after D's was cut"),
                )
            case 1:
                await asyncio.gather(
                    self._cut(prefill, after_s, "P's leg cut"),
                    self._judged(decode, known.expected, HANG_S, "D's leg after P's was cut"),
                )
            case _:
                await asyncio.gather(
                    self._cut(decode, after_s, "both legs cut"),
                    self._cut(prefill, after_s, "both legs cut"),
                )

    def _routed(self, known: Known) -> Call:
        body = completion(known.token_ids, ANSWER_TOKENS, stream=self.rng.random() < 0.5)
        return self.pair.setting.client.start(self.pair.router_url, body)

    async def _cut(self, call: Call, after_s: float, what: str) -> None:
        begun_s = time.monotonic()
        await call.wait(after_s)
        await call.cut()
        self._note(Fate.CUT, begun_s, what)

    async def _judged(
        self, call: Call, expected: tuple[int, ...], limit_s: float, what: str
    ) -> Fate:
        begun_s = time.monotonic()
        answer = await call.wait(limit_s)
        await call.cut()
        fate = fate_of(answer, expected)
        self._note(fate, begun_s, f"{what}: {answer}")
        if fate in (Fate.WRONG, Fate.HUNG):
            self.pair.setting.say(f"    {fate.value}: {what}: {answer}")
        return fate

    def _note(self, fate: Fate, begun_s: float, what: str) -> None:
        ended_s = time.monotonic()
        self.ended.append(Ended(fate=fate, begun_s=begun_s, ended_s=ended_s, what=what))


def fate_of(answer: Answer | None, expected: tuple[int, ...]) -> Fate:
    """What an answer, or none, amounts to.

    A streamed answer that breaks off after some right tokens has failed; one that gives
    a single wrong token before it breaks is wrong.
    """
    if answer is None:
        return Fate.HUNG
    if answer.good and answer.tokens == expected:
        return Fate.RIGHT
    if answer.tokens != expected[: len(answer.tokens)]:
        return Fate.WRONG
    return Fate.FAILED
