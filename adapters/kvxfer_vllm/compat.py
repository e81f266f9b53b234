"""The places where the adapter depends on what vLLM offers, behind feature tests.

Owns every import of vLLM's internals apart from the connector base class. Invariant:
what is missing is found at start and named; versions are never compared.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kvxfer.errors import LocalFault
from kvxfer.layout.geometry import GroupKind, RankHolding
from kvxfer_vllm.cache_groups import CacheGroup
from kvxfer_vllm.config import Settings, check_parallel, read_settings
from kvxfer_vllm.ledger import Report
from kvxfer_vllm.place import Place
from kvxfer_vllm.stats import COUNTERS, GAUGES, KVXFER_PREFIX
from kvxfer_vllm.tables import BlockIds

REQUIRED_HOOKS = (
    "get_block_ids_with_load_errors",
    "get_finished",
    "handle_preemptions",
    "has_pending_push_work",
    "on_new_request",
)


def check_base(base: type) -> None:
    """Refuse a vLLM whose connector interface lacks a hook that this adapter lives on."""
    missing = [name for name in REQUIRED_HOOKS if not hasattr(base, name)]
    if missing:
        raise LocalFault(
            f"this vLLM's connector interface has no {', '.join(missing)}: "
            "kvxfer_vllm needs vLLM 0.24 or later"
        )


def cache_hit_source() -> Any:
    """vLLM's word for tokens that came from another engine; None where it has no such words."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.P2P


def order_name(order: str | None) -> str | None:
    """The name of a cache order as this vLLM knows it. Before 0.29 it has two, by other names."""
    try:
        importlib.import_module("vllm.v1.kv_cache_layout")
    except ImportError:
        known = {None: None, "LBHNC": "HND", "LBNHC": "NHD"}
        if order not in known:
            raise LocalFault(f"cache_order = {order}: this vLLM knows LBHNC and LBNHC") from None
        return known[order]
    return order


def transfer_group_ids(kv_cache_config: Any) -> tuple[int, ...]:
    """Indices of the cache groups that a load fills: all, where vLLM keeps none back."""
    ids = getattr(kv_cache_config, "transfer_group_ids", None)
    return tuple(range(len(kv_cache_config.kv_cache_groups)) if ids is None else ids)


def transfer_results(report: Report) -> Any:
    """A worker's report as the scheduler takes it, where it understands failures by request."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

    return KVConnectorTransferResults(
        finished_sending=set(report.sent),
        finished_recving=set(report.received),
        failed_recving=set(report.failed),
    )


def check_failed_loads(groups: Sequence[CacheGroup]) -> None:
    """Refuse caches of which this vLLM could not be told that a load has failed.

    Raises LocalFault. Before 0.30 a failed load is told by its blocks. A scheduler with
    several groups ends its engine at such a word, and a window's list has the null block,
    which all requests share.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    plain = len(groups) == 1 and groups[0].reach is None
    if not plain and not hasattr(base, "KVConnectorTransferResults"):
        raise LocalFault(
            f"cache groups {', '.join(group.name for group in groups)}: this vLLM learns of failed "
            "loads by block, so that one group of full attention is served; vLLM 0.30 or later "
            "serves the others"
        )


