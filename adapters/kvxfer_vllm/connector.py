"""The class that vLLM loads: every hook of KVConnectorBase_V1, each passed on in one line.

Owns nothing but the split by role. Invariant: no decision is taken here, and hooks
of the other role are never reached. vLLM's connector base class says when each hook
is called; of the order in a step we rely on one thing only, that
`handle_preemptions` or `bind_connector_metadata` comes before the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from kvxfer_vllm import compat
from kvxfer_vllm.config import cache_order
from kvxfer_vllm.geometry import cache_groups
from kvxfer_vllm.metadata import StepOrders
from kvxfer_vllm.metrics import KvxferStats
from kvxfer_vllm.readback import check_readback
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import Tables
from kvxfer_vllm.worker_side import WorkerSide


class KvxferConnector(KVConnectorBase_V1, SupportsHMA):
    """The consumer registers its blocks; the producer writes into them, or the consumer reads.

    Which of the two, the option `mode` says, unless the name does (`named_mode`).
    """

    named_mode = ""
    default_mode = "push"
    worker_class: type[WorkerSide] = WorkerSide
    """For engines whose workers have caches of another form."""
    _cache_hit_source = compat.cache_hit_source()

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        compat.check_base(KVConnectorBase_V1)
        cache = vllm_config.cache_config
        groups = cache_groups(
            kv_cache_config,
            cache.cache_dtype,
            prefix_caching=bool(cache.enable_prefix_caching),
        )
        compat.check_failed_loads(groups)
        settings = compat.settings_of(vllm_config, self.named_mode, self.default_mode)
        tables = Tables.of(
            groups,
            compat.transfer_group_ids(kv_cache_config),
            packed=self.has_packed_pages(vllm_config),
        )
        check_readback(settings, tables)
        settings = settings.on_blocks(tables.stream_grain)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._failed_blocks: set[int] = set()
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(settings, tables)
        else:
            self._worker = self.worker_class(
                settings,
                groups,
                vllm_config.model_config.get_total_num_kv_heads(),
                compat.place_of_worker(),
                compat.exchange_holdings,
                zeroed=kv_cache_config.needs_kv_cache_zeroing,
            )

    @classmethod
    def has_packed_pages(cls, vllm_config: Any) -> bool:  # noqa: ARG003
        """Are pages opaque, so that only whole blocks mean anything to the other engine?"""
        return compat.has_packed_pages()

    # --- class hooks ---

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:  # noqa: ARG003
        """Registrations do not outlive a sleep on either side, whoever moves the data."""
        return True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """What the option `cache_order` says, or whole pages in one piece.

        A wish: vLLM drops it, with a warning, where the attention backend has no such order.
        """
        model = vllm_config.model_config
        if model is None:
            return None
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        return compat.order_name(cache_order(extra, latent=model.use_mla))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return KvxferStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        return compat.prom_class()(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- scheduler side ---

    @property
    def scheduler_side(self) -> SchedulerSide:
        assert self._scheduler is not None
        return self._scheduler

    def on_new_request(self, request: Any) -> None:
        self.scheduler_side.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self.scheduler_side.matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:  # noqa: ARG002
        return compat.transfer_group_ids(self._kv_cache_config)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.scheduler_side.after_alloc(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        self.scheduler_side.follow_step(
            scheduler_output.num_scheduled_tokens,
            scheduler_output.preempted_req_ids or (),
            compat.block_ids_of(scheduler_output),
        )
        return self.scheduler_side.take_orders()

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler_side.request_finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[list[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler_side.request_finished(request, block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self.scheduler_side.reported(connector_output.finished_recving)

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.has_orders()

    # --- worker side ---

    @property
    def worker_side(self) -> WorkerSide:
        assert self._worker is not None
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        side = self.worker_side
        packing = compat.page_packing(self._vllm_config, side.groups)
        side.register_caches(kv_caches, packing)

    def unregister_kv_caches(self) -> None:
        self.worker_side.sleep()

    def restore_kv_caches(self) -> None:
        self.worker_side.wake()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        # Both this hook and the next come before the forward pass. The first one to
        # be called delivers, so that a registration leaves before the step computes.
        self.worker_side.deliver(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker_side.deliver(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to start: the registration left before the forward pass."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous; nothing waits inside the forward pass."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: Any,  # noqa: ARG002
        attn_metadata: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """With `layer_slices`, what of the last chunks is written leaves from here."""
        self.worker_side.layer_saved(layer_name)

    def wait_for_save(self) -> None:
        """Sources stay held until reported as sent; nothing waits here."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:  # noqa: ARG002
        return compat.transfer_results(self.worker_side.take_report())

    def get_finished(
        self,
        finished_req_ids: set[str],  # noqa: ARG002
    ) -> tuple[set[str], set[str]]:
        """Asked for by vLLM before 0.30, which learns of a failed load by its blocks alone."""
        report = self.worker_side.take_report()
        self._failed_blocks = set(report.failed_blocks)
        return set(report.sent), set(report.received)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return self.worker_side.take_bad_blocks() | failed

    def get_kv_connector_stats(self) -> Any:
        data = None if self._worker is None else self._worker.take_stats()
        return None if data is None else KvxferStats(data)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()


class KvxferPushConnector(KvxferConnector):
    """The same under a name that says the direction."""

    named_mode = "push"


class KvxferPullConnector(KvxferConnector):
    """The same under a name that says the other direction."""

    named_mode = "pull"


class NixlPushConnector(KvxferPushConnector):
    """Drop-in name of vLLM's own push connector."""


class NixlPullConnector(KvxferPullConnector):
    """Drop-in name of vLLM's own pull connector."""


class NixlConnector(KvxferConnector):
    """Drop-in name that routers and vLLM's core key on. Pull, as vLLM's own of that name.

    The option `mode` may say push: an operator who has to keep the name may want it.
    """

    default_mode = "pull"
