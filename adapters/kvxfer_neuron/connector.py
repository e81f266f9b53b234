"""The class that vLLM on Neuron loads: vLLM's connector with Neuron's worker side.

Owns the choice of that side and the two settings of its own. Invariant: every hook is
the one of `kvxfer_vllm`; push and pull, ids, leases and reports are not repeated here.
"""

from __future__ import annotations

from typing import Any

from kvxfer.errors import LocalFault
from kvxfer_neuron.marks import marks_of
from kvxfer_neuron.worker_side import NeuronWorkerSide

try:
    from kvxfer_vllm.connector import KvxferConnector
except ImportError as error:
    raise LocalFault(
        f"kvxfer_neuron's connector needs the hooks of vLLM 0.32 or later: {error}"
    ) from error


class KvxferNeuronConnector(KvxferConnector):
    """Push unless the option `mode` says pull."""

    worker_class = NeuronWorkerSide

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        if extra.get("layer_slices", 1) != 1:
            raise LocalFault("layer_slices: a step on Neuron shows nothing before its end")
        super().__init__(vllm_config, role, kv_cache_config)
        if isinstance(self._worker, NeuronWorkerSide):
            self._worker.marks = _marks(vllm_config)

    @classmethod
    def has_packed_pages(cls, vllm_config: Any) -> bool:
        return super().has_packed_pages(vllm_config) or "packing" in _marks(vllm_config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:  # noqa: ARG003
        """Neuron has one layout; nothing is asked for."""
        return None


class KvxferNeuronPushConnector(KvxferNeuronConnector):
    """The same under a name that says the direction."""

    named_mode = "push"


class KvxferNeuronPullConnector(KvxferNeuronConnector):
    """The same under a name that says the other direction."""

    named_mode = "pull"


def _marks(vllm_config: Any) -> dict[str, str]:
    return marks_of(vllm_config.kv_transfer_config.kv_connector_extra_config)
