"""Which heads and tokens a rank holds, and the map of all ranks of its engine.

Owns the join of what the ranks told each other. Refuses to derive any of it from sizes:
Neuron's own formulas for context parallel ranks have changed between releases, and
decode engines replicate KV heads as they like. Invariant: a shard's own entry in the map
is what its tensors show.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import RankHolding, Shard, holding_of


@attrs.frozen(kw_only=True)
class Place:
    """One rank's place, as its engine says it."""

    heads_total: int
    head_start: int = 0
    head_stop: int
    """Heads [head_start, head_stop) of the model; ranks with equal heads are replicas."""
    rank: int = 0
    context_rank: int = 0
    context_size: int = 1
    """Ranks that share the tokens among them (DCP)."""
    context_interleave: int = 1
    """Neighbouring tokens that stay together; Neuron interleaves whole blocks."""

    @classmethod
    def alone(cls, heads_total: int) -> Place:
        """The only worker of its engine."""
        return cls(heads_total=heads_total, head_stop=heads_total)

    @property
    def heads(self) -> int:
        return self.head_stop - self.head_start


def own_holding(shard: Shard) -> RankHolding:
    """What this rank tells the others of its engine."""
    return RankHolding(rank=shard.rank, holdings=tuple(holding_of(group) for group in shard.groups))


def with_ranks(shard: Shard, ranks: Iterable[RankHolding]) -> Shard:
    """The shard with the map of all ranks, as they were gathered.

    Raises BadValue where the map has no entry for this rank, or another than its own.
    """
    gathered = tuple(sorted(ranks, key=lambda entry: entry.rank))
    own = own_holding(shard)
    if own not in gathered:
        bound = f"holding what rank {shard.rank} itself holds"
        raise BadValue("ranks", [entry.rank for entry in gathered], bound)
    return attrs.evolve(shard, ranks=gathered)
