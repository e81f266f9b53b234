"""A tiny Llama checkpoint whose output depends on the whole prompt.

Owns the model's shape and its seeded weights. Knows nothing of the engines that load
it. vLLM's own dummy weights are so small that attention adds nothing to the output,
which then depends on the last token only: a decode engine that received garbage would
pass. Invariant: the same shape and seed give the same bytes on every machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

Weights = dict[str, npt.NDArray[np.float32]]

BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one cached element, by vLLM's `--dtype`."""

PLAIN_TOKENS = 2000
"""Token ids below this are ordinary words; prompts use only those."""


@attrs.frozen(kw_only=True)
class ModelShape:
    """Sizes of the model. 3.4 million parameters with the defaults."""

    vocab: int = 2048
    hidden: int = 256
    inner: int = 512
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    seed: int = 7

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of KV cache of one token: K and V of every layer."""
        return self.layers * 2 * self.kv_heads * self.head_dim * BYTES_OF_DTYPE[dtype]


ATTENTION_GAIN = 1.8
"""Scale of Q and K: attention is then peaked enough for single tokens to matter."""
VALUE_GAIN = 1.5
HEAD_GAIN = 3.0
"""Scale of the output layer: logits far enough apart that rounding changes no token."""


def seeded_weights(shape: ModelShape) -> Weights:
    """All tensors, float32, by the names of Hugging Face's Llama."""
    rng = np.random.default_rng(shape.seed)

    def normal(rows: int, columns: int, scale: float) -> npt.NDArray[np.float32]:
        drawn = rng.standard_normal((rows, columns), dtype=np.float32)
        return (drawn * np.float32(scale)).astype(np.float32)

    def linear(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return normal(rows, columns, gain / columns**0.5)

    ones = np.ones(shape.hidden, dtype=np.float32)
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights: Weights = {
        "model.embed_tokens.weight": normal(shape.vocab, shape.hidden, 1.0),
        "model.norm.weight": ones.copy(),
        "lm_head.weight": linear(shape.vocab, shape.hidden, HEAD_GAIN),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        weights |= {
            at + "input_layernorm.weight": ones.copy(),
            at + "post_attention_layernorm.weight": ones.copy(),
            at + "self_attn.q_proj.weight": linear(query, shape.hidden, ATTENTION_GAIN),
            at + "self_attn.k_proj.weight": linear(key, shape.hidden, ATTENTION_GAIN),
            at + "self_attn.v_proj.weight": linear(key, shape.hidden, VALUE_GAIN),
            at + "self_attn.o_proj.weight": linear(shape.hidden, query, VALUE_GAIN),
            at + "mlp.gate_proj.weight": linear(shape.inner, shape.hidden),
            at + "mlp.up_proj.weight": linear(shape.inner, shape.hidden),
            at + "mlp.down_proj.weight": linear(shape.hidden, shape.inner),
        }
    return weights


def config_json(shape: ModelShape) -> dict[str, Any]:
    """The checkpoint's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": shape.vocab - 2,
        "eos_token_id": shape.vocab - 1,
        "use_cache": True,
        "rope_theta": 10000.0,
    }


def vocabulary(shape: ModelShape) -> dict[str, int]:
    """Words w0, w1, ... and three special tokens at the end."""
    words = {f"w{index}": index for index in range(shape.vocab - 3)}
    return words | {"<unk>": shape.vocab - 3, "<s>": shape.vocab - 2, "</s>": shape.vocab - 1}


def write_model(folder: Path, shape: ModelShape) -> None:
    """Write the checkpoint and its tokenizer. Needs the packages that come with vLLM."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(seeded_weights(shape), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_json(shape), indent=1))
    write_tokenizer(folder, shape)


def write_dense(folder: Path) -> None:
    """The model of the ordinary check."""
    write_model(folder, ModelShape())


def write_tokenizer(folder: Path, shape: ModelShape) -> None:
    """Write the tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocabulary(shape), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}, indent=1)
    )
