"""What the demo is asked to do.

Owns the demo's options, their bounds, and the prompts drawn from the seed.
Invariant: the same options give the same prompts.
"""

from __future__ import annotations

from enum import StrEnum

import attrs
import numpy as np

from kvxfer.demo.cache import DEFAULT_ORDER, CacheShape
from kvxfer.demo.model import ModelShape
from kvxfer.demo.sequence import Prompt
from kvxfer.errors import BadValue


class Mode(StrEnum):
    """Who moves the KV, and when.

    PUSH: D registers when the request arrives, while P still computes; P writes when it
    has finished. PULL: the legs one after the other; D registers when P has finished, and
    reads. STREAM: as PUSH, but P writes each chunk of the prompt when it is computed.
    """

    PUSH = "push"
    PULL = "pull"
    STREAM = "stream"


@attrs.frozen(kw_only=True)
class DemoOptions:
    """The demo's options. Lengths and sizes are in tokens."""

    requests: int = 32
    prompt_min: int = 64
    prompt_max: int = 512
    answer_tokens: int = 12
    concurrency: int = 4
    """Requests in the system at a time; the next arrives when one has been answered."""
    seed: int = 0
    transport: str = "loopback"
    modes: tuple[Mode, ...] = (Mode.PUSH, Mode.PULL)
    prefill_ranks: int = 1
    decode_ranks: int = 1
    prefill_block_tokens: int = 16
    decode_block_tokens: int = 16
    cache_order: str = DEFAULT_ORDER
    key_file: str = ""
    """Keys that the engines prove to each other; empty: those of KVXFER_KEYS, or none."""

    def check(self) -> None:
        """BadValue where a value is out of its bound."""
        for name, value, least in (
            ("requests", self.requests, 1),
            ("prompt_min", self.prompt_min, 2),
            ("prompt_max", self.prompt_max, self.prompt_min),
            ("answer_tokens", self.answer_tokens, 1),
            ("concurrency", self.concurrency, 1),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise BadValue(name, value, f"at least {least}")
        if not self.modes:
            raise BadValue("modes", self.modes, "at least one mode")
        for shape in (self.prefill_cache(), self.decode_cache()):
            shape.check(ModelShape())

    def prefill_cache(self) -> CacheShape:
        return self._cache(self.prefill_block_tokens, self.prefill_ranks)

    def decode_cache(self) -> CacheShape:
        return self._cache(self.decode_block_tokens, self.decode_ranks)

    def _cache(self, block_tokens: int, ranks: int) -> CacheShape:
        """Room for all requests in the system, and half as much again, so that blocks scatter."""
        if block_tokens < 1:
            raise BadValue("block_tokens", block_tokens, "at least 1")
        longest = -(-(self.prompt_max + self.answer_tokens) // block_tokens)
        return CacheShape(
            block_count=longest * self.concurrency * 3 // 2 + 1,
            block_tokens=block_tokens,
            ranks=ranks,
            order=self.cache_order,
        )

    def prompts(self) -> list[Prompt]:
        """The requests, lengths even between prompt_min and prompt_max."""
        rng = np.random.default_rng(self.seed)
        lengths = rng.integers(self.prompt_min, self.prompt_max, self.requests, endpoint=True)
        vocabulary = ModelShape().vocabulary
        return [
            Prompt(
                tokens=rng.integers(0, vocabulary, int(length)).tolist(),
                answer_tokens=self.answer_tokens,
            )
            for length in lengths
        ]
