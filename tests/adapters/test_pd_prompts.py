"""Prompts and model of the harness: the same everywhere, and of the promised spread."""

from __future__ import annotations

import hashlib

import pytest

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.crossing import crossed_prompts
from kvxfer_vllm.pd.model import PLAIN_TOKENS, ModelShape, config_json, seeded_weights, vocabulary
from kvxfer_vllm.pd.prompts import (
    LENGTH_MAX,
    LENGTH_MIN,
    check_prompts,
    prompt,
    prompt_lengths,
)

SMALL = ModelShape(vocab=64, hidden=16, inner=32, layers=2, heads=4, kv_heads=2)


def test_fifty_prompts_span_the_range_and_the_block_edges() -> None:
    lengths = [len(token_ids) for token_ids in check_prompts(50, "seed")]
    assert len(lengths) == 50
    assert (min(lengths), max(lengths)) == (LENGTH_MIN, LENGTH_MAX)
    assert {127, 128, 129, 1023, 1024, 1025} <= set(lengths)


def test_prompts_are_reproducible_and_differ_by_seed() -> None:
    assert check_prompts(12, "one") == check_prompts(12, "one")
    assert prompt(100, "one") != prompt(100, "two")
    assert all(0 <= token < PLAIN_TOKENS for token in prompt(500, "one"))


def test_few_prompts_keep_the_ends_of_the_range() -> None:
    assert sorted(prompt_lengths(5, "seed")) == [5, 127, 128, 129, 3000]


def test_no_prompts_are_refused() -> None:
    with pytest.raises(BadValue, match="requests"):
        prompt_lengths(0, "seed")


def test_crossed_prompts_differ_in_content_only() -> None:
    for own, other in crossed_prompts("seed"):
        assert len(own) == len(other)
        assert own != other


def test_weights_are_the_same_bytes_each_time_and_fit_the_config() -> None:
    first, second = seeded_weights(SMALL), seeded_weights(SMALL)
    for name, tensor in first.items():
        assert tensor.dtype == "float32"
        assert digest(tensor.tobytes()) == digest(second[name].tobytes())
    config = config_json(SMALL)
    key = first["model.layers.1.self_attn.k_proj.weight"]
    assert key.shape == (config["num_key_value_heads"] * config["head_dim"], config["hidden_size"])
    assert first["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert "model.layers.2.mlp.up_proj.weight" not in first


def test_another_seed_gives_other_weights() -> None:
    other = ModelShape(**{**_sizes(SMALL), "seed": SMALL.seed + 1})
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (seeded_weights(SMALL)[name] != seeded_weights(other)[name]).any()


def test_kv_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    shape = ModelShape()
    assert shape.kv_bytes_per_token("float32") == 4096
    assert shape.kv_bytes_per_token("bfloat16") == 2048


def test_vocabulary_has_each_id_once() -> None:
    words = vocabulary(SMALL)
    assert sorted(words.values()) == list(range(SMALL.vocab))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sizes(shape: ModelShape) -> dict[str, int]:
    names = ("vocab", "hidden", "inner", "layers", "heads", "kv_heads", "seed")
    return {name: getattr(shape, name) for name in names}
