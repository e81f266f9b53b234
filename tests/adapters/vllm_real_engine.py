"""vLLM's own Scheduler with our connector in it, and nothing behind it; needs vLLM, no weights.

A test plans steps and gives the outputs that a worker would give.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BLOCK = 16
BLOCKS = 20
PROMPT = list(range(40))


class Engine:
    """A scheduler and the empty or sampled outputs that a worker would give it."""

    def __init__(
        self,
        folder: Path,
        role: str,
        policy: str,
        connector: str,
        *,
        step_tokens: int = 256,
        async_scheduling: bool = False,
        prefix_caching: bool = False,
        module: str = "kvxfer_vllm",
        window: int = 0,
        states: bool = False,
        **extra: Any,
    ) -> None:
        import torch
        from vllm.config import (
            CacheConfig,
            DeviceConfig,
            KVTransferConfig,
            ModelConfig,
            SchedulerConfig,
            VllmConfig,
        )
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            MambaSpec,
            SlidingWindowSpec,
        )
        from vllm.v1.structured_output import StructuredOutputManager

        model = ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=256
        )
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=prefix_caching)
        self.config = VllmConfig(
            model_config=model,
            cache_config=cache,
            scheduler_config=SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=step_tokens,
                max_model_len=256,
                is_encoder_decoder=False,
                async_scheduling=async_scheduling,
            ),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig(
                kv_connector=connector,
                kv_connector_module_path=module,
                kv_role=role,
                engine_id="eng-P",
                kv_load_failure_policy=policy,
                kv_connector_extra_config=extra,
            ),
        )
        cache.num_gpu_blocks = BLOCKS
        shape = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
        groups = [KVCacheGroupSpec(["l0"], FullAttentionSpec(**shape))]
        if window:
            spec = SlidingWindowSpec(**shape, sliding_window=window)
            groups.append(KVCacheGroupSpec(["l1"], spec))
        if states:
            state = MambaSpec(block_size=256, shapes=((3, 8), (2, 4)), dtypes=(torch.float32,) * 2)
            groups.append(KVCacheGroupSpec(["l2"], state))
        kind = AsyncScheduler if async_scheduling else Scheduler
        self.scheduler = kind(
            vllm_config=self.config,
            kv_cache_config=KVCacheConfig(
                num_blocks=BLOCKS,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
            ),
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=256 if states else BLOCK,
            hash_block_size=BLOCK,
            log_stats=False,
        )

    def add(
        self,
        request_id: str,
        params: dict[str, Any] | None,
        max_tokens: int = 1,
        prompt: Sequence[int] = PROMPT,
    ) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.extra_args = {"kv_transfer_params": params}
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=_block_hasher(),
        )
        assert request.kv_transfer_params == params
        self.scheduler.add_request(request)
        return request

    def step(self, **report: set[Any]) -> tuple[list[Any], Any, dict[str, int]]:
        """One step: (orders for the workers, outputs by the scheduler, tokens scheduled)."""
        plan = self.scheduler.schedule()
        outputs = self.end_step(plan, **report)
        return list(plan.kv_connector_metadata.orders), outputs, dict(plan.num_scheduled_tokens)

    def end_step(self, plan: Any, **report: set[Any]) -> list[Any]:
        """Give the scheduler the output of a step that it planned."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        ids = list(plan.num_scheduled_tokens)
        done = [request_id for request_id in ids if self.samples(plan, request_id)]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[[7] if request_id in done else [] for request_id in ids],
            kv_connector_output=KVConnectorOutput(**report) if report else None,
        )
        outputs = self.scheduler.update_from_output(plan, output)
        return [o for group in outputs.values() for o in group.outputs]

    def failed(self, request_id: str) -> dict[str, set[Any]]:
        """The report of a failed load, in the words that this vLLM understands."""
        from vllm.v1.outputs import KVConnectorOutput

        if hasattr(KVConnectorOutput(), "failed_recving"):
            return {"finished_recving": {request_id}, "failed_recving": {request_id}}
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return {"finished_recving": {request_id}, "invalid_block_ids": set(blocks)}

    def samples(self, plan: Any, request_id: str) -> bool:
        """True where the step computes the request to its end, so that a token comes of it."""
        request = self.scheduler.requests.get(request_id)
        if request is None:
            return True
        cached = plan.scheduled_cached_reqs
        before = {n.req_id: n.num_computed_tokens for n in plan.scheduled_new_reqs} | dict(
            zip(cached.req_ids, cached.num_computed_tokens)
        )
        return before[request_id] + plan.num_scheduled_tokens[request_id] >= (
            request.num_prompt_tokens
        )

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def worker_connector(kind: Any, config: Any, caches: Any) -> Any:
    """A connector in the worker's role, of a lone worker without process groups."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from kvxfer_vllm import compat
    from kvxfer_vllm.place import Place

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compat, "place_of_worker", Place)
        return kind(config, KVConnectorRole.WORKER, caches)


@functools.cache
def _block_hasher() -> Any:
    """What an engine gives each request for its prefix cache. The seed is drawn at random, once."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK, sha256)


def write_config(folder: Path) -> None:
    """The model's configuration; there are no weights."""
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": 128,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "max_position_embeddings": 256,
            }
        )
    )
