"""One pair of one kind, in every mode, from one start of its engines.

Owns the traffic and the verdicts. The legs are sent without a router, since each says for
itself who moves its KV and whether it is streamed. Invariant: a mode is good only if
every answer is the plain engine's and all KV came by transfer, the way the mode says.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence

import attrs

from kvxfer.errors import KvxferError
from kvxfer_vllm.params import MODE_KEY, STREAM_KEY
from kvxfer_vllm.pd.check import (
    ANSWER_TOKENS,
    CONCURRENCY,
    Tokens,
    received_since,
    references,
    remains_of,
)
from kvxfer_vllm.pd.client import Answer, Body, completion
from kvxfer_vllm.pd.engines import EngineShape, EngineSpec, Mode, Stack, Tuning
from kvxfer_vllm.pd.kinds import Kind
from kvxfer_vllm.pd.legs import decode_leg, fresh_name, prefill_leg
from kvxfer_vllm.pd.metrics import SLICED, STREAMED, Received
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.ports import pick_ports
from kvxfer_vllm.pd.prompts import prompt

CHUNK_TOKENS = 512
"""P computes so many tokens in a step: most prompts are several chunks."""
CACHE_BYTES = 256 << 20
SEED = "kinds"
LENGTHS = (3000, 1, 5, 127, 128, 129, 161, 300, 513, 700, 1024, 1025, 1500, 2047)
"""On both sides of blocks, of the window and of a chunk."""
EARLY_SHARE = 4
CONTROL_LENGTHS = (300, 1500)


@attrs.frozen(kw_only=True)
class ModeReport:
    """What one mode showed."""

    mode: str
    requests: int
    identical: int
    tokens_wanted: int
    """Prompt tokens that were to come from P."""
    tokens_moved: int
    tokens_computed: int
    """Prompt tokens that D computed; those left out by plan are not counted."""
    bytes_received: int
    bytes_read: int
    streamed: int
    sliced: int
    seconds: float

    @property
    def good(self) -> bool:
        mode = Mode(self.mode)
        reads = mode is Mode.PULL
        return (
            0 < self.requests == self.identical
            and self.tokens_moved == self.tokens_wanted
            and self.tokens_computed == 0
            and self.bytes_received > 0
            and self.bytes_read == (self.bytes_received if reads else 0)
            and (self.streamed > 0) == mode.streams
            and (self.sliced > 0) == (mode is Mode.PUSH_LAYERS)
        )


@attrs.frozen(kw_only=True)
class KindReport:
    """What one kind showed."""

    kind: str
    modes: tuple[ModeReport, ...] = ()
    sensitive: int = 0
    """Pairs of prompts that differ in their first quarter only and have different answers."""
    controls: int = 0
    leaked: int = 0
    quarantined: int = 0
    problem: str = ""
    """Why the pair could not be run to the end."""
    seconds: float

    @property
    def good(self) -> bool:
        return (
            bool(self.modes)
            and not self.problem
            and all(mode.good for mode in self.modes)
            and 0 < self.controls == self.sensitive
            and self.leaked == self.quarantined == 0
        )

    def line(self) -> str:
        """One line of JSON."""
        modes = [{"good": mode.good, **attrs.asdict(mode)} for mode in self.modes]
        return json.dumps({"good": self.good, **attrs.asdict(self), "modes": modes})


def kinds_line(reports: Sequence[KindReport]) -> str:
    """One line of JSON over all kinds."""
    failed = [report.kind for report in reports if not report.good]
    return json.dumps(
        {
            "kinds": len(reports),
            "passed": len(reports) - len(failed),
            "failed": failed,
            "good": bool(reports) and not failed,
            "seconds": round(sum(report.seconds for report in reports), 1),
        }
    )


async def run_kind(setting: Setting, kind: Kind, dtype: str, *, layers: bool = False) -> KindReport:
    """One kind. A pair that does not start, or dies, is a report like any other.

    `layers`: what is streamed leaves by chunks and the last chunk by layers.
    """
    started_s = time.monotonic()
    if layers:
        kind = kind.by_layers()
    try:
        report = await _run_kind(setting, kind, dtype)
    except KvxferError as fault:
        setting.say(f"{kind.name}: {fault}")
        report = KindReport(kind=kind.name, problem=f"{type(fault).__name__}: {fault}", seconds=0)
    return attrs.evolve(report, seconds=round(time.monotonic() - started_s, 1))


async def _run_kind(setting: Setting, kind: Kind, dtype: str) -> KindReport:
    """Start the pair and a plain engine, run all modes, end everything."""
    prompts = [prompt(length, SEED) for length in LENGTHS]
    controls = [_control(length) for length in CONTROL_LENGTHS]
    plain = EngineSpec(name="R", port=pick_ports(1)[0], shape=_plain_shape(kind))
    # Under this name the direction is left to each request.
    streaming = Mode.PUSH_LAYERS if Mode.PUSH_LAYERS in kind.modes else Mode.PUSH_STREAM
    stack = Stack(connector="KvxferConnector", mode=streaming)
    shapes = (kind.prefill, kind.decode)
    pair = await Pair.start(
        setting, stack, tuning_of(kind, dtype), beside=plain, shapes=shapes, routed=False
    )
    asked = [*prompts, *(token_ids for both in controls for token_ids in both)]
    found = await references(setting, plain.url, asked)
    pair.end(plain.name)
    reference, rest = found[: len(prompts)], found[len(prompts) :]
    reports = []
    for mode in kind.modes:
        reports.append(await run_mode(pair, kind, mode, prompts, reference))
        setting.say(f"    {reports[-1]}")
    left = await remains_of(pair)
    pair.end()
    return KindReport(
        kind=kind.name,
        modes=tuple(reports),
        sensitive=sum(one != other for one, other in zip(rest[::2], rest[1::2], strict=True)),
        controls=len(controls),
        leaked=left.leaked,
        quarantined=left.quarantined,
        seconds=0,
    )


def tuning_of(kind: Kind, dtype: str) -> Tuning:
    """What all engines of a kind share."""
    return Tuning(
        dtype=dtype,
        cache_bytes=CACHE_BYTES,
        step_tokens_max=CHUNK_TOKENS,
        options=kind.options,
        arguments=kind.arguments,
    )


def _plain_shape(kind: Kind) -> EngineShape:
    """The plain engine is never shared out; its blocks are D's."""
    return attrs.evolve(kind.decode, tensor_ranks=1, pipeline_ranks=1)


