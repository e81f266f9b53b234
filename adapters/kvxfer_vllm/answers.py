"""The `kv_transfer_params` of an engine's answer, which routers pass on unread.

Owns their fields: those of vLLM's own connectors, with the same meaning, and one of
ours. Invariant: what is written here is what `params` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvxfer.driver import TransferId
from kvxfer.layout.geometry import BlockTable
from kvxfer_vllm.config import Settings
from kvxfer_vllm.params import TRANSFER_NAME_KEY


def answer(
    settings: Settings,
    request: Any,
    name: TransferId,
    tables: Sequence[BlockTable],
    *,
    token_count: int,
    to_prefill: bool = False,
) -> dict[str, Any]:
    """Where the KV of `request` is to be had, for D, or with `to_prefill` for P's next turn."""
    return {
        "do_remote_prefill": not to_prefill,
        "do_remote_decode": to_prefill,
        "remote_block_ids": [table.blocks.tolist() for table in tables],
        "remote_engine_id": settings.engine_id,
        "remote_request_id": request.request_id,
        "remote_host": settings.host,
        "remote_port": settings.port,
        "tp_size": settings.tensor_ranks,
        "pp_size": settings.pipeline_ranks,
        "dcp_size": 1,
        "remote_num_tokens": token_count,
        # A time of this host's clock would mean nothing elsewhere: leases are durations.
        "remote_blocks_expiry_time": None,
        "transfer_mode": settings.mode,
        TRANSFER_NAME_KEY: name,
    }
