"""The demo's model: deterministic, and a wrong byte in the cache changes tokens."""

from __future__ import annotations

import numpy as np
import pytest

from kvxfer.demo.cache import CacheShape, EngineCache
from kvxfer.demo.model import I8, Model, ModelShape
from kvxfer.demo.sequence import Prompt, decode_step, prefill

ANSWER = 6


class PlainStore:
    """One sequence, contiguous: no paging at all."""

    def __init__(self, shape: ModelShape, tokens: int) -> None:
        self.content = np.zeros(
            (shape.layers, shape.heads, tokens, shape.content_bytes), dtype=np.int8
        )

    def write(self, layer: int, start: int, content: I8) -> None:
        self.content[layer, :, start : start + len(content)] = content.transpose(1, 0, 2)

    def read(self, layer: int, stop: int) -> I8:
        return np.ascontiguousarray(self.content[layer, :, :stop])


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_seed(11)


def draw_prompt(length: int, seed: int = 5) -> Prompt:
    rng = np.random.default_rng(seed)
    return Prompt(tokens=rng.integers(0, 1000, length).tolist(), answer_tokens=ANSWER)


def decode_all(model: Model, store: object, prompt: Prompt) -> list[int]:
    answer: list[int] = []
    while len(answer) < prompt.answer_tokens:
        decode_step(model, store, prompt, answer)  # type: ignore[arg-type]
    return answer


def filled(model: Model, prompt: Prompt) -> PlainStore:
    store = PlainStore(model.shape, prompt.total_tokens)
    for _ in prefill(model, store, prompt):
        pass
    return store


def test_same_seed_gives_the_same_weights_and_another_seed_does_not() -> None:
    first, again, other = Model.from_seed(3), Model.from_seed(3), Model.from_seed(4)
    assert np.array_equal(first.layers[2].up, again.layers[2].up)
    assert not np.array_equal(first.layers[2].up, other.layers[2].up)


@pytest.mark.parametrize("length", [2, 17, 65, 200])
@pytest.mark.parametrize(
    "shape",
    [
        CacheShape(block_count=90, block_tokens=16),
        CacheShape(block_count=90, block_tokens=16, ranks=3),
        CacheShape(block_count=60, block_tokens=7, ranks=2, order="BLNHC"),
        CacheShape(block_count=300, block_tokens=1, ranks=8, order="HNLBC"),
    ],
    ids=lambda s: f"{s.order}-{s.block_tokens}-{s.ranks}",
)
def test_paging_placement_and_ranks_leave_every_bit_alone(
    model: Model, shape: CacheShape, length: int
) -> None:
    prompt = draw_prompt(length)
    plain = filled(model, prompt)
    cache = EngineCache(model.shape, shape, seed=length)
    blocks = cache.allocator.take(shape.blocks_for(prompt.total_tokens))
    store = cache.sequence(blocks)
    for _ in prefill(model, store, prompt):
        pass
    assert decode_all(model, store, prompt) == decode_all(model, plain, prompt)
    for layer in range(model.shape.layers):
        stop = prompt.total_tokens
        assert np.array_equal(store.read(layer, stop), plain.read(layer, stop))


def test_prefill_reports_each_chunk_and_leaves_the_last_token_to_decode(model: Model) -> None:
    prompt = draw_prompt(2 * model.shape.chunk_tokens + 10)
    store = PlainStore(model.shape, prompt.total_tokens)
    chunk = model.shape.chunk_tokens
    assert list(prefill(model, store, prompt)) == [chunk, 2 * chunk, 2 * chunk + 9]
    assert store.content[:, :, prompt.prefill_tokens - 1].any()
    assert not store.content[:, :, prompt.prefill_tokens].any()


def test_one_wrong_bit_anywhere_changes_the_tokens(model: Model) -> None:
    """Lowest bit of one byte, in each layer, near both ends and in the middle of the prompt."""
    prompt = draw_prompt(150)
    store = filled(model, prompt)
    right = store.content.copy()
    expected = decode_all(model, store, prompt)
    rng = np.random.default_rng(1)
    for layer in range(model.shape.layers):
        for position in (0, 1, 75, prompt.prefill_tokens - 1):
            head, byte = rng.integers(model.shape.heads), rng.integers(model.shape.content_bytes)
            store.content[:] = right
            store.content[layer, head, position, byte] ^= 1
            wrong = decode_all(model, store, prompt)
            assert wrong != expected, f"layer {layer} token {position} head {head} byte {byte}"


def test_a_block_that_never_arrived_changes_the_tokens(model: Model) -> None:
    prompt = draw_prompt(150)
    store = filled(model, prompt)
    right = store.content.copy()
    expected = decode_all(model, store, prompt)
    for layer in range(model.shape.layers):
        for start in (0, 64, 144):
            store.content[:] = right
            store.content[layer, :, start : min(start + 16, prompt.prefill_tokens)] = 0x55
            assert decode_all(model, store, prompt) != expected


def test_the_untouched_cache_gives_the_same_tokens_again(model: Model) -> None:
    """The control of the two tests above: restoring the cache restores the answer."""
    prompt = draw_prompt(150)
    store = filled(model, prompt)
    right = store.content.copy()
    expected = decode_all(model, store, prompt)
    store.content[:] = right
    assert decode_all(model, store, prompt) == expected


def test_prompts_that_differ_in_one_token_have_different_answers(model: Model) -> None:
    prompt = draw_prompt(120)
    changed = list(prompt.tokens)
    changed[3] = (changed[3] + 1) % 1000
    other = Prompt(tokens=tuple(changed), answer_tokens=ANSWER)
    assert prompt.digest != other.digest
    assert decode_all(model, filled(model, prompt), prompt) != decode_all(
        model, filled(model, other), other
    )
