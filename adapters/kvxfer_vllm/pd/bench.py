"""What every probe does: stage requests, cut them, and write down what held afterwards.

Owns the findings of one probe and the calls it started. Refuses to know which fault a
probe is about. Invariant: when the probe is over, no call of it is open; the number of
blocks that an engine should return to is read before the probe does anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs

from kvxfer_vllm.pd.client import Answer, Body, Call, completion
from kvxfer_vllm.pd.engines import EngineSpec, Policy
from kvxfer_vllm.pd.legs import decode_leg, fresh_name, prefill_leg
from kvxfer_vllm.pd.logs import LogTail
from kvxfer_vllm.pd.pair import Pair
from kvxfer_vllm.pd.prompts import prompt
from kvxfer_vllm.pd.report import Finding

DEADLINE_S = 20
"""Option of D's connector: how long a decode request waits for its KV."""
LEASE_S = 15
"""Option of P's connector: how long a finished prefill waits for a registration."""
TOLD_S = DEADLINE_S / 2
"""A fault that a peer is told of ends a request well before its deadline."""
SLACK_S = 10.0
"""For the engine and this machine, on top of what the protocol allows."""
DRAIN_S = 30.0
ANSWER_S = 60.0

STAGED_TOKENS = 3000
NEXT_TOKENS = 700
FILLERS = 5
ANSWER_TOKENS = 16


@attrs.frozen(kw_only=True)
class Staged:
    """Both legs of a request that D has registered while P is still busy."""

    name: str
    token_ids: Sequence[int]
    prefill: Call
    decode: Call
    fillers: Sequence[Call]


