"""vLLM's CPU engine with Neuron's cache: loaded by vLLM as a connector's module.

Each layer gets a cache of its own, (2, blocks, heads, block, dim), in place of the one that
vLLM allocated; vLLM's own kernels compute on it. The connector then sees what it would see
on Neuron. Inside a (block, head) page the kernels have an order of their own, so that pages
travel whole, as packed FP8 does on Neuron.

KVXFER_NEURON_SIDE=kv_producer (or kv_consumer) makes only that engine Neuron's; the other keeps
vLLM's cache, K beside V, and vLLM's own connector.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from kvxfer_neuron.connector import KvxferNeuronPullConnector, KvxferNeuronPushConnector
from kvxfer_vllm.connector import KvxferPullConnector, KvxferPushConnector

logger = logging.getLogger("vllm.kvxfer")


class SplitCache(torch.Tensor):
    """Neuron's tensor, which tells vLLM's CPU backend what its own would.

    The backend asks for the shape (blocks, heads, slots, content), for a view with K and V
    one behind the other, and cuts that in two.
    """

    @staticmethod
    def of(whole: torch.Tensor) -> SplitCache:
        made = whole[0].as_subclass(SplitCache)
        made.whole = whole
        return made

    def size(self) -> tuple[int, ...]:
        _, blocks, heads, slots, dim = self.whole.shape
        return blocks, heads, slots, 2 * dim

    def view(self, shape: tuple[int, ...]) -> SplitCache:
        blocks, heads, slots, _ = self.size()
        assert shape == (blocks, heads, 2 * slots, -1)
        return self

    def chunk(self, parts: int, dim: int) -> tuple[torch.Tensor, ...]:
        assert (parts, dim) == (2, 2)
        return self.whole.unbind(0)


class _SplitCaches:
    """Mixed into a connector: the caches are exchanged before it sees them."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        context = self._vllm_config.compilation_config.static_forward_context
        split = {}
        for layer, cache in kv_caches.items():
            blocks, heads, slots, content = cache.shape
            split[layer] = torch.zeros((2, blocks, heads, slots, content // 2), dtype=cache.dtype)
            context[layer].kv_cache = SplitCache.of(split[layer])
        super().register_kv_caches(split)
        group = self.worker_side.agent.config.shard.groups[0]
        names = [plane.name for plane in group.planes]
        logger.info("Neuron's cache, planes %s, %s", names, group.fingerprint)


class _NeuronPush(_SplitCaches, KvxferNeuronPushConnector):
    """An engine with Neuron's cache."""


class _NeuronPull(_SplitCaches, KvxferNeuronPullConnector):
    """An engine with Neuron's cache."""


def _chosen(neuron: type, other: type, arguments: tuple[Any, ...]) -> Any:
    """What takes the place of a class that vLLM makes, by the engine's role."""
    transfer = arguments[0].kv_transfer_config
    if os.environ.get("KVXFER_NEURON_SIDE", transfer.kv_role) == transfer.kv_role:
        return neuron(*arguments)
    transfer.kv_connector_extra_config["split_kv"] = True
    return other(*arguments)


class NixlPushConnector(KvxferPushConnector):
    """By the name that `kvxfer_vllm.pd` asks for."""

    def __new__(cls, vllm_config: Any, role: Any, kv_cache_config: Any) -> Any:
        # vLLM looks for the name of the last parameter.
        return _chosen(_NeuronPush, KvxferPushConnector, (vllm_config, role, kv_cache_config))


class NixlPullConnector(KvxferPullConnector):
    """By the name that `kvxfer_vllm.pd` asks for."""

    def __new__(cls, vllm_config: Any, role: Any, kv_cache_config: Any) -> Any:
        return _chosen(_NeuronPull, KvxferPullConnector, (vllm_config, role, kv_cache_config))
