"""What one shard of a KV cache looks like: areas, groups, strides.

Owns the descriptor that crosses the wire in DESCRIBE and the rules it must
satisfy. Knows no engine, no model family. Invariant: a `Shard` that passed
`check_shard` has every addressable byte inside its areas (H1).

Address of content byte c of head h, token t, local layer position l
(research: vllm-contract 4.3; spec section 7.2):

    j = u div T        table index of token offset u = t - first_token
    i = (u mod T) div N,  n = (u mod T) mod N
    addr = area.base + plane.offset + l*S_L + (table[j]*r + i)*S_B
           + (h - head_start)*S_H + n*S_N + c
"""

from __future__ import annotations

from enum import IntEnum

import attrs
import numpy as np
import numpy.typing as npt


class GroupKind(IntEnum):
    """How a group's blocks relate to tokens (spec registry 'group kinds')."""

    FULL = 1
    """One slot per token; head-sharded."""


@attrs.frozen(kw_only=True)
class Area:
    """One registered piece of memory: `length` bytes at absolute address `base`."""

    base: int
    length: int
    kind: str = "dram"
    device: int = 0


@attrs.frozen(kw_only=True)
class Plane:
    """One content plane of a slot, e.g. packed K and V, or K and V apart."""

    name: str
    area: int
    """Index into the shard's areas."""
    offset: int
    """Byte offset of (layer 0, block 0, head 0, slot 0) from the area's base."""
    content_bytes: int
    """Bytes of one (token, head) in this plane."""


@attrs.frozen(kw_only=True)
class Group:
    """One cache group of a shard. Strides are in bytes."""

    name: str
    kind: GroupKind
    tokens_per_block: int
    """T: tokens of one manager block."""
    physical_per_block: int
    """r: physical blocks of one manager block; T = slots_per_physical * r."""
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

    @property
    def slots_per_physical(self) -> int:
        return self.tokens_per_block // self.physical_per_block

    @property
    def manager_blocks(self) -> int:
        return self.physical_blocks // self.physical_per_block


@attrs.frozen(kw_only=True)
class Holding:
    """What one rank of an engine holds of one group: an interval of heads, a set of layers."""

    group: str
    head_start: int
    head_stop: int
    layers: tuple[str, ...]


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
    first_token + [j*T, (j+1)*T).
    """

    group: int
    first_token: int
    blocks: npt.NDArray[np.int64] = attrs.field(eq=attrs.cmp_using(eq=np.array_equal))
