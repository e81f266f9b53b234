"""Conversations on a real pair: each turn's prefill starts from what D kept of the last one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvxfer_vllm.pd.client import Client, completion
from kvxfer_vllm.pd.engines import EngineShape, EngineSpec, Mode, Stack, Tuning
from kvxfer_vllm.pd.model import ModelShape, write_model
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.ports import pick_ports
from kvxfer_vllm.pd.processes import Supervisor
from kvxfer_vllm.pd.prompts import prompt

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TURNS = 3
KEPT_S = 60
FIRST_TOKENS, NEXT_TOKENS, ANSWER_TOKENS = 700, 150, 20
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
MOVED = {
    Mode.PULL: ("P", "vllm:kvxfer_bytes_read_total"),
    Mode.PUSH: ("D", "vllm:kvxfer_bytes_written_total"),
}
"""Who moves the bytes of a read-back, and the counter that tells."""


def params_of(answer: Any) -> dict[str, Any]:
    """The kv_transfer_params that an engine answered."""
    assert answer.good, answer
    return dict(json.loads(answer.text)["kv_transfer_params"])


async def turn(
    client: Client, pair: Pair, token_ids: Sequence[int], kept: dict[str, Any], number: int
) -> tuple[list[int], dict[str, Any]]:
    """One turn, P's leg first; the answer's tokens and what D keeps of it."""
    request_id = f"turn-{number}"
    leg = completion(token_ids, 1, kv_transfer_params=PRODUCE | kept)
    prefilled = await client.complete(pair.prefill.url, leg, request_id)
    body = completion(token_ids, ANSWER_TOKENS, kv_transfer_params=params_of(prefilled))
    decoded = await client.complete(pair.decode.url, body, request_id)
    return list(decoded.tokens), params_of(decoded)


async def conversation(client: Client, pair: Pair, plain: EngineSpec) -> None:
    token_ids, kept = list(prompt(FIRST_TOKENS, "conversation")), dict[str, Any]()
    for number in range(TURNS):
        tokens, kept = await turn(client, pair, token_ids, kept, number)
        alone = await client.complete(plain.url, completion(token_ids, ANSWER_TOKENS))
        assert tokens == list(alone.tokens), f"turn {number}"
        assert kept["remote_num_tokens"] == len(token_ids) + ANSWER_TOKENS - 1
        token_ids += [*tokens, *prompt(NEXT_TOKENS, f"turn {number}")]
    # The last answer is left out of the next prompt, as some chat templates do.
    other = token_ids[:FIRST_TOKENS] + list(prompt(NEXT_TOKENS, "another"))
    tokens, kept = await turn(client, pair, other, kept, TURNS)
    alone = await client.complete(plain.url, completion(other, ANSWER_TOKENS))
    assert tokens == list(alone.tokens)
    # Somebody takes what D keeps of it; then nothing is held any more.
    await turn(client, pair, [*other, *tokens, 5], kept, TURNS + 1)


async def grown(pair: Pair, spec: EngineSpec, counter: str) -> float:
    """The counter's value, once the engine has published one; 0 if it does not."""
    for _ in range(60):
        await pair.nudge(spec)
        value = (await pair.scrape(spec)).value(counter)
        if value:
            return value
        await asyncio.sleep(0.5)
    return 0.0


TWO = EngineShape(tensor_ranks=2)
SHAPES = {
    "1-1": (EngineShape(), EngineShape()),
    "tp-2-1": (TWO, EngineShape()),
    "tp-1-2": (EngineShape(), TWO),
    "pp-2-1": (EngineShape(pipeline_ranks=2), EngineShape()),
}
"""Of P and of D: unlike ones change places with the read-back, too."""
CASES = [
    pytest.param(mode, shapes, id=f"{mode.value}-{name}")
    for name, shapes in SHAPES.items()
    for mode in MOVED
]


@pytest.mark.parametrize(("mode", "shapes"), CASES)
def test_a_conversation_gives_the_tokens_of_one_engine(
    tmp_path: Path, mode: Mode, shapes: tuple[EngineShape, EngineShape]
) -> None:
    async def work(supervisor: Supervisor) -> None:
        async with Client.open() as client:
            setting = Setting(
                supervisor=supervisor,
                client=client,
                model=tmp_path / "model",
                run=tmp_path,
                say=lambda _: None,
            )
            plain = EngineSpec(name="plain", port=pick_ports(1)[0])
            options = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": KEPT_S}
            stack = Stack(connector=mode.connector, mode=mode)
            pair = await Pair.start(setting, stack, Tuning(options=options), plain, shapes)
            await conversation(client, pair, plain)
            assert await pair.drained(pair.prefill, 60) == 0
            assert await pair.drained(pair.decode, 2 * KEPT_S) == 0
            name, counter = MOVED[mode]
            moved = await grown(pair, pair.prefill if name == "P" else pair.decode, counter)
            assert moved > FIRST_TOKENS * ModelShape().kv_bytes_per_token("float32")

    write_model(tmp_path / "model", ModelShape())
    with Supervisor() as supervisor:
        asyncio.run(work(supervisor))
