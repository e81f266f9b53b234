"""What vLLM's cache configuration says about each group, in this library's words.

Owns the reading of KVCacheConfig and its specs, by the names of their classes. Imports
neither vLLM nor torch. Invariant: a spec that is not known here is refused by its name;
it is never described as something that it resembles.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import GroupKind


@attrs.frozen(kw_only=True)
class StateTensor:
    """One tensor of a state page, e.g. the convolution's or the recurrence's part."""

    dtype: str
    shape: tuple[int, ...]
    content_bytes: int


@attrs.frozen(kw_only=True)
class CacheGroup:
    """One group of layers that share a block table."""

    layers: tuple[str, ...]
    tokens_per_block: int
    manager_blocks: int
    name: str = "attention"
    kind: GroupKind = GroupKind.FULL
    tokens_per_state: int = 1
    reach: int | None = None
    """Tokens before the end that are still needed; None: all of them."""
    states: tuple[StateTensor, ...] = ()
    """The parts of a page, in order, where the group holds states."""
    replicated: bool = False
    """Every tensor rank holds the whole state."""
    shared: bool = False
    """vLLM's prefix cache gives its blocks to later requests."""
    quantised: str = ""
    """How elements are quantised, where they are: their type alone does not say it."""


def cache_groups(
    kv_cache_config: Any, cache_dtype: str = "auto", *, prefix_caching: bool = False
) -> tuple[CacheGroup, ...]:
    """All groups that vLLM would transfer, in its order.

    `cache_dtype` is vLLM's setting of that name: two kinds of FP8 have one element type.
    Raises LayoutMismatch naming the kind of cache that has no description.
    """
    groups = _transfer_groups(kv_cache_config)
    if not groups:
        raise LayoutMismatch("the model has no cache group to transfer")
    return tuple(
        attrs.evolve(
            _group(group, f"{index}", kv_cache_config.num_blocks, cache_dtype),
            shared=prefix_caching and getattr(group.kv_cache_spec, "prefix_cacheable", True),
        )
        for index, group in enumerate(groups)
    )


def _transfer_groups(kv_cache_config: Any) -> Any:
    """vLLM before 0.29 keeps no group back from a transfer."""
    return getattr(kv_cache_config, "transfer_groups", kv_cache_config.kv_cache_groups)


def _group(group: Any, number: str, manager_blocks: int, cache_dtype: str) -> CacheGroup:
    spec = group.kv_cache_spec
    name = type(spec).__name__
    plain = CacheGroup(
        name=number,
        layers=tuple(group.layer_names),
        tokens_per_block=spec.block_size,
        manager_blocks=manager_blocks,
    )
    if name in ("FullAttentionSpec", "MLAAttentionSpec"):
        latent = name == "MLAAttentionSpec"
        kind = GroupKind.LATENT if latent else GroupKind.FULL
        return attrs.evolve(
            plain,
            name=f"{kind.name.lower()}.{number}",
            kind=kind,
            tokens_per_state=_whole_tokens(spec),
            quantised=_quantised(spec, cache_dtype),
        )
    if name in ("SlidingWindowSpec", "SlidingWindowMLASpec"):
        return attrs.evolve(
            plain,
            name=f"window.{number}",
            kind=GroupKind.WINDOW,
            tokens_per_state=_whole_tokens(spec),
            # The token after those handed over is the first that D computes (Tables.left_out).
            # It looks back at sliding_window - 1 tokens; vLLM keeps the blocks of as many.
            reach=spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0),
            quantised=_quantised(spec, cache_dtype),
        )
    if name == "MambaSpec":
        if spec.mamba_cache_mode != "none":
            raise LayoutMismatch(
                f"state pages are cached for prefixes, mamba_cache_mode {spec.mamba_cache_mode!r}: "
                "served with --no-enable-prefix-caching only"
            )
        return attrs.evolve(
            plain,
            name=f"state.{number}",
            kind=GroupKind.STATE,
            tokens_per_state=spec.block_size,
            reach=1,
            states=_states(spec),
            replicated=getattr(spec, "tp_replicated", False),
        )
    raise LayoutMismatch(f"cache group {number} is a {name}: no description for this kind of cache")


def _whole_tokens(spec: Any) -> int:
    # vLLM before 0.29 has no such number: a slot of a cache is a token there.
    tokens = getattr(spec, "tokens_per_state", 1)
    if int(tokens) != tokens or tokens < 1:
        raise LayoutMismatch(f"a cache slot stands for {tokens} tokens: not a whole number")
    return int(tokens)


def _quantised(spec: Any, cache_dtype: str) -> str:
    mode = spec.kv_quant_mode.name
    return "" if mode == "NONE" else f"{mode.lower()} {cache_dtype}"


def _states(spec: Any) -> tuple[StateTensor, ...]:
    found = []
    for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
        count = 1
        for length in shape:
            count *= length
        found.append(
            StateTensor(
                dtype=str(dtype).removeprefix("torch."),
                shape=tuple(shape),
                content_bytes=count * dtype.itemsize,
            )
        )
    return tuple(found)