@attrs.define
class Bench:
    """One probe's view of the pair."""

    pair: Pair
    policy: Policy
    findings: list[Finding] = attrs.field(factory=list)
    _calls: list[Call] = attrs.field(factory=list)
    _held_before: dict[str, int] = attrs.field(factory=dict)

    async def begin(self) -> None:
        """Read how many blocks each engine holds at rest; more than 0 after an earlier leak."""
        pair = self.pair
        self._held_before[pair.decode.name] = await pair.blocks_held(pair.decode)
        if pair.producer_alive:
            self._held_before[pair.prefill.name] = await pair.blocks_held(pair.prefill)

    async def restart_producer(self, engine_id: str) -> None:
        """Start P, which is dead, with nothing held."""
        await self.pair.restart_producer(engine_id)
        self._held_before[self.pair.prefill.name] = 0

    async def end(self) -> None:
        """Cut whatever is still open."""
        for call in self._calls:
            await call.cut()

    def note(self, what: str, ok: bool, seen: object = "") -> None:
        """Write down a finding."""
        finding = Finding(what=what, ok=ok, seen=str(seen))
        self.findings.append(finding)
        self.pair.setting.say(f"    {finding}")

    # --- sending ---

    def send(self, url: str, body: Body, name: str | None = None) -> Call:
        call = self.pair.setting.client.start(url, body, name)
        self._calls.append(call)
        return call

    def send_prefill(self, name: str, token_ids: Sequence[int]) -> Call:
        return self.send(self.pair.prefill.url, prefill_leg(name, token_ids), name)

    def send_decode(
        self,
        name: str,
        token_ids: Sequence[int],
        answer_tokens: int = ANSWER_TOKENS,
        stream: bool = False,
    ) -> Call:
        body = decode_leg(name, token_ids, self.pair.place, answer_tokens) | {"stream": stream}
        return self.send(self.pair.decode.url, body, name)

    def send_fillers(self, seed: str) -> list[Call]:
        """Plain prompts that keep P busy for seconds."""
        bodies = [completion(prompt(STAGED_TOKENS, f"{seed}/{i}"), 1) for i in range(FILLERS)]
        return [self.send(self.pair.prefill.url, body) for body in bodies]

    async def stage(self, seed: str, name: str | None = None) -> Staged:
        """Both legs sent, P's behind fillers; returns when D's registration has left for P."""
        name = name or fresh_name()
        token_ids = prompt(STAGED_TOKENS, seed)
        watch = self.watch_registration(name)
        fillers = self.send_fillers(seed)
        staged = Staged(
            name=name,
            token_ids=token_ids,
            fillers=fillers,
            prefill=self.send_prefill(name, token_ids),
            decode=self.send_decode(name, token_ids),
        )
        registered = await watch.wait()
        self.note("D registered while P was busy", registered and not staged.prefill.answered)
        return staged

    def watch_registration(self, name: str) -> Watch:
        """Look out, from now on, for the log line of a registration; `name` is a pattern."""
        engine, pattern = self.pair.stack.registered(name)
        return Watch(LogTail(self.pair.log(engine)), pattern)

    # --- findings ---

    async def expected(self, token_ids: Sequence[int], answer_tokens: int) -> tuple[int, ...]:
        """What D answers when it computes the prompt itself."""
        body = completion(token_ids, answer_tokens)
        answer = await self.send(self.pair.decode.url, body).wait(ANSWER_S)
        return answer.tokens if answer is not None else ()

    async def note_end(
        self, call: Call, token_ids: Sequence[int], limit_s: float, answer_tokens: int
    ) -> None:
        """D's request ends in time, by policy or with the right tokens; never with wrong ones."""
        answer = await call.wait(limit_s)
        seen = answer or "no answer"
        self.note(f"D's request ends within {limit_s:.0f} s", answer is not None, seen)
        if answer is None:
            return
        expected = await self.expected(token_ids, answer_tokens)
        right = answer.tokens == expected and answer.good
        failed = answer.status >= 400 and self.policy is Policy.FAIL
        self.note(f"it is right, or ended by policy ({self.policy.value})", right or failed)

    async def note_right(self, what: str, answer: Answer | None, token_ids: Sequence[int]) -> None:
        """This answer is a good one and has the right tokens."""
        expected = await self.expected(token_ids, ANSWER_TOKENS)
        right = answer is not None and answer.good and answer.tokens == expected
        self.note(what, right, "" if right else f"{answer}")

    async def note_next(
        self, seed: str, name: str | None = None, what: str = "next request"
    ) -> None:
        """An ordinary push request is right."""
        name = name or fresh_name()
        token_ids = prompt(NEXT_TOKENS, seed)
        prefill = self.send_prefill(name, token_ids)
        decode = self.send_decode(name, token_ids)
        answer = await decode.wait(DEADLINE_S + SLACK_S)
        await self.note_right(f"{what} is right", answer, token_ids)
        if answer is None:
            await decode.cut()
        await prefill.wait(ANSWER_S)

    async def note_next_routed(self, seed: str) -> None:
        """An ordinary request through the router is right."""
        token_ids = prompt(NEXT_TOKENS, seed)
        body = completion(token_ids, ANSWER_TOKENS)
        answer = await self.send(self.pair.router_url, body).wait(DEADLINE_S + SLACK_S)
        await self.note_right("next request through the router is right", answer, token_ids)

    async def note_free(self, *specs: EngineSpec, limit_s: float = DRAIN_S) -> None:
        """The engines return to the blocks they held before the probe; both by default."""
        for spec in specs or (self.pair.decode, self.pair.prefill):
            before = self._held_before[spec.name]
            held = await self.pair.drained(spec, limit_s, before)
            self.note(
                f"{spec.name} holds no block of it within {limit_s:.0f} s",
                held <= before,
                f"{held - before} held",
            )

    async def all_end(self, calls: Sequence[Call]) -> None:
        """Wait until these calls are over, as the fillers must be before P is judged."""
        await asyncio.gather(*(call.wait(ANSWER_S) for call in calls))


@attrs.define
class Watch:
    """A log line that is awaited."""

    tail: LogTail
    pattern: str

    async def wait(self) -> bool:
        """True once the line has come; False after the deadline of a request."""
        return await self.tail.wait_for(self.pattern, DEADLINE_S)
