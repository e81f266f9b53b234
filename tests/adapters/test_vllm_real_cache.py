"""The caches that vLLM really allocates: bytes moved by plan are those that vLLM reads.

For every kind of cache two engines are started in this process, with pools of different
sizes. P's memory is filled with chance bytes; a plan between the two descriptors moves a
request's blocks to other block ids at D. The same move is then made through vLLM's own
views (tensor[block, head, slot]), and all of D's memory must be equal, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_real_moves import moved_alike
from vllm_tiny_engines import MODELS, TinyEngine, start

from kvxfer.errors import LayoutMismatch
from kvxfer.explain.files import dump_shards, load_shards
from kvxfer.layout.check import check_shard
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import GroupKind, Shard
from kvxfer.limits import Limits
from kvxfer_vllm import compat
from kvxfer_vllm.geometry import cache_groups, describe_groups

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
pytest.importorskip("vllm")

KINDS = {
    "dense": {"full": GroupKind.PAGE},
    "latent": {"latent": GroupKind.LATENT},
    "window": {"full": GroupKind.PAGE, "window": GroupKind.PAGE},
    "mamba1": {"full": GroupKind.PAGE, "state": GroupKind.STATE},
    "mamba2": {"full": GroupKind.PAGE, "state": GroupKind.STATE},
    "fp8": {"full": GroupKind.PAGE},
    "short_conv": {"full": GroupKind.PAGE, "state": GroupKind.STATE},
    "gated_delta": {"full": GroupKind.PAGE, "state": GroupKind.STATE},
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: Any, tmp_path_factory: Any) -> Iterator[tuple[str, TinyEngine, TinyEngine]]:
    folder = tmp_path_factory.mktemp(request.param)
    engines = start(request.param, folder, 4), start(request.param, folder, 6)
    yield request.param, *engines
    for engine in engines:
        engine.close()


def describe(engine: TinyEngine, *, packed: bool = True) -> Shard:
    cache_dtype = engine.runner.cache_config.cache_dtype
    groups = cache_groups(engine.config, cache_dtype)
    packing = ""
    if packed:
        packing = compat.page_packing(engine.runner.vllm_config, groups)
    heads = engine.runner.model_config.get_total_num_kv_heads()
    shard, _ = describe_groups(engine.caches, groups, heads, packing)
    check_shard(shard, Limits())
    return shard


def test_the_kinds_of_cache_are_what_they_should_be(
    pair: tuple[str, TinyEngine, TinyEngine],
) -> None:
    kind, p, d = pair
    for engine in (p, d):
        groups = describe(engine).groups
        assert {g.name.partition(".")[0]: g.kind for g in groups} == KINDS[kind]
        named = {name for group in groups for name in group.layers}
        assert named == set(engine.caches)
    assert p.config.num_blocks != d.config.num_blocks


@pytest.mark.parametrize("tokens", [1, 128, 300, 1000])
def test_bytes_moved_by_plan_are_those_that_vllm_reads(
    pair: tuple[str, TinyEngine, TinyEngine], tokens: int
) -> None:
    _, p, d = pair
    assert moved_alike(p, d, describe(p), describe(d), tokens)


def test_slot_by_slot_too(pair: tuple[str, TinyEngine, TinyEngine]) -> None:
    """As for a backend that keeps slots apart: the last block is moved in part."""
    _, p, d = pair
    src, dst = describe(p, packed=False), describe(d, packed=False)
    assert GroupKind.PAGE not in {group.kind for group in src.groups}
    assert moved_alike(p, d, src, dst, 300)


def test_the_comparison_can_fail(pair: tuple[str, TinyEngine, TinyEngine]) -> None:
    _, p, d = pair
    assert not moved_alike(p, d, describe(p), describe(d), 300, wrong=True)


def test_the_descriptor_survives_its_file(
    pair: tuple[str, TinyEngine, TinyEngine], tmp_path: Path
) -> None:
    _, p, _ = pair
    shard = describe(p)
    (tmp_path / "p.json").write_text(dump_shards([shard]))
    assert load_shards(tmp_path / "p.json") == (shard,)


def test_unequal_block_sizes(tmp_path: Path) -> None:
    """vLLM lets the user choose the block size on CPU for plain attention only."""
    sizes = (128, 96)
    p, d = (start("dense", tmp_path / str(size), 4, block_size=size) for size in sizes)
    try:
        src, dst = describe(p, packed=False), describe(d, packed=False)
        assert [s.groups[0].tokens_per_block for s in (src, dst)] == list(sizes)
        assert moved_alike(p, d, src, dst, 300)
        # As packed pages the two refuse each other: no page of one is a page of the other.
        with pytest.raises(LayoutMismatch, match="planes"):
            edges_between(describe(p), describe(d))
    finally:
        p.close()
        d.close()
