"""When the tokens of one streamed answer came.

Owns one request's clock. Refuses to know who answers. Invariant: a request that did not
bring all its tokens has no times.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence

import aiohttp
import attrs

from kvxfer_vllm.pd.client import COMPLETIONS, EVENT, completion

CALL_S_MAX = 120.0


@attrs.frozen(kw_only=True)
class Times:
    """Seconds. `tpot_s` is the mean gap after the first token."""

    ttft_s: float
    tpot_s: float
    gap_s_max: float
    tokens: tuple[int, ...]


async def timed(
    session: aiohttp.ClientSession, url: str, token_ids: Sequence[int], answer_tokens: int
) -> Times | None:
    """Send a request and take the time of every token; None where the answer is not whole."""
    body = completion(token_ids, answer_tokens, stream=True)
    came: list[float] = []
    tokens: list[int] = []
    start = time.perf_counter()
    try:
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        async with session.post(url + COMPLETIONS, json=body, timeout=timeout) as answer:
            if answer.status != 200:
                return None
            async for line in answer.content:
                fresh = _tokens(line.decode(errors="replace"))
                came += [time.perf_counter()] * len(fresh)
                tokens += fresh
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    if len(tokens) != answer_tokens:
        return None
    gaps = [after - before for before, after in itertools.pairwise(came)]
    return Times(
        ttft_s=came[0] - start,
        tpot_s=sum(gaps) / len(gaps) if gaps else 0.0,
        gap_s_max=max(gaps, default=0.0),
        tokens=tuple(tokens),
    )


def _tokens(line: str) -> list[int]:
    """Token ids of one event; none where it is no event of tokens."""
    if not line.startswith(EVENT):
        return []
    try:
        choice = json.loads(line[len(EVENT) :])["choices"][0]
        return [int(token) for token in choice.get("token_ids") or []]
    except (ValueError, KeyError, IndexError, TypeError):
        return []
