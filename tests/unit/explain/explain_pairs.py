"""Engines for the tests of the explanation."""

from __future__ import annotations

from typing import Any

from kvxfer.layout.geometry import Shard
from kvxfer.layout.orders import engine_shards


def engine(order: str = "LBHNC", tp: int = 1, number: int = 1, **changes: Any) -> tuple[Shard, ...]:
    """`number` keeps two engines apart in memory."""
    sizes: dict[str, Any] = {
        "layers": [f"l{index}" for index in range(3)],
        "blocks": 12,
        "tokens_per_block": 4,
        "heads_total": 4,
        "content_bytes": 32,
        "null_block": 0,
    }
    bases = [(number << 50) + (rank << 40) for rank in range(tp)]
    return engine_shards(bases=bases, order=order, **(sizes | changes))
