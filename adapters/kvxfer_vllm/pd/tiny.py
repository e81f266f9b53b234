"""Tiny random checkpoints of every cache kind, made from a configuration alone.

Owns the configurations and the seeded weights. Needs transformers and torch, which come
with vLLM; imports them only when a checkpoint is written. Invariant: weights are as large
as those of `model.py` and for the same reason: the answer depends on the whole prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvxfer_vllm.pd.model import (
    ATTENTION_GAIN,
    HEAD_GAIN,
    VALUE_GAIN,
    ModelShape,
    write_tokenizer,
)

SEED = 7
VOCABULARY = ModelShape().vocab

BASE: dict[str, Any] = {
    "dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": VOCABULARY - 2,
    "eos_token_id": VOCABULARY - 1,
    "pad_token_id": None,
}
"""What the models have in common."""

WINDOW: dict[str, Any] = BASE | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 160,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    # Scores are twice as large as usual: with those of normed queries and keys alone,
    # early tokens change no answer.
    "query_pre_attn_scalar": 8,
    "hidden_activation": "gelu_pytorch_tanh",
}
LATENT: dict[str, Any] = BASE | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    # vLLM's CPU kernel knows latents of 512 + 64 elements only.
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 8,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 64,
    "routed_scaling_factor": 1.0,
}
STATE: dict[str, Any] = BASE | {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba", "attention"],
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 256,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 0.18,
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 64,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


def write_tiny(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the checkpoint of this configuration and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=1))
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    chance = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norms, biases, decay rates and short convolutions are good as they are.
            if weight.dim() == 2:
                drawn = torch.randn(weight.shape, generator=chance)
                weight.copy_(drawn * scale_of(name, weight.shape[1]))
    model.to(torch.float32).save_pretrained(folder)
    path.write_text(json.dumps(config, indent=1))
    write_tokenizer(folder, ModelShape())


def scale_of(name: str, inputs: int) -> float:
    """Standard deviation of a matrix's elements, by its name and its number of inputs."""
    if "embed" in name:
        return 1.0
    gains = {"lm_head": HEAD_GAIN, "v_proj": VALUE_GAIN, "o_proj": VALUE_GAIN}
    gains |= {"q_proj": ATTENTION_GAIN, "k_proj": ATTENTION_GAIN}
    gain = next((gain for part, gain in gains.items() if part in name), 1.0)
    return float(gain / inputs**0.5)