def tells_of_sleep() -> bool:
    """True where vLLM tells connectors before it gives cache memory back."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    return hasattr(base.KVConnectorBase_V1, "unregister_kv_caches")


def settings_of(vllm_config: Any, named_mode: str, default_mode: str = "push") -> Settings:
    """Read the adapter's settings out of a VllmConfig and vLLM's environment.

    `named_mode` is what the connector's name promises, push, pull or nothing;
    `default_mode` what holds where it promises nothing and no option says it.
    """
    from vllm import envs

    transfer = vllm_config.kv_transfer_config
    parallel = vllm_config.parallel_config
    check_parallel(
        decode_context_parallel_size=parallel.decode_context_parallel_size,
        prefill_context_parallel_size=parallel.prefill_context_parallel_size,
    )
    ahead = getattr(vllm_config, "num_prefill_lookahead_tokens", 0)
    if ahead > 1:
        raise LocalFault(
            f"num_prefill_lookahead_tokens = {ahead}: "
            "multi-module MTP drafting is not served by this version of kvxfer_vllm"
        )
    if getattr(vllm_config.model_config, "enable_sleep_mode", False) and not tells_of_sleep():
        raise LocalFault(
            "enable_sleep_mode: a sleeping engine gives back cache memory that is registered "
            "with the network, and this vLLM does not tell; vLLM 0.33 or later does"
        )
    settings = read_settings(
        transfer.kv_connector_extra_config,
        engine_id=transfer.engine_id,
        kv_role=transfer.kv_role,
        failure_policy=transfer.kv_load_failure_policy,
        host=envs.VLLM_NIXL_SIDE_CHANNEL_HOST,
        port=envs.VLLM_NIXL_SIDE_CHANNEL_PORT,
        data_parallel_index=parallel.data_parallel_index,
        randomized_ids=not envs.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION,
        named_mode=named_mode,
        default_mode=default_mode,
        step_tokens=_chunk_tokens_max(vllm_config.scheduler_config),
        tensor_ranks=parallel.tensor_parallel_size,
        pipeline_ranks=parallel.pipeline_parallel_size,
    )
    if settings.stream_tokens:
        _check_streaming()
    if settings.layer_slices > 1:
        _check_layers(vllm_config)
    if settings.bidirectional and not transfer.is_kv_consumer:
        _check_freed_blocks(vllm_config)
    return settings


def _check_freed_blocks(vllm_config: Any) -> None:
    """An engine that loads must not be given blocks that a step in flight still writes to.

    vLLM holds such blocks back where several steps may be in flight, but only for a consumer.
    """
    # A vLLM that does not say how many steps it keeps in flight may keep several.
    if getattr(vllm_config, "max_concurrent_batches", 2) > 1:
        raise LocalFault(
            "bidirectional_kv_xfer with kv_role kv_producer: vLLM would give blocks to a load "
            "while a step in flight still writes to them; set kv_role to kv_both"
        )


def _chunk_tokens_max(scheduler_config: Any) -> int:
    """The most tokens of one prompt that a step computes."""
    longest = int(scheduler_config.max_num_batched_tokens)
    threshold = int(scheduler_config.long_prefill_token_threshold)
    return min(longest, threshold) if threshold > 0 else longest


def shows_running_blocks() -> bool:
    """This vLLM tells a connector the blocks of a request that runs; streams need it."""
    from vllm.v1.core.sched.output import SchedulerOutput

    return hasattr(SchedulerOutput, "kv_connector_block_state")


def _check_streaming() -> None:
    if not shows_running_blocks():
        raise LocalFault("stream: this vLLM does not show the blocks of a running request")


def _check_layers(vllm_config: Any) -> None:
    """Refuse engines in which the call for a layer does not say that its cache is written."""
    from vllm.platforms import current_platform

    device = current_platform.device_type
    if device != "cpu":
        raise LocalFault(
            f"layer_slices: on {device} a layer is written some time after save_kv_layer; "
            "this version of kvxfer_vllm waits for no event and serves CPU only"
        )
    if getattr(vllm_config.parallel_config, "use_ubatching", False):
        raise LocalFault("layer_slices: with micro-batches a layer is called before it is written")
    if getattr(vllm_config, "speculative_config", None) is not None:
        raise LocalFault("layer_slices: not served with speculative decoding, which writes ahead")


def block_ids_of(scheduler_output: Any) -> Callable[[str], BlockIds | None]:
    """Blocks of a request that this step computes; to be asked while the step is planned."""
    state = getattr(scheduler_output, "kv_connector_block_state", None)
    return state.get_block_ids if state is not None else _unknown


def _unknown(_: str) -> None:
    return None


def has_packed_pages() -> bool:
    """True where the attention backend arranges a (block, head) page in its own way.

    vLLM's CPU backend keeps all K of a page before all V, and K in an order that the
    instruction set asks for (cpu_attn.py), whatever the shape of the registered view.
    """
    from vllm.platforms import current_platform

    return bool(current_platform.device_type == "cpu")


def page_packing(vllm_config: Any, groups: Sequence[CacheGroup]) -> str:
    """Name of that arrangement, from the layers themselves; empty where there is none.

    Called when the caches are registered: the backend has marked the layers by then.
    """
    layers = [
        layer
        for group in groups
        if group.kind in (GroupKind.FULL, GroupKind.WINDOW)
        for layer in group.layers
    ]
    if not has_packed_pages() or not layers:
        return ""
    context = vllm_config.compilation_config.static_forward_context
    names = {str(getattr(context.get(layer), "isa", "unknown")) for layer in layers}
    return "cpu-" + "-".join(sorted(names))


def place_of_worker() -> Place:
    """Where this worker stands; vLLM has set up its process groups by then."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tensor = get_tp_group()
    return Place(
        tensor_rank=tensor.rank_in_group,
        tensor_size=tensor.world_size,
        stage=get_pp_group().rank_in_group,
    )


def exchange_holdings(own: RankHolding) -> tuple[RankHolding, ...]:
    """What every worker of the engine holds, by rank. All of them call this at one point."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    holdings = _gathered(get_tp_group(), [own])
    return tuple(sorted(_gathered(get_pp_group(), holdings), key=lambda entry: entry.rank))


def _gathered(group: Any, own: list[RankHolding]) -> list[RankHolding]:
    import torch

    if group.world_size == 1:
        return own
    found: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(found, own, group=group.cpu_group)
    return [entry for entries in found for entry in entries]


@functools.cache
def prom_class() -> type:
    """vLLM's nixl Prometheus metrics with `vllm:kvxfer_*` added."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlPromMetrics
    from vllm.v1.metrics.utils import create_metric_per_engine

    class KvxferPromMetrics(NixlPromMetrics):
        """The in-tree series keep their names; ours say what the agent counted."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._ours = {
                name: create_metric_per_engine(
                    kind(
                        name=f"vllm:{KVXFER_PREFIX}{name}",
                        documentation=f"kvxfer agent: {name.replace('_', ' ')}.",
                        labelnames=self._labelnames,
                    ),
                    self.per_engine_labelvalues,
                )
                for names, kind in ((COUNTERS, self._counter_cls), (GAUGES, self._gauge_cls))
                for name in names
            }

        def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
            super().observe(transfer_stats_data, engine_idx)
            for name, metric in self._ours.items():
                for value in transfer_stats_data.get(KVXFER_PREFIX + name, ()):
                    if name in GAUGES:
                        metric[engine_idx].set(value)
                    else:
                        metric[engine_idx].inc(value)

    return KvxferPromMetrics
