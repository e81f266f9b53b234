"""Requests: from a file, or drawn.

Owns the record and where it comes from. The file form is that of the public Mooncake
traces: a JSON object a line with `timestamp` (ms), `input_length`, `output_length` and
`hash_ids` (one per 512 tokens of the prompt; equal ids, equal prefixes). Invariant:
requests come in the order of their arrival.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import attrs

from kvxfer.errors import BadValue

REQUESTS_MAX = 1_000_000


@attrs.define(kw_only=True, eq=False)
class Request:
    """What was asked, and when it was answered. Seconds since the start."""

    arrive_s: float
    tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    answered_s: float = 0.0
    """When the router had P's answer."""
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrive_s

    @property
    def after_prefill_s(self) -> float:
        """The cost of the hand-over: from P's answer to the first token."""
        return self.first_s - self.answered_s

    @property
    def tpot_s(self) -> float | None:
        """None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)


def read_trace(path: Path, speed: float = 1.0, count: int = REQUESTS_MAX) -> list[Request]:
    """The first `count` requests, `speed` times as fast. Raises BadValue naming the line."""
    requests: list[Request] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if len(requests) >= min(count, REQUESTS_MAX):
                    break
                requests.append(_request(json.loads(line), speed, f"{path.name}:{number}"))
    except (OSError, ValueError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue("trace", str(path), f"lines of JSON objects ({error})") from None
    return sorted(requests, key=lambda one: one.arrive_s)


def _request(plain: Any, speed: float, where: str) -> Request:
    if not isinstance(plain, dict):
        raise BadValue(where, plain, "an object")
    found = {}
    for name, low in (("timestamp", 0), ("input_length", 1), ("output_length", 1)):
        value = plain.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < low:
            raise BadValue(f"{where} {name}", value, f"a number from {low}")
        found[name] = value
    prefix = plain.get("hash_ids", [])
    if not isinstance(prefix, list) or not all(type(one) is int for one in prefix):
        raise BadValue(f"{where} hash_ids", prefix, "a list of whole numbers")
    return Request(
        arrive_s=found["timestamp"] / 1e3 / speed,
        tokens=int(found["input_length"]),
        output_tokens=int(found["output_length"]),
        prefix=tuple(prefix),
    )


def drawn(
    *, rate: float, count: int, tokens: int, output_tokens: int, seed: int, jitter: float = 1.0
) -> list[Request]:
    """Requests of one size. `jitter` 1: Poisson arrivals; 0: evenly spaced."""
    if rate <= 0:
        raise BadValue("rate", rate, "above 0")
    draw, now_s, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        requests.append(Request(arrive_s=now_s, tokens=tokens, output_tokens=output_tokens))
        now_s += (jitter * draw.expovariate(1.0) + 1 - jitter) / rate
    return requests
