"""Is a shard what it says: bounds, divisibility, kinds, its own place in the rank map.

Owns the checks that run once, at the handshake and at an agent's start; the bytes of
planes are `check_planes`'. Knows no plan. Invariant: a shard that passed keeps the
promises of its group kinds, and its rank map is complete and agrees with it.
"""

from __future__ import annotations

from kvxfer.errors import BadValue
from kvxfer.layout.bounds import (
    ADDRESS_MAX,
    AREAS_PER_GROUP_MAX,
    CONTEXT_SIZE_MAX,
    COUNT_MAX,
    PLANES_MAX,
    check_divisor,
    check_each_once,
    check_range,
)
from kvxfer.layout.check_planes import check_planes
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Holding,
    Shard,
    holding_of,
)
from kvxfer.limits import Limits

RANK_MAX = (1 << 32) - 1


def check_shard(shard: Shard, limits: Limits) -> None:
    """Raise BadValue naming the first field that is out of its bound."""
    check_range("shard.rank", shard.rank, 0, RANK_MAX)
    check_range("shard.areas", len(shard.areas), 1, limits.groups_max * AREAS_PER_GROUP_MAX)
    check_range("shard.groups", len(shard.groups), 1, limits.groups_max)
    check_range("shard.ranks", len(shard.ranks), 1, limits.ranks_per_engine_max)
    for index, area in enumerate(shard.areas):
        _check_area(f"areas[{index}]", area)
    check_each_once("groups", [group.name for group in shard.groups])
    for index, group in enumerate(shard.groups):
        field = f"groups[{index}]"
        _check_group(field, group, limits)
        check_planes(field, shard, group)
        _check_kind(field, group)
    _check_ranks(shard, limits)


def _check_area(field: str, area: Area) -> None:
    check_range(f"{field}.base", area.base, 0, ADDRESS_MAX)
    check_range(f"{field}.length", area.length, 1, ADDRESS_MAX - area.base)


def _check_group(field: str, group: Group, limits: Limits) -> None:
    _check_blocks(field, group)
    check_range(f"{field}.heads_total", group.heads_total, 1, COUNT_MAX)
    check_range(f"{field}.head_start", group.head_start, 0, group.heads_total - 1)
    check_range(f"{field}.head_stop", group.head_stop, group.head_start + 1, group.heads_total)
    check_range(f"{field}.layers", len(group.layers), 1, limits.layers_max)
    check_each_once(f"{field}.layers", group.layers)
    check_range(f"{field}.planes", len(group.planes), 1, PLANES_MAX)
    check_each_once(f"{field}.planes", [plane.name for plane in group.planes])
    if all(plane.split is not None for plane in group.planes):
        bound = "at least one without a split of its own: the group's heads are its heads"
        raise BadValue(f"{field}.planes", len(group.planes), bound)
    for key in ("stride_layer", "stride_block", "stride_head", "stride_slot"):
        check_range(f"{field}.{key}", getattr(group, key), 0, ADDRESS_MAX)
    if group.reach is not None:
        check_range(f"{field}.reach", group.reach, 1, COUNT_MAX)
    _check_context(field, group)
    if group.context_size > 1:
        # A rank's share is made of whole states, and a block of whole shares.
        check_divisor(
            f"{field}.context_interleave", group.context_interleave, group.tokens_per_block
        )
        for plane in (None, *group.planes):
            tokens = plane.tokens_per_state if plane is not None else group.tokens_per_state
            if tokens is not None and group.context_interleave % tokens:
                bound = f"a multiple of {tokens}, the tokens of one state"
                raise BadValue(f"{field}.context_interleave", group.context_interleave, bound)


def _check_blocks(field: str, group: Group) -> None:
    per_manager = group.physical_per_block
    check_range(f"{field}.tokens_per_block", group.tokens_per_block, 1, COUNT_MAX)
    check_range(f"{field}.physical_per_block", per_manager, 1, group.tokens_per_block)
    if group.tokens_per_block % per_manager:
        bound = f"a divisor of tokens_per_block, {group.tokens_per_block}"
        raise BadValue(f"{field}.physical_per_block", per_manager, bound)
    check_divisor(
        f"{field}.tokens_per_state", group.tokens_per_state, group.tokens_per_block // per_manager
    )
    check_range(f"{field}.physical_blocks", group.physical_blocks, per_manager, COUNT_MAX)
    if group.physical_blocks % per_manager:
        bound = f"a multiple of physical_per_block, {per_manager}"
        raise BadValue(f"{field}.physical_blocks", group.physical_blocks, bound)
    if group.null_block is not None:
        check_range(f"{field}.null_block", group.null_block, 0, group.manager_blocks - 1)


def _check_context(field: str, holder: Group | Holding) -> None:
    check_range(f"{field}.context_size", holder.context_size, 1, CONTEXT_SIZE_MAX)
    check_range(f"{field}.context_rank", holder.context_rank, 0, holder.context_size - 1)
    check_range(f"{field}.context_interleave", holder.context_interleave, 1, COUNT_MAX)


