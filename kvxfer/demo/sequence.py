"""One request and the two phases of serving it.

Owns the split of a request into prefill and decode. Invariant: both the plain
engine and the prefill/decode pair run exactly these two functions, so that their
products have the same shapes and their tokens can be compared bit by bit.

Prefill covers all tokens of the prompt but the last. Decode feeds the last one
itself, so that every token of the answer is computed from transferred KV.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.demo.cache import EngineCache
from kvxfer.demo.model import KvStore, Model
from kvxfer.errors import BadValue


@attrs.frozen(kw_only=True)
class Prompt:
    """Token ids of one request, at least two, and how many tokens to answer."""

    tokens: tuple[int, ...] = attrs.field(converter=tuple)
    answer_tokens: int

    def __attrs_post_init__(self) -> None:
        if len(self.tokens) < 2:
            raise BadValue("prompt tokens", len(self.tokens), "at least 2")
        if self.answer_tokens < 1:
            raise BadValue("answer_tokens", self.answer_tokens, "at least 1")

    @property
    def prefill_tokens(self) -> int:
        """Tokens whose KV the prefill engine computes."""
        return len(self.tokens) - 1

    @property
    def total_tokens(self) -> int:
        """Tokens whose KV is there at the end; the last answered token is never fed."""
        return self.prefill_tokens + self.answer_tokens

    @property
    def digest(self) -> bytes:
        """SHA-256 of the token ids as little-endian 32-bit numbers."""
        return hashlib.sha256(np.array(self.tokens, dtype="<u4").tobytes()).digest()


def prefill(model: Model, store: KvStore, prompt: Prompt) -> Iterator[int]:
    """Compute the prompt chunk by chunk; yields the count of tokens that are in the store."""
    tokens: npt.NDArray[np.int64] = np.array(prompt.tokens, dtype=np.int64)
    step = model.shape.chunk_tokens
    for start in range(0, prompt.prefill_tokens, step):
        stop = min(start + step, prompt.prefill_tokens)
        model.prefill(store, tokens[start:stop], start)
        yield stop


def decode_step(model: Model, store: KvStore, prompt: Prompt, answer: list[int]) -> None:
    """Append the next token to `answer`."""
    token = answer[-1] if answer else prompt.tokens[-1]
    answer.append(model.decode(store, token, prompt.prefill_tokens + len(answer)))


def answer_alone(model: Model, cache: EngineCache, prompt: Prompt) -> tuple[int, ...]:
    """Serve a request on one engine, from its own cache, with no transfer."""
    blocks = cache.allocator.take(cache.shape.blocks_for(prompt.total_tokens))
    store = cache.sequence(blocks)
    for _ in prefill(model, store, prompt):
        pass
    answer: list[int] = []
    while len(answer) < prompt.answer_tokens:
        decode_step(model, store, prompt, answer)
    cache.allocator.give_back(blocks)
    return tuple(answer)
