"""Direct, or through a staging buffer: which way an edge's bytes go, and why.

Owns the cost rule. Knows no transport: what a range and a byte cost is given. Invariant:
an edge that can be served is served, and one that cannot is refused with the reason.
"""

from __future__ import annotations

from enum import Enum

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.staging import Side, Staging
from kvxfer.layout.translate import DESCRIPTORS_MAX, EdgeGeometry


class Path(Enum):
    """The ways that an edge's bytes can go."""

    DIRECT = "direct"
    STAGED_AT_PRODUCER = "staged at the producer"
    STAGED_AT_CONSUMER = "staged at the consumer"


@attrs.frozen(kw_only=True)
class Costs:
    """What the rule reckons with, in nanoseconds. A transport that measured itself knows better.

    The defaults are a range of about 1 us (vllm-contract 5: NIXL over shared memory, in the
    caller) and a permute in numpy (docs/design/layout.md). A byte costs the same either way.
    """

    range_ns: float = 1000.0
    """Posting one range."""
    byte_ns: float = 0.1
    """One byte on the wire."""
    permuted_byte_ns: float = 0.25
    """One byte through a permute."""


@attrs.frozen(kw_only=True)
class Room:
    """Free bytes of a registered staging buffer on either side; 0: there is none."""

    producer_bytes: int = 0
    consumer_bytes: int = 0


@attrs.frozen(kw_only=True)
class PlanChoice:
    """The way that was taken, with the figures that led to it."""

    path: Path
    reason: str
    bytes_total: int
    direct_ranges: int
    direct_ns: float
    staged_ranges: int | None
    """None: neither side has room for a single block."""
    staged_ns: float | None


def choose(
    geometry: EdgeGeometry,
    source: BlockTable,
    target: BlockTable,
    token_start: int,
    token_stop: int,
    *,
    room: Room,
    costs: Costs,
    descriptors_max: int = DESCRIPTORS_MAX,
    staging: Staging | str | None = None,
) -> PlanChoice:
    """Weigh one part of one edge. Raises LayoutMismatch where no way is left.

    With room on both sides the producer permutes: the consumer then sees plain writes
    and has nothing to do before the part counts as landed. A caller that weighs many
    requests keeps the answer of `staging_for` and gives it here.
    """
    tables = (source, target, token_start, token_stop)
    walks = geometry.walks(*tables, DESCRIPTORS_MAX)
    ranges = sum(walk.descriptor_count for _, walk in walks)
    total = sum(walk.bytes_total for _, walk in walks)
    direct_ns = ranges * costs.range_ns + total * costs.byte_ns
    staging = staging or staging_for(geometry, room)
    staged_ranges = staged_ns = None
    if isinstance(staging, Staging):
        staged_ranges = staging.range_count(*tables)
        staged_ns = staged_ranges * costs.range_ns
        staged_ns += total * (costs.byte_ns + costs.permuted_byte_ns)
    pair = f"rank {geometry.edge.producer_rank} to rank {geometry.edge.consumer_rank}"
    path, reason = Path.DIRECT, f"{ranges} ranges are the cheaper way"
    if isinstance(staging, Staging) and staged_ranges is not None and staged_ns is not None:
        if ranges > descriptors_max or staged_ns < direct_ns:
            path = _PATHS[staging.side]
            reason = f"{staged_ranges} ranges and a permute in place of {ranges} ranges"
        if path is not Path.DIRECT and staged_ranges > descriptors_max:
            raise LayoutMismatch(
                f"{pair}: {staged_ranges} ranges even through a staging buffer, at most "
                f"{descriptors_max} are allowed"
            )
    elif ranges > descriptors_max:
        raise LayoutMismatch(
            f"{pair}: {ranges} ranges, at most {descriptors_max} are allowed, and {staging}"
        )
    return PlanChoice(
        path=path,
        reason=reason,
        bytes_total=total,
        direct_ranges=ranges,
        direct_ns=direct_ns,
        staged_ranges=staged_ranges,
        staged_ns=staged_ns,
    )


_PATHS = {Side.PRODUCER: Path.STAGED_AT_PRODUCER, Side.CONSUMER: Path.STAGED_AT_CONSUMER}


def staging_for(geometry: EdgeGeometry, room: Room) -> Staging | str:
    """Staging on a side that has room for a block, the producer first; else why not."""
    why = []
    for side, free in ((Side.PRODUCER, room.producer_bytes), (Side.CONSUMER, room.consumer_bytes)):
        try:
            return Staging.build(geometry, side, 0, free)
        except LayoutMismatch as mismatch:
            why.append(str(mismatch))
    return "; ".join(why)
