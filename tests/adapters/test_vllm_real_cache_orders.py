"""All six cache orders of vLLM, made by vLLM's own allocator on CPU memory.

vLLM's CPU engines use LBHNC alone; the others are what GPU engines have. The allocator
itself takes any order and any device, so the tensors are those that a GPU worker would
get, with their strides. Bytes moved by plan are compared with the same move through the
views, over all of the memory.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from vllm_real_moves import moved_alike

from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import Shard
from kvxfer.layout.orders import ORDERS
from kvxfer.limits import Limits
from kvxfer_vllm.geometry import cache_groups, describe_groups

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
pytest.importorskip("vllm")

LAYERS = [f"model.layers.{index}.attn" for index in range(3)]
HEADS = 4
BLOCKS = 20


@attrs.frozen
class Cache:
    """What vLLM's allocator returned for one order."""

    config: Any
    caches: dict[str, Any]

    def bound(self, layer: str) -> Any:
        return self.caches[layer]

    def bytes_of(self) -> Any:
        import torch

        storage = self.caches[LAYERS[0]].untyped_storage()
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    def shard(self) -> Shard:
        shard, _ = describe_groups(self.caches, cache_groups(self.config), HEADS)
        check_shard(shard, Limits())
        return shard


def allocate(order: str, block: int = 16, kernel_block: int | None = None, **fields: Any) -> Cache:
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    layout = KVCacheLayout[order]
    spec = FullAttentionSpec(
        block_size=block, num_kv_heads=HEADS, head_size=8, dtype=torch.bfloat16, **fields
    )
    # What the function reads of vLLM's configuration.
    settings = SimpleNamespace(
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            prefix_cache_retention_interval=None,
            num_gpu_blocks_override=None,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    room = spec.page_size_bytes * len(LAYERS) * BLOCKS
    config = get_kv_cache_config_from_groups(settings, [KVCacheGroupSpec(LAYERS, spec)], room)
    caches = allocate_kv_cache(config, torch.device("cpu"), layout, [kernel_block or block])
    return Cache(config, caches)


@pytest.mark.parametrize(("here", "there"), list(itertools.product(ORDERS, ORDERS)))
def test_every_order_to_every_order(here: str, there: str) -> None:
    p, d = allocate(here), allocate(there)
    assert moved_alike(p, d, p.shard(), d.shard(), 100)


@pytest.mark.parametrize("order", ORDERS)
def test_unequal_blocks(order: str) -> None:
    p, d = allocate(order, 16), allocate(order, 24)
    assert moved_alike(p, d, p.shard(), d.shard(), 100)


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])
def test_blocks_that_vllm_splits_for_its_kernel(order: str) -> None:
    p, d = allocate(order, 64, kernel_block=16), allocate(order, 64)
    assert [c.shard().groups[0].physical_per_block for c in (p, d)] == [4, 1]
    assert moved_alike(p, d, p.shard(), d.shard(), 100)


@pytest.mark.parametrize("order", ["LBHNC", "BLHNC"])
def test_padded_pages(order: str) -> None:
    """Hybrid models pad the pages of one kind of layer to those of another."""
    p, d = allocate(order, page_size_padded=4096), allocate(order)
    (padded,), (dense,) = p.shard().groups, d.shard().groups
    assert padded.stride_block > dense.stride_block
    assert moved_alike(p, d, p.shard(), d.shard(), 100)
