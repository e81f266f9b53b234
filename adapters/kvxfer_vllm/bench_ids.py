"""vLLM's own id arithmetic, as a row beside ours in `kvxfer bench layout`.

Owns the call of vLLM 0.32's function with the fields that it reads. Holds no copy of
its code: where vLLM is missing or has changed, the call fails and the row says so.
Invariant: what is timed is vLLM's function alone, on lists of ids as its scheduler
passes them, for both sides of one transfer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"


def prepare(
    *,
    regions: int,
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
    pool_blocks: int,
) -> Callable[[], int]:
    """A function that computes vLLM's descriptor ids of both sides and returns how many.

    Raises ImportError where vLLM is not installed.
    """
    worker = importlib.import_module(MODULE).NixlBaseConnectorWorker
    # What the function reads of a worker that serves one full-attention group.
    fields = SimpleNamespace(
        _has_mamba=False,
        _transfer_layer_group_ids=[],
        num_regions=regions,
        block_len_per_layer=[1] * regions,
        region_group_ids=[0] * regions,
        _uses_region_group_mapping=False,
    )

    def ids(blocks: Sequence[int]) -> Any:
        return worker._compute_desc_ids(
            fields,
            block_ids=[blocks],
            dst_num_blocks=pool_blocks,
            block_size_ratio=None,
            physical_blocks_per_logical=1,
            region_num_blocks=[pool_blocks] * regions,
            region_group_ids=fields.region_group_ids,
            uses_region_group_mapping=False,
        )

    def both() -> int:
        remote, local = ids(source_blocks), ids(target_blocks)
        return len(remote) if len(remote) == len(local) else 0

    return both
