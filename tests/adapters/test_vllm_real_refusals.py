"""What cannot be served is refused when an engine starts, with a text that names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvxfer.errors import KvxferError
from kvxfer_vllm import compat

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
pytest.importorskip("vllm")


def config(*, lookahead: int = 0, sleeps: bool = False, **parallel: int) -> Any:
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
            kv_connector_extra_config={},
            engine_id="eng_dp3",
            kv_role="kv_producer",
            kv_load_failure_policy="fail",
        ),
        parallel_config=SimpleNamespace(**(sizes | parallel)),
        num_prefill_lookahead_tokens=lookahead,
        model_config=SimpleNamespace(enable_sleep_mode=sleeps),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, long_prefill_token_threshold=0),
    )


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (config(decode_context_parallel_size=2), "decode_context_parallel_size = 2"),
        (config(prefill_context_parallel_size=2), "prefill_context_parallel_size = 2"),
        (config(lookahead=2), "num_prefill_lookahead_tokens = 2"),
        (config(sleeps=True), "enable_sleep_mode: a sleeping engine"),
    ],
)
def test_it_is_named(refused: Any, text: str) -> None:
    with pytest.raises(KvxferError, match=text):
        compat.settings_of(refused, "")


def test_replicas_and_ranks_are_served() -> None:
    from vllm import envs

    both = config(tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_index=3)
    settings = compat.settings_of(both, "push")
    assert (settings.tensor_ranks, settings.pipeline_ranks) == (2, 3)
    # vLLM itself has put the replica into the engine's id.
    assert settings.engine_id == "eng_dp3"
    assert settings.port == envs.VLLM_NIXL_SIDE_CHANNEL_PORT + 3
