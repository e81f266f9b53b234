"""Which layers of the last chunks at work are written, and what that releases.

Owns the counting of `save_kv_layer` calls in one step. Knows no agent, no device and no
clock: what is final goes to `release`. Invariants: a layer is named final only after its
own call in this step; the end of an offer is released here only when every layer of
every group was called, so that a forward pass which fails, or a cache that never calls,
leaves the end to the scheduler.

Calls come on the thread that computes, between two layers. While no last chunk is at
work a call is one look at an empty list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from kvxfer.driver.commands import Grow
from kvxfer.layout.geometry import Group, GroupKind, Shard
from kvxfer_vllm.metadata import LastChunk

logger = logging.getLogger("vllm.kvxfer")

NAMES_SHOWN_MAX = 4


@attrs.define
class Layers:
    """The layers of one worker's cache, in the order in which its parts count them."""

    groups: tuple[tuple[str, ...], ...]
    """Layers of each group that is cut."""
    borders: tuple[int, ...]
    """Numbers of first layers at which a part ends, ascending; empty: nothing is cut."""
    seals: bool
    """Every group is cut: with its last layer, all of a prompt is written."""
    release: Callable[[Grow], object]
    begun: int = 0
    """Last chunks of which a part was released before the rest, since the start."""
    _chunks: list[LastChunk] = attrs.field(factory=list)
    _missing: set[str] = attrs.field(factory=set)
    _released: int = 0
    """Of the first layers so many were released in this step."""
    _sealed: set[str] = attrs.field(factory=set)
    """Tags of the offers whose end was released."""
    _warned: bool = False

    @classmethod
    def of(cls, shard: Shard, part_layers: int, release: Callable[[Grow], object]) -> Layers:
        """`part_layers`: layers of a part, as the agent was told."""
        cut = _cut_groups(shard) if part_layers else []
        counts = [len(group.layers) for group in cut]
        step = part_layers
        borders = {min(n, c) for c in counts for n in range(step, c + step, step)}
        return cls(
            groups=tuple(group.layers for group in cut),
            borders=tuple(sorted(borders)),
            seals=len(cut) == len(shard.groups),
            release=release,
        )

    def begin_step(self) -> None:
        """A step is about to compute; what the last one left belongs to the scheduler now."""
        if self._chunks and self._missing and not self._warned:
            self._warn()
        self._chunks.clear()

    def add(self, chunk: LastChunk) -> None:
        """The step that begins computes this chunk. Before any call of `saved` in it."""
        if not self._chunks:
            self._missing = {layer for layers in self.groups for layer in layers}
            self._released = 0
        self._chunks.append(chunk)

    def saved(self, layer: str) -> None:
        """The cache of this layer is written for all tokens of the step."""
        if not self._chunks or layer not in self._missing:
            return
        self._missing.remove(layer)
        if not self._missing and self.seals:
            for chunk in self._chunks:
                self._sealed.add(chunk.grow.tag)
                self.release(chunk.grow)
            return
        first = self._first()
        reached = max((n for n in self.borders if n <= first), default=0)
        if reached > self._released:
            self.begun += 0 if self._released else len(self._chunks)
            self._released = reached
            for chunk in self._chunks:
                self.release(_ahead(chunk, reached))

    def take_sealed(self, tag: str) -> bool:
        """True, once, where the end of the offer with this tag was released here."""
        sealed = tag in self._sealed
        self._sealed.discard(tag)
        return sealed

    def _first(self) -> int:
        """So many first layers of every group are written; of a shorter group, all it has."""
        counts = []
        for layers in self.groups:
            missing = (i for i, layer in enumerate(layers) if layer in self._missing)
            counts.append(next(missing, self.borders[-1]))
        return min(counts)

    def _warn(self) -> None:
        self._warned = True
        names = sorted(self._missing)
        logger.warning(
            "layer_slices: save_kv_layer was not called for %d layers (%s): the end of a "
            "prompt waits for the end of its prefill",
            len(names),
            ", ".join(names[:NAMES_SHOWN_MAX]) + ", ..." * (len(names) > NAMES_SHOWN_MAX),
        )


def part_layers(shard: Shard, slices: int) -> int:
    """Layers of a part, so that the longest group is cut into `slices`; 0: not cut."""
    counts = [len(group.layers) for group in _cut_groups(shard)]
    return -(-max(counts) // slices) if slices > 1 and counts else 0


def _cut_groups(shard: Shard) -> list[Group]:
    """A state is not cut by layers (spec 6.4)."""
    return [group for group in shard.groups if group.kind is not GroupKind.STATE]


def _ahead(chunk: LastChunk, layers: int) -> Grow:
    return attrs.evolve(
        chunk.grow,
        token_count=chunk.tokens_before,
        sealed=False,
        token_ahead=chunk.grow.token_count,
        layers_final=layers,
    )
