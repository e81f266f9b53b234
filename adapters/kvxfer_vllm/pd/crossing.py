"""The negative control: P's leg of one prompt crossed with D's leg of another.

Owns the crossed pairs and what is counted. Invariant: both prompts of a pair have the
same length, so that only their contents can tell them apart. A check that passes on
crossed legs too would prove nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvxfer_vllm.pd.client import Answer
from kvxfer_vllm.pd.legs import decode_leg, fresh_name, prefill_leg
from kvxfer_vllm.pd.logs import LogTail
from kvxfer_vllm.pd.pair import Pair
from kvxfer_vllm.pd.prompts import prompt

LENGTHS = (64, 300, 3000)
ANSWER_TOKENS = 32
REFUSED_FOR = "DIGEST_MISMATCH"
"""kvxfer's name of the reason, as D's connector logs it."""
LOG_S = 5.0

Crossed = tuple[Sequence[int], Sequence[int]]
"""D's own prompt, and the one that P is given instead."""


def crossed_prompts(seed: str) -> list[Crossed]:
    """One crossed pair of each length."""
    return [(prompt(length, f"{seed}/own"), prompt(length, f"{seed}/other")) for length in LENGTHS]


async def refused(pair: Pair, crossed: Sequence[Crossed]) -> int:
    """With the digest checked: how many ended at D with an error, for that reason."""
    count = 0
    for own, other in crossed:
        name = fresh_name()
        log = LogTail(pair.log(pair.decode.name))
        answer = await cross(pair, name, own, other)
        pair.setting.say(f"crossed legs of {len(own)} tokens, digest checked: {answer}")
        # An answer that never came, or a load that failed for another reason, is no refusal.
        said = await log.wait_for(f"{name}.*{REFUSED_FOR}", LOG_S)
        count += said and answer.status >= 400
    return count


async def differing(
    pair: Pair, crossed: Sequence[Crossed], reference: Sequence[tuple[int, ...]]
) -> int:
    """With nothing checked: how often D's tokens are not its own prompt's, so follow P's KV."""
    count = 0
    for (own, other), expected in zip(crossed, reference, strict=True):
        answer = await cross(pair, fresh_name(), own, other)
        pair.setting.say(f"crossed legs of {len(own)} tokens, nothing checked: {answer}")
        count += answer.good and answer.tokens != expected
    return count


async def cross(pair: Pair, name: str, own: Sequence[int], other: Sequence[int]) -> Answer:
    """Send both legs under one name; D's answer."""
    client = pair.setting.client
    prefill, decode = pair.prefill.url, pair.decode.url
    _, answer = await asyncio.gather(
        client.complete(prefill, prefill_leg(name, other), name),
        client.complete(decode, decode_leg(name, own, pair.place, ANSWER_TOKENS), name),
    )
    return answer
