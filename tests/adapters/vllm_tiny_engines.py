"""Tiny random models of every cache kind, as real vLLM engines in this process.

Owns the models' shapes and the start of an engine as far as its cache: no forward pass is
run. Imports vLLM only when an engine is started.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

BASE: dict[str, Any] = {
    "dtype": "bfloat16",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 64,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "latent": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
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
    },
    "window": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 160,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 1e4,
    },
    "mamba1": {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_hidden_layers": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
    },
    "mamba2": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 128,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 0.1,
        **MAMBA2,
    },
}
MODELS["fp8"] = MODELS["dense"]
MODELS["short_conv"] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "conv_dim": 64,
    "conv_dim_out": 64,
    "conv_bias": False,
    "block_dim": 64,
    "block_ff_dim": 128,
    "block_auto_adjust_ff_dim": False,
    "norm_eps": 1e-5,
}
MODELS["gated_delta"] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
OPTIONS: dict[str, dict[str, Any]] = {"fp8": {"kv_cache_dtype": "fp8"}}
"""What an engine is started with, beside its model."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@attrs.define
class TinyEngine:
    """One engine and what its model runner allocated."""

    llm: Any
    runner: Any
    caches: dict[str, Any]
    """What vLLM hands to a connector: one view per layer."""

    @property
    def config(self) -> Any:
        return self.runner.kv_cache_config

    def bound(self, layer: str) -> Any:
        """What vLLM's kernels read: a tensor, or a tuple of them where the layer has states."""
        return self.runner.compilation_config.static_forward_context[layer].kv_cache

    def bytes_of(self) -> Any:
        """All of the cache's memory as one tensor of bytes."""
        import torch

        first = next(iter(self.caches.values()))
        return torch.empty(0, dtype=torch.uint8).set_(first.untyped_storage())

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        self.llm = self.runner = None
        self.caches = {}
        gc.collect()


def start(kind: str, folder: Path, cache_mib: int, **options: Any) -> TinyEngine:
    """An engine of one of MODELS with a cache of `cache_mib` MiB."""
    return start_model(BASE | MODELS[kind], folder, cache_mib, **OPTIONS.get(kind, {}), **options)


def start_model(
    model: Mapping[str, Any], folder: Path, cache_mib: int, **options: Any
) -> TinyEngine:
    """An engine of a model with this configuration; its weights are chance."""
    os.environ.update(ENVIRONMENT)
    from vllm import LLM
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model))
    made: list[tuple[Any, dict[str, Any]]] = []
    allocate = GPUModelRunner.initialize_kv_cache_tensors

    def keep(runner: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        caches: dict[str, Any] = allocate(runner, *args, **kwargs)
        made.append((runner, caches))
        return caches

    GPUModelRunner.initialize_kv_cache_tensors = keep
    try:
        llm = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=4,
            max_num_batched_tokens=1024,
            kv_cache_memory_bytes=cache_mib << 20,
            enable_prefix_caching=False,
            **options,
        )
    finally:
        GPUModelRunner.initialize_kv_cache_tensors = allocate
    return TinyEngine(llm, *made[-1])