def _control(length: int) -> tuple[list[int], list[int]]:
    """Two prompts that differ in their first quarter: far behind any window."""
    one, early = prompt(length, f"{SEED}/control"), length // EARLY_SHARE
    return one, [*prompt(early, f"{SEED}/other"), *one[early:]]


async def run_mode(
    pair: Pair,
    kind: Kind,
    mode: Mode,
    prompts: Sequence[Sequence[int]],
    reference: Sequence[Tokens],
) -> ModeReport:
    """All prompts in one mode, with D's and P's counters read around them."""
    started_s = time.monotonic()
    before, at_p = await pair.scrape(pair.decode), await pair.scrape(pair.prefill)
    limit = asyncio.Semaphore(CONCURRENCY)

    async def ask(token_ids: Sequence[int]) -> Answer:
        async with limit:
            return await both_legs(pair, mode, token_ids)

    answers = await asyncio.gather(*(ask(token_ids) for token_ids in prompts))
    for token_ids, answer, expected in zip(prompts, answers, reference, strict=True):
        if answer.tokens != expected:
            pair.setting.say(f"prompt of {len(token_ids)}, {mode.value}: {answer}")
    received = await received_since(pair, before, len(prompts))
    # P publishes its counters with its next step.
    await pair.nudge(pair.prefill)
    after = await pair.scrape(pair.prefill)
    grown = {name: round(after.value(name) - at_p.value(name)) for name in (STREAMED, SLICED)}
    return _report(kind, mode, prompts, answers, reference, received, grown, started_s)


def _report(
    kind: Kind,
    mode: Mode,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Answer],
    reference: Sequence[Tokens],
    received: Received,
    grown: Mapping[str, int],
    started_s: float,
) -> ModeReport:
    left_out = sum(computed_at_d(kind, len(token_ids)) for token_ids in prompts)
    return ModeReport(
        mode=mode.value,
        requests=len(prompts),
        identical=sum(a.tokens == e for a, e in zip(answers, reference, strict=True)),
        tokens_wanted=sum(len(token_ids) for token_ids in prompts) - left_out,
        tokens_moved=received.external_tokens,
        tokens_computed=received.local_tokens - left_out,
        bytes_received=received.bytes_received or 0,
        bytes_read=received.bytes_read or 0,
        streamed=grown[STREAMED],
        sliced=grown[SLICED],
        seconds=round(time.monotonic() - started_s, 1),
    )


def computed_at_d(kind: Kind, token_count: int) -> int:
    """Tokens of a prompt that D counts as computed though nothing is wrong.

    vLLM computes the last token of a prompt in any case. After the load of a prompt of one
    token it has no token left, admits the request a second time and counts it as computed.
    """
    return 1 if token_count == 1 else kind.left_out


async def both_legs(pair: Pair, mode: Mode, token_ids: Sequence[int]) -> Answer:
    """One request in one mode; D's answer."""
    name, client = fresh_name(), pair.setting.client
    p, d = pair.prefill.url, pair.decode.url
    prefill = prefill_leg(name, token_ids)
    prefill["kv_transfer_params"][STREAM_KEY] = mode.streams
    if mode is not Mode.PULL:
        decode = decode_leg(name, token_ids, pair.place, ANSWER_TOKENS)
        _, answer = await asyncio.gather(
            client.complete(p, prefill, name), client.complete(d, decode, name)
        )
        return answer
    first = await client.complete(p, prefill, name)
    return await client.complete(d, _reading_leg(first, token_ids), name)


def _reading_leg(first: Answer, token_ids: Sequence[int]) -> Body:
    """D's leg from P's answer; as it is where P gave none, so that it fails and is seen."""
    try:
        params = json.loads(first.text)["kv_transfer_params"]
    except (ValueError, KeyError):
        params = None
    given = {**params, MODE_KEY: "pull"} if isinstance(params, dict) else None
    return completion(token_ids, ANSWER_TOKENS, kv_transfer_params=given)
