"""What cannot be served is refused when an engine starts, with a text that names it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_real_engine import Engine, write_config

from kvxfer.errors import KvxferError, LocalFault
from kvxfer.layout.geometry import GroupKind
from kvxfer_vllm import compat
from kvxfer_vllm.cache_groups import CacheGroup

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
pytest.importorskip("vllm")


def config(
    *,
    lookahead: int = 0,
    sleeps: bool = False,
    drafts: bool = False,
    batches: int = 1,
    role: str = "",
    options: dict[str, Any] | None = None,
    **parallel: int,
) -> Any:
    """A VllmConfig as far as settings are read from it."""
    sizes = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "data_parallel_index": 0,
    }
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={"bidirectional_kv_xfer": bool(role), **(options or {})},
            engine_id="eng_dp3",
            kv_role=role or "kv_producer",
            is_kv_consumer=role in ("kv_consumer", "kv_both"),
            kv_load_failure_policy="fail",
        ),
        parallel_config=SimpleNamespace(**(sizes | parallel)),
        num_prefill_lookahead_tokens=lookahead,
        speculative_config=object() if drafts else None,
        max_concurrent_batches=batches,
        model_config=SimpleNamespace(enable_sleep_mode=sleeps),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, long_prefill_token_threshold=0),
    )


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (config(decode_context_parallel_size=2), "decode_context_parallel_size = 2"),
        (config(prefill_context_parallel_size=2), "prefill_context_parallel_size = 2"),
        (config(lookahead=2), "num_prefill_lookahead_tokens = 2"),
        (config(role="kv_producer", batches=2), "bidirectional_kv_xfer with kv_role kv_producer"),
    ],
)
def test_it_is_named(refused: Any, text: str) -> None:
    with pytest.raises(KvxferError, match=text):
        compat.settings_of(refused, "")


LAYERS = {"stream": True, "layer_slices": 4}


def test_layers_are_served_on_a_cpu() -> None:
    if not compat.shows_running_blocks():
        pytest.skip("vLLM before 0.29 shows no running request's blocks")
    assert compat.settings_of(config(options=LAYERS), "").layer_slices == 4


@pytest.mark.parametrize(
    ("device", "refused", "text"),
    [
        ("cuda", config(options=LAYERS), "on cuda a layer is written some time after"),
        ("cpu", config(options=LAYERS, use_ubatching=True), "micro-batches"),
        ("cpu", config(options=LAYERS, drafts=True), "speculative"),
    ],
)
def test_layers_are_refused_where_the_hook_says_too_little(
    monkeypatch: pytest.MonkeyPatch, device: str, refused: Any, text: str
) -> None:
    from vllm import platforms

    if not compat.shows_running_blocks():
        pytest.skip("vLLM before 0.29 shows no running request's blocks")
    monkeypatch.setattr(platforms, "_current_platform", SimpleNamespace(device_type=device))
    with pytest.raises(LocalFault, match=f"layer_slices: .*{text}"):
        compat.settings_of(refused, "")


def test_neuron_shows_no_layer_before_the_end_of_a_step() -> None:
    from kvxfer_neuron.connector import KvxferNeuronConnector

    with pytest.raises(LocalFault, match=r"layer_slices: .*Neuron"):
        KvxferNeuronConnector(config(options=LAYERS), None, None)


def test_sleep_is_served_where_vllm_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    sleeps = config(sleeps=True)
    monkeypatch.delattr(base.KVConnectorBase_V1, "unregister_kv_caches", raising=False)
    with pytest.raises(LocalFault, match="enable_sleep_mode: a sleeping engine"):
        compat.settings_of(sleeps, "")
    monkeypatch.setattr(base.KVConnectorBase_V1, "unregister_kv_caches", None, raising=False)
    assert compat.settings_of(sleeps, "").engine_id == "eng_dp3"


def test_replicas_and_ranks_are_served() -> None:
    from vllm import envs

    both = config(tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_index=3)
    settings = compat.settings_of(both, "push")
    assert (settings.tensor_ranks, settings.pipeline_ranks) == (2, 3)
    # vLLM itself has put the replica into the engine's id.
    assert settings.engine_id == "eng_dp3"
    assert settings.port == envs.VLLM_NIXL_SIDE_CHANNEL_PORT + 3


@pytest.mark.parametrize(
    ("role", "batches"), [("kv_producer", 1), ("kv_both", 2), ("kv_consumer", 2)]
)
def test_read_back_is_served_where_no_step_writes_to_blocks_that_are_free(
    role: str, batches: int
) -> None:
    assert compat.settings_of(config(role=role, batches=batches), "").bidirectional


def test_vllm_holds_freed_blocks_back_from_the_loads_of_kv_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the refusal rests on, and why kv_both is enough."""
    from vllm.config import VllmConfig

    monkeypatch.setattr(VllmConfig, "max_concurrent_batches", property(lambda _: 2))
    write_config(tmp_path)
    for role, held in (("kv_producer", False), ("kv_both", True)):
        engine = Engine(tmp_path, role, "fail", "KvxferConnector")
        assert engine.scheduler.defer_block_free is held


FULL = CacheGroup(layers=("l0",), tokens_per_block=16, manager_blocks=8, name="full.0")
WINDOW = CacheGroup(
    layers=("l1",),
    tokens_per_block=16,
    manager_blocks=8,
    name="window.1",
    kind=GroupKind.WINDOW,
    reach=20,
)


@pytest.mark.parametrize("groups", [(FULL, WINDOW), (WINDOW,), (FULL, FULL)])
def test_a_vllm_that_learns_of_failed_loads_by_block_gets_one_plain_group(
    monkeypatch: pytest.MonkeyPatch, groups: tuple[CacheGroup, ...]
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    monkeypatch.setattr(base, "KVConnectorTransferResults", object, raising=False)
    compat.check_failed_loads(groups)
    monkeypatch.delattr(base, "KVConnectorTransferResults")
    compat.check_failed_loads((FULL,))
    with pytest.raises(LocalFault, match=f"cache groups .*{groups[-1].name}.*by block"):
        compat.check_failed_loads(groups)
