"""The harness's reading of Prometheus text: absent series, labels, differences."""

from __future__ import annotations

import pytest

from kvxfer.errors import RemoteFault
from kvxfer_vllm.pd.metrics import blocks_in_use, parse, received_between

TEXT = """
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {local}
vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} {external}
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{{engine="0"}} {external}
# TYPE vllm:request_prefill_kv_computed_tokens histogram
vllm:request_prefill_kv_computed_tokens_bucket{{engine="0",le="1.0"}} {none}
vllm:request_prefill_kv_computed_tokens_bucket{{engine="0",le="+Inf"}} {finished}
vllm:request_prefill_kv_computed_tokens_count{{engine="0"}} {finished}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} {usage}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{num_gpu_blocks="1025",engine="0"}} 1.0
"""


def text(**values: float) -> str:
    numbers = {"local": 0, "external": 0, "none": 0, "finished": 0, "usage": 0.0, **values}
    return TEXT.format(**numbers)


def test_value_sums_over_labels_and_selects_by_label() -> None:
    snapshot = parse(text(local=3, external=4))
    assert snapshot.value("vllm:prompt_tokens_by_source_total") == 7
    assert snapshot.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 3
    assert snapshot.value("vllm:prompt_tokens_by_source_total", source="other") == 0


def test_absent_series_counts_as_zero_but_is_told_apart() -> None:
    snapshot = parse(text())
    assert snapshot.value("vllm:kvxfer_quarantined") == 0
    assert not snapshot.has("vllm:kvxfer_quarantined")
    assert snapshot.has("vllm:kv_cache_usage_perc")


def test_blocks_in_use_leaves_the_null_block_out() -> None:
    assert blocks_in_use(parse(text(usage=24 / 1024))) == 24
    assert blocks_in_use(parse(text(usage=1.0))) == 1024


def test_missing_label_is_a_remote_fault() -> None:
    with pytest.raises(RemoteFault, match="cache_config_info"):
        blocks_in_use(parse("vllm:kv_cache_usage_perc 0.5\n"))


def test_text_that_is_not_prometheus_is_a_remote_fault() -> None:
    with pytest.raises(RemoteFault, match="/metrics"):
        parse("<html> not metrics {\n")


def test_received_between_takes_differences() -> None:
    before = parse(text(local=200, external=50, none=1, finished=2))
    after = parse(text(local=207, external=950, none=8, finished=10))
    received = received_between(before, after)
    assert received.external_tokens == received.external_hits == 900
    assert received.local_tokens == 7
    assert received.finished_requests == 8
    assert received.recomputed_requests == 1
    assert received.bytes_received is None


def test_bytes_are_taken_where_the_connector_counts_them() -> None:
    before = parse(text())
    after = parse(text() + 'vllm:kvxfer_bytes_received_total{engine="0"} 4096.0\n')
    assert received_between(before, after).bytes_received == 4096
