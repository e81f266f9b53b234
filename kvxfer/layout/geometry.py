"""What one shard of a KV cache looks like: areas, groups, planes, strides.

Owns the descriptor that crosses the wire in DESCRIBE. Knows no engine, no model
family. Invariant: a `Shard` that passed `check_shard` has every addressable byte
inside its areas (H1).

A group's cache is one box of axes (layer, block, head, slot, element), each with a
stride in bytes; a plane may put another stride, head split or slot size in place of
its group's. Everything that engines call a cache shape is a choice of these numbers.
The address of a byte is written out in the specification (7.2) and in `naive`.
"""

from __future__ import annotations

from enum import IntEnum

import attrs
import numpy as np
import numpy.typing as npt


class GroupKind(IntEnum):
    """How a group's blocks relate to tokens (spec registry 'group kinds').

    A name for people and a promise that `check_shard` holds the descriptor to; no
    arithmetic depends on it.
    """

    FULL = 1
    """One slot for so many tokens; heads may be split over ranks."""
    WINDOW = 2
    """As FULL; only the last `reach` tokens are needed, blocks before them may be null."""
    LATENT = 3
    """One head that every rank holds: multi-head latent attention."""
    STATE = 4
    """A block is one page: the state after its last token."""
    PAGE = 5
    """A physical block of one head is opaque: copied whole, between equal fingerprints."""


@attrs.frozen(kw_only=True)
class Area:
    """One registered piece of memory: `length` bytes at absolute address `base`."""

    base: int
    length: int
    kind: str = "dram"
    device: int = 0


@attrs.frozen(kw_only=True)
class Split:
    """A plane's own share of heads, where it is not the group's: [start, stop) of total.

    A head is any unit that ranks divide among them, e.g. a channel of a convolution.
    """

    total: int
    start: int
    stop: int


@attrs.frozen(kw_only=True)
class Plane:
    """One content plane of a slot: K and V packed, K, V, scales, a part of a state.

    What is None is as in the group.
    """

    name: str
    area: int
    """Index into the shard's areas."""
    offset: int
    """Byte offset of (layer 0, block 0, head 0, slot 0) from the area's base."""
    content_bytes: int
    """Bytes of one (slot, head) in this plane."""
    tokens_per_state: int | None = None
    """Tokens of one slot of this plane: T / r for one scale per physical block."""
    split: Split | None = None
    element_bytes: int | None = None
    """Bytes that lie side by side; None: all of the content."""
    stride_element: int | None = None
    """From one element of a slot to the next; None: element_bytes."""
    stride_layer: int | None = None
    stride_block: int | None = None
    stride_head: int | None = None
    stride_slot: int | None = None
    layer_areas: tuple[int, ...] = ()
    """Where every layer is a piece of memory of its own: its area, by local layer
    position. `offset` counts from the base of each; the layer stride is not used."""


@attrs.frozen(kw_only=True)
class Group:
    """One cache group of a shard. Strides are in bytes."""

    name: str
    kind: GroupKind
    tokens_per_block: int
    """T: tokens of one manager block."""
    physical_per_block: int
    """r: physical blocks of one manager block."""
    physical_blocks: int
    """B: physical blocks in the pool."""
    heads_total: int
    """K: KV heads of the whole model."""
    head_start: int
    head_stop: int
    layers: tuple[str, ...]
    """Global layer keys in local order."""
    planes: tuple[Plane, ...]
    stride_layer: int
    stride_block: int
    stride_head: int
    stride_slot: int
    null_block: int | None = None
    """Manager block id that is never source nor destination (vLLM: 0)."""
    tokens_per_state: int = 1
    """Tokens that one slot stands for; T = slots_per_physical * r * tokens_per_state."""
    reach: int | None = None
    """Only so many tokens before the end are needed; None: all of them. A sliding window
    of w tokens counts the new one, so its reach is w - 1; a state's is 1."""
    whole_blocks: bool = False
    """Consumer: later requests may be given the blocks of a window, so that the first one is
    needed whole. The engine's own affair, never on the wire."""
    fingerprint: str = ""
    """What else must be equal at both engines: element type, packing, convention of scales."""
    context_rank: int = 0
    context_size: int = 1
    """A: ranks that share the tokens among them (context parallel); token t is at context
    rank (t div I) mod A, and a block table of A ranks spans A * T tokens a block."""
    context_interleave: int = 1
    """I: neighbouring tokens that stay together."""

    @property
    def slots_per_physical(self) -> int:
        return self.tokens_per_block // self.physical_per_block // self.tokens_per_state

    @property
    def manager_blocks(self) -> int:
        return self.physical_blocks // self.physical_per_block

    @property
    def tokens_per_entry(self) -> int:
        """Tokens of the whole engine between the first tokens of two table entries."""
        return self.tokens_per_block * self.context_size


@attrs.frozen(kw_only=True)
class PlaneSplit:
    """What one rank holds of a plane that has a split of its own."""

    plane: str
    start: int
    stop: int


@attrs.frozen(kw_only=True)
class Holding:
    """What one rank of an engine holds of one group: heads, layers, its share of tokens."""

    group: str
    head_start: int
    head_stop: int
    layers: tuple[str, ...]
    splits: tuple[PlaneSplit, ...] = ()
    context_rank: int = 0
    context_size: int = 1
    context_interleave: int = 1


@attrs.frozen(kw_only=True)
class RankHolding:
    """All that one rank holds. Exchanged in the handshake, never derived from sizes."""

    rank: int
    holdings: tuple[Holding, ...]


@attrs.frozen(kw_only=True)
class Shard:
    """The layout descriptor of one rank, with the map of all ranks of its engine."""

    rank: int
    areas: tuple[Area, ...]
    groups: tuple[Group, ...]
    ranks: tuple[RankHolding, ...]


@attrs.frozen(kw_only=True)
class BlockTable:
    """Blocks of one request in one group, in token order.

    `blocks` are manager block ids, shape (n,), dtype int64; block j holds tokens
    first_token + [j*T, (j+1)*T), or, of A*T tokens there, those of the context rank.
    Entries that no wanted token lies in may be the null block.
    """

    group: int
    first_token: int
    blocks: npt.NDArray[np.int64] = attrs.field(eq=attrs.cmp_using(eq=np.array_equal))


def holding_of(group: Group) -> Holding:
    """What a rank map must say of the rank that has `group`."""
    return Holding(
        group=group.name,
        head_start=group.head_start,
        head_stop=group.head_stop,
        layers=group.layers,
        splits=tuple(
            PlaneSplit(plane=p.name, start=p.split.start, stop=p.split.stop)
            for p in group.planes
            if p.split is not None
        ),
        context_rank=group.context_rank,
        context_size=group.context_size,
        context_interleave=group.context_interleave,
    )
