"""The statistics object that travels from a worker to vLLM's metrics.

Owns the class that vLLM pickles, adds up and logs; needs vLLM. Invariant: it is a
module-level class over plain lists, and importing it loads no network library (the
in-tree nixl statistics would load NIXL into the worker, on its main thread).
"""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kvxfer_vllm.stats import Data, add_up, empty_data, is_empty, summary


class KvxferStats(KVConnectorStats):
    """Lists under the in-tree keys and ours; `data` is what goes over the wire."""

    data: Data

    def __init__(self, data: Data | None = None) -> None:
        super().__init__(data=empty_data() if data is None else data)

    def reset(self) -> None:
        self.data = empty_data()

    def aggregate(self, other: KVConnectorStats) -> KvxferStats:
        add_up(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return is_empty(self.data)
