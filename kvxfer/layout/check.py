"""Is a shard what it says: bounds, overlap, divisibility, its own place in the rank map.

Owns the checks that run once, at the handshake and at an agent's start. Knows no
plan. Invariant: after `check_shard` every address of every block, layer, head and
slot lies inside its area, and no two of them share a byte (H1). The cost grows
with the number of axes, areas and names, never with the bytes of the cache.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import Area, Group, Holding, Plane, Shard
from kvxfer.limits import Limits

ADDRESS_MAX = (1 << 64) - 1
COUNT_MAX = 1 << 40
PLANES_MAX = 8
AREAS_PER_GROUP_MAX = 4


def check_shard(shard: Shard, limits: Limits) -> None:
    """Raise BadValue naming the first field that is out of its bound."""
    _range("shard.rank", shard.rank, 0, (1 << 32) - 1)
    _range("shard.areas", len(shard.areas), 1, limits.groups_max * AREAS_PER_GROUP_MAX)
    _range("shard.groups", len(shard.groups), 1, limits.groups_max)
    _range("shard.ranks", len(shard.ranks), 1, limits.ranks_per_engine_max)
    for index, area in enumerate(shard.areas):
        _check_area(f"areas[{index}]", area)
    _each_once("groups", [group.name for group in shard.groups])
    for index, group in enumerate(shard.groups):
        _check_group(f"groups[{index}]", group, shard.areas, limits)
    _check_ranks(shard, limits)


def _range(field: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue(field, type(value).__name__, "a Python int")
    if not low <= value <= high:
        raise BadValue(field, value, f"from {low} to {high}")


def _each_once(field: str, names: Sequence[str] | Sequence[int]) -> None:
    if len(set(names)) != len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise BadValue(field, twice, "every name once")


def _check_area(field: str, area: Area) -> None:
    _range(f"{field}.base", area.base, 0, ADDRESS_MAX)
    _range(f"{field}.length", area.length, 1, ADDRESS_MAX - area.base)


def _check_group(field: str, group: Group, areas: tuple[Area, ...], limits: Limits) -> None:
    _check_blocks(field, group)
    _range(f"{field}.heads_total", group.heads_total, 1, COUNT_MAX)
    _range(f"{field}.head_start", group.head_start, 0, group.heads_total - 1)
    _range(f"{field}.head_stop", group.head_stop, group.head_start + 1, group.heads_total)
    _range(f"{field}.layers", len(group.layers), 1, limits.layers_max)
    _each_once(f"{field}.layers", group.layers)
    _range(f"{field}.planes", len(group.planes), 1, PLANES_MAX)
    _each_once(f"{field}.planes", [plane.name for plane in group.planes])
    for axis, stride in _strides(group).items():
        _range(f"{field}.stride_{axis}", stride, 0, ADDRESS_MAX)
    for index, plane in enumerate(group.planes):
        _check_plane(f"{field}.planes[{index}]", group, plane, areas)
    for first, second in itertools.combinations(group.planes, 2):
        _check_planes_apart(f"{field}.planes", group, areas, first, second)


def _check_blocks(field: str, group: Group) -> None:
    per_manager = group.physical_per_block
    _range(f"{field}.tokens_per_block", group.tokens_per_block, 1, COUNT_MAX)
    _range(f"{field}.physical_per_block", per_manager, 1, group.tokens_per_block)
    if group.tokens_per_block % per_manager:
        bound = f"a divisor of tokens_per_block, {group.tokens_per_block}"
        raise BadValue(f"{field}.physical_per_block", per_manager, bound)
    _range(f"{field}.physical_blocks", group.physical_blocks, per_manager, COUNT_MAX)
    if group.physical_blocks % per_manager:
        bound = f"a multiple of physical_per_block, {per_manager}"
        raise BadValue(f"{field}.physical_blocks", group.physical_blocks, bound)
    if group.null_block is not None:
        _range(f"{field}.null_block", group.null_block, 0, group.manager_blocks - 1)


def _strides(group: Group) -> dict[str, int]:
    return {
        "layer": group.stride_layer,
        "block": group.stride_block,
        "head": group.stride_head,
        "slot": group.stride_slot,
    }


def _axes(group: Group) -> list[tuple[int, int, str]]:
    """(stride, count, name) of the axes that have more than one position, inner first."""
    counts = {
        "layer": len(group.layers),
        "block": group.physical_blocks,
        "head": group.head_stop - group.head_start,
        "slot": group.slots_per_physical,
    }
    axes = [(stride, counts[name], name) for name, stride in _strides(group).items()]
    return sorted(axis for axis in axes if axis[1] > 1)


def _check_plane(field: str, group: Group, plane: Plane, areas: tuple[Area, ...]) -> None:
    _range(f"{field}.area", plane.area, 0, len(areas) - 1)
    _range(f"{field}.content_bytes", plane.content_bytes, 1, COUNT_MAX)
    extent = plane.content_bytes
    for stride, count, name in _axes(group):
        if stride < extent:
            bound = f"at least {extent}, or the {name} axis overlaps what is inside it"
            raise BadValue(f"{field} stride_{name}", stride, bound)
        extent += (count - 1) * stride
    _range(f"{field}.offset", plane.offset, 0, ADDRESS_MAX)
    if plane.offset + extent > areas[plane.area].length:
        bound = f"at most {areas[plane.area].length}, the length of its area"
        raise BadValue(f"{field} last byte", plane.offset + extent, bound)


def _check_planes_apart(
    field: str, group: Group, areas: tuple[Area, ...], first: Plane, second: Plane
) -> None:
    """Two planes are one more axis, of step `gap`, which must nest among the others.

    Absolute addresses are compared, since two areas may lie over each other.
    """
    low, high = sorted((first, second), key=lambda p: areas[p.area].base + p.offset)
    gap = areas[high.area].base + high.offset - areas[low.area].base - low.offset
    axes = _axes(group)
    inner = sum((count - 1) * stride for stride, count, _ in axes if stride <= gap)
    span = gap + inner + high.content_bytes
    apart = gap >= inner + low.content_bytes
    for stride, count, _ in axes:
        if stride > gap:
            apart = apart and stride >= span
            span += (count - 1) * stride
    if not apart:
        raise BadValue(field, [first.name, second.name], "planes that share no byte")


def _check_ranks(shard: Shard, limits: Limits) -> None:
    numbers = [entry.rank for entry in shard.ranks]
    _each_once("ranks", numbers)
    own = next((entry for entry in shard.ranks if entry.rank == shard.rank), None)
    if own is None:
        raise BadValue("ranks", len(numbers), f"holding the shard's own rank, {shard.rank}")
    totals = {group.name: group.heads_total for group in shard.groups}
    for index, entry in enumerate(shard.ranks):
        field = f"ranks[{index}]"
        _range(f"{field}.rank", entry.rank, 0, (1 << 32) - 1)
        _range(f"{field}.holdings", len(entry.holdings), 0, limits.groups_max)
        _each_once(f"{field}.holdings", [holding.group for holding in entry.holdings])
        for holding in entry.holdings:
            heads_max = totals.get(holding.group, COUNT_MAX)
            _check_holding(f"{field}.holdings {holding.group!r}", holding, heads_max, limits)
    _check_own(own.holdings, shard.groups)


def _check_own(claimed: tuple[Holding, ...], groups: tuple[Group, ...]) -> None:
    """A rank's holdings stand in the order of its groups: their index is the group's index."""
    if len(claimed) != len(groups):
        raise BadValue("ranks: own holdings", len(claimed), f"one for each of {len(groups)} groups")
    for index, (holding, group) in enumerate(zip(claimed, groups, strict=True)):
        for name in ("group", "head_start", "head_stop", "layers"):
            said = getattr(holding, name)
            if said != getattr(group, "name" if name == "group" else name):
                shown = f"{len(said)} layers" if name == "layers" else said
                bound = f"as in the shard's own groups[{index}]"
                raise BadValue(f"ranks: own holdings[{index}].{name}", shown, bound)


def _check_holding(field: str, holding: Holding, heads_max: int, limits: Limits) -> None:
    _range(f"{field} head_start", holding.head_start, 0, heads_max - 1)
    _range(f"{field} head_stop", holding.head_stop, holding.head_start + 1, heads_max)
    _range(f"{field} layers", len(holding.layers), 1, limits.layers_max)
    _each_once(f"{field} layers", holding.layers)
