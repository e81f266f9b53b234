"""What stands beside our own rows: the same work by an engine's own code.

Owns the search for such rows among installed adapters. Knows no engine: an adapter
registers a function under the entry-point group `kvxfer.bench.layout` and imports its
engine only when called. Invariant: what cannot run here is a row that says why, never a
copy of somebody's code.

The function is called as `f(regions=..., source_blocks=..., target_blocks=...,
pool_blocks=...)` with two lists of block ids, and returns what to time: a function
without arguments that gives the number of ids it has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from kvxfer.bench.harness import Case
from kvxfer.bench.layout_cases import BLOCK_TOKENS, LAYERS, POOL_TOKENS, LayoutCase, tables_of

GROUP = "kvxfer.bench.layout"
REGIONS = {"LBHNC": len(LAYERS), "BLHNC": len(LAYERS), "BHLNC": 1}
"""Regions that vLLM 0.32 makes of a cache in this order (research: vllm-contract 4.1)."""


def rival_cases(cases: list[LayoutCase], seed: int) -> list[Case]:
    """One row per case and installed adapter."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return [_row(entry, case, seed) for case in cases for entry in found]


def _row(entry: EntryPoint, case: LayoutCase, seed: int) -> Case:
    name = f"{case.name}: ids by {entry.name}"
    source, target = tables_of(case, seed)
    try:
        prepare: Callable[..., Callable[[], int]] = entry.load()
        run = prepare(
            regions=REGIONS[case.producer.order],
            source_blocks=source.blocks.tolist(),
            target_blocks=target.blocks.tolist(),
            pool_blocks=POOL_TOKENS // BLOCK_TOKENS,
        )
        ids = run()
    except ImportError as error:
        return Case(name=name, skipped=f"left out, not installed here: {error}")
    # Code of an adapter's engine may fail in any way; the other rows go on.
    except Exception as error:  # noqa: BLE001
        return Case(name=name, skipped=f"left out: {type(error).__name__}: {error}")
    return Case(name=name, run=run, facts={"tokens": case.tokens, "ranges": ids})
