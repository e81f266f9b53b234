"""The row of vLLM's id arithmetic calls vLLM's function; by what name, only vLLM can say."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest

from kvxfer_vllm import bench_ids

BLOCKS = {"source_blocks": [4, 9, 2], "target_blocks": [7, 1, 3], "pool_blocks": 10}


def test_it_is_registered() -> None:
    (entry,) = entry_points(group="kvxfer.bench.layout", name="vllm")
    assert entry.load() is bench_ids.prepare


def test_both_sides_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Worker:
        def _compute_desc_ids(self, block_ids: Any, **_: Any) -> list[int]:
            asked.append(block_ids)
            return [0] * 6

    module = SimpleNamespace(NixlBaseConnectorWorker=Worker)
    monkeypatch.setattr(bench_ids, "importlib", SimpleNamespace(import_module=lambda _: module))
    assert bench_ids.prepare(regions=2, **BLOCKS)() == 6  # type: ignore[arg-type]
    assert asked == [[[4, 9, 2]], [[7, 1, 3]]]


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
def test_vllms_own_function_counts_a_descriptor_per_region_and_block() -> None:
    pytest.importorskip("vllm")
    importlib.import_module(bench_ids.MODULE)
    for regions in (1, 64):
        assert bench_ids.prepare(regions=regions, **BLOCKS)() == 3 * regions  # type: ignore[arg-type]