def _check_kind(field: str, group: Group) -> None:
    """What a kind promises. `check_planes` has passed, so that divisions are whole."""
    kind, name = group.kind, group.kind.name
    if kind is GroupKind.FULL and group.reach is not None:
        raise BadValue(f"{field}.reach", group.reach, "null in a group of kind FULL")
    if kind in (GroupKind.WINDOW, GroupKind.STATE) and group.reach is None:
        raise BadValue(f"{field}.reach", None, f"a number in a group of kind {name}")
    if kind is GroupKind.LATENT and group.heads_total != 1:
        raise BadValue(f"{field}.heads_total", group.heads_total, "1 in a group of kind LATENT")
    if kind is GroupKind.PAGE and not group.fingerprint:
        raise BadValue(f"{field}.fingerprint", "", "not empty in a group of kind PAGE")
    if kind is GroupKind.STATE:
        for key in ("physical_per_block", "context_size"):
            if getattr(group, key) != 1:
                raise BadValue(f"{field}.{key}", getattr(group, key), "1 in a group of kind STATE")
    if kind in (GroupKind.STATE, GroupKind.PAGE):
        whole = group.tokens_per_block // group.physical_per_block
        states = [group.tokens_per_state, *(p.tokens_per_state for p in group.planes)]
        for tokens in states:
            if tokens not in (whole, None):
                bound = f"all {whole} tokens of a physical block in a group of kind {name}"
                raise BadValue(f"{field}.tokens_per_state", tokens, bound)


def _check_ranks(shard: Shard, limits: Limits) -> None:
    check_each_once("ranks", [entry.rank for entry in shard.ranks])
    own = next((entry for entry in shard.ranks if entry.rank == shard.rank), None)
    if own is None:
        raise BadValue("ranks", len(shard.ranks), f"holding the shard's own rank, {shard.rank}")
    described = {group.name: group for group in shard.groups}
    seen: dict[str, tuple[object, ...]] = {}
    for index, entry in enumerate(shard.ranks):
        field = f"ranks[{index}]"
        check_range(f"{field}.rank", entry.rank, 0, RANK_MAX)
        check_range(f"{field}.holdings", len(entry.holdings), 0, limits.groups_max)
        check_each_once(f"{field}.holdings", [holding.group for holding in entry.holdings])
        for holding in entry.holdings:
            name = f"{field}.holdings {holding.group!r}"
            _check_holding(name, holding, described.get(holding.group), limits)
            planes = sorted(split.plane for split in holding.splits)
            mine = (holding.context_size, holding.context_interleave, planes)
            if seen.setdefault(holding.group, mine) != mine:
                bound = f"{seen[holding.group]} as at the ranks before"
                raise BadValue(f"{name} context and splits", mine, bound)
    _check_own(own.holdings, shard.groups)


def _check_own(claimed: tuple[Holding, ...], groups: tuple[Group, ...]) -> None:
    """A rank's holdings stand in the order of its groups: their index is the group's index."""
    if len(claimed) != len(groups):
        raise BadValue("ranks: own holdings", len(claimed), f"one for each of {len(groups)} groups")
    for index, (holding, group) in enumerate(zip(claimed, groups, strict=True)):
        real = holding_of(group)
        for name in (
            "group",
            "head_start",
            "head_stop",
            "layers",
            "splits",
            "context_rank",
            "context_size",
            "context_interleave",
        ):
            said = getattr(holding, name)
            if said != getattr(real, name):
                shown = f"{len(said)} of them" if isinstance(said, tuple) else said
                bound = f"as in the shard's own groups[{index}]"
                raise BadValue(f"ranks: own holdings[{index}].{name}", shown, bound)


def _check_holding(field: str, holding: Holding, group: Group | None, limits: Limits) -> None:
    heads_max = COUNT_MAX if group is None else group.heads_total
    check_range(f"{field} head_start", holding.head_start, 0, heads_max - 1)
    check_range(f"{field} head_stop", holding.head_stop, holding.head_start + 1, heads_max)
    check_range(f"{field} layers", len(holding.layers), 1, limits.layers_max)
    check_each_once(f"{field} layers", holding.layers)
    _check_context(field, holding)
    check_range(f"{field} splits", len(holding.splits), 0, PLANES_MAX)
    check_each_once(f"{field} splits", [split.plane for split in holding.splits])
    totals = {p.name: p.split.total for p in (group.planes if group else ()) if p.split is not None}
    if group is not None and {split.plane for split in holding.splits} != totals.keys():
        bound = f"one for each of {sorted(totals)}"
        raise BadValue(f"{field} splits", [split.plane for split in holding.splits], bound)
    for split in holding.splits:
        name = f"{field} split {split.plane!r}"
        total = totals.get(split.plane, COUNT_MAX)
        check_range(f"{name} start", split.start, 0, total - 1)
        check_range(f"{name} stop", split.stop, split.start + 1, total)
