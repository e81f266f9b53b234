"""A small decoder with paged attention, in numpy.

Owns the weights and the arithmetic. Refuses to know where keys and values are
kept: it writes and reads them through `KvStore`. Invariant: for one sequence the
same calls give the same bits, whatever the store's paging, block numbers or
split over ranks, because every product has the same shape and a contiguous
operand of the same order.

The cache holds one signed byte per number, as engines with a quantised cache do,
so a wrong bit is never lost in rounding. And the last stage of the model is
chaotic on purpose: it stretches a small difference in what attention has read
until another token wins. Together: a wrong byte anywhere in the cache changes
the tokens, which is what makes the comparison in the demo worth something.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]

CACHE_STEPS_PER_UNIT = 16.0
"""A cached number is x * 16, rounded and held within a signed byte."""
ROPE_BASE = 10_000.0
STIR_STEPS = 32
STIR_GAIN = 6.0
"""Above about 1 the stage `x = tanh(gain * S x)` is chaotic: nearby states part at each step."""


@attrs.frozen(kw_only=True)
class ModelShape:
    """Sizes of the model; all counts."""

    layers: int = 4
    heads: int = 8
    head_dim: int = 32
    hidden: int = 256
    feed_forward: int = 512
    vocabulary: int = 1000
    chunk_tokens: int = 64
    """Prefill goes in chunks of so many tokens, counted from token 0."""

    @property
    def layer_keys(self) -> tuple[str, ...]:
        return tuple(f"layer.{index}" for index in range(self.layers))

    @property
    def content_bytes(self) -> int:
        """Bytes of one (token, head) in one layer: key and value, one byte a number."""
        return 2 * self.head_dim


class KvStore(Protocol):
    """Keys and values of one sequence. Content is key then value, int8."""

    def write(self, layer: int, start: int, content: I8) -> None:
        """Keep tokens [start, start + n); `content` has shape (n, heads, 2 * head_dim)."""
        ...

    def read(self, layer: int, stop: int) -> I8:
        """Tokens [0, stop), C-contiguous, shape (heads, stop, 2 * head_dim)."""
        ...


@attrs.frozen(kw_only=True, eq=False)
class _Layer:
    query_key_value: F32
    out: F32
    up: F32
    down: F32


@attrs.frozen(kw_only=True, eq=False)
class Model:
    """Weights drawn from a seed, at a scale at which attention decides the answer."""

    shape: ModelShape
    embedding: F32
    layers: tuple[_Layer, ...]
    stir: F32
    head: F32

    @classmethod
    def from_seed(cls, seed: int, shape: ModelShape | None = None) -> Model:
        """Draw all weights. The same seed and shape give the same bits on one numpy version."""
        shape = shape or ModelShape()
        rng = np.random.default_rng(seed)

        def draw(rows: int, columns: int, gain: float = 1.0) -> F32:
            scaled = rng.standard_normal((rows, columns), dtype=np.float32)
            return scaled * np.float32(gain / np.sqrt(rows))

        attention = shape.heads * shape.head_dim
        layers = tuple(
            _Layer(
                query_key_value=draw(shape.hidden, 3 * attention, 1.5),
                out=draw(attention, shape.hidden, 4.0),
                up=draw(shape.hidden, shape.feed_forward, 1.5),
                down=draw(shape.feed_forward, shape.hidden),
            )
            for _ in range(shape.layers)
        )
        return cls(
            shape=shape,
            embedding=draw(shape.vocabulary, shape.hidden, np.sqrt(shape.vocabulary)),
            layers=layers,
            stir=draw(shape.hidden, shape.hidden),
            head=draw(shape.hidden, shape.vocabulary),
        )

    def prefill(self, store: KvStore, tokens: npt.NDArray[np.int64], start: int) -> None:
        """Fill the store for tokens[start : start + n], at most one chunk; `tokens` is 1-D.

        Chunks begin at multiples of `chunk_tokens`, so that the shapes of all
        products depend on the prompt alone.
        """
        self._forward(store, tokens, start)

    def decode(self, store: KvStore, token: int, position: int) -> int:
        """Feed one token at `position`, keep its keys and values, return the next token."""
        hidden = self._forward(store, np.array([token]), position)
        return int(np.argmax(self._logits(hidden[-1])))

    def _logits(self, hidden: F32) -> F32:
        state = _normalised(hidden)
        for _ in range(STIR_STEPS):
            state = np.tanh(np.float32(STIR_GAIN) * (state @ self.stir))
        return np.asarray(state @ self.head)

    def _forward(self, store: KvStore, tokens: npt.NDArray[np.int64], start: int) -> F32:
        hidden = self.embedding[tokens]
        turn = _rotation(start, len(tokens), self.shape.head_dim)
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attend(store, index, layer, _normalised(hidden), start, turn)
            rise = np.maximum(_normalised(hidden) @ layer.up, np.float32(0))
            hidden = hidden + rise @ layer.down
        return hidden

    def _attend(
        self, store: KvStore, index: int, layer: _Layer, x: F32, start: int, turn: tuple[F32, F32]
    ) -> F32:
        shape = self.shape
        count = len(x)
        stop = start + count
        mixed = (x @ layer.query_key_value).reshape(count, 3, shape.heads, shape.head_dim)
        query = _rotated(mixed[:, 0], turn)
        content = np.concatenate((_rotated(mixed[:, 1], turn), mixed[:, 2]), axis=-1)
        store.write(index, start, _to_cache(content))
        # What attention reads comes from the store, for this chunk's own tokens too.
        cached = store.read(index, stop).astype(np.float32)
        cached *= np.float32(1 / CACHE_STEPS_PER_UNIT)
        keys, values = cached[..., : shape.head_dim], cached[..., shape.head_dim :]
        scores = np.ascontiguousarray(query.transpose(1, 0, 2)) @ keys.transpose(0, 2, 1)
        scores *= np.float32(1 / np.sqrt(shape.head_dim))
        if count > 1:
            ahead = np.arange(stop)[None, :] > np.arange(start, stop)[:, None]
            scores[:, ahead] = -np.inf
        weights = _softmax(scores)
        seen = (weights @ values).transpose(1, 0, 2).reshape(count, shape.heads * shape.head_dim)
        return np.asarray(seen @ layer.out)


def _normalised(x: F32) -> F32:
    power = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(power + np.float32(1e-6)))


def _softmax(scores: F32) -> F32:
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _to_cache(content: F32) -> I8:
    steps = np.rint(content * np.float32(CACHE_STEPS_PER_UNIT))
    cached: I8 = np.clip(steps, -127, 127).astype(np.int8)
    return cached


def _rotation(start: int, count: int, head_dim: int) -> tuple[F32, F32]:
    """Cosines and sines of the rotary positions, each of shape (count, 1, head_dim / 2)."""
    rates = ROPE_BASE ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.arange(start, start + count)[:, None, None] * rates
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotated(x: F32, turn: tuple[F32, F32]) -> F32:
    cosine, sine = turn
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return np.concatenate((low * cosine - high * sine, low * sine + high * cosine), axis=-1)
