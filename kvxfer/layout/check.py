"""Is a shard what it says: bounds, overlap, divisibility, its own place in the rank map.

Owns the checks that run once, at the handshake and at an agent's start. Knows no
plan. Invariant: after `check_shard` every address of every block, layer, head and
slot lies inside its area, and no two of them share a byte (H1).
"""

from __future__ import annotations

import itertools

from kvxfer.errors import BadValue
from kvxfer.layout.geometry import Area, Group, Holding, Plane, Shard
from kvxfer.limits import Limits

ADDRESS_MAX = (1 << 64) - 1
COUNT_MAX = 1 << 40


def check_shard(shard: Shard, limits: Limits) -> None:
    """Raise BadValue naming the first field that is out of its bound."""
    _range("shard.rank", shard.rank, 0, (1 << 32) - 1)
    _range("shard.areas", len(shard.areas), 1, limits.groups_max * 4)
    _range("shard.groups", len(shard.groups), 1, limits.groups_max)
    _range("shard.ranks", len(shard.ranks), 1, limits.ranks_per_engine_max)
    for index, area in enumerate(shard.areas):
        _check_area(f"areas[{index}]", area)
    names = [group.name for group in shard.groups]
    if len(set(names)) != len(names):
        raise BadValue("groups", names, "every name once")
    for index, group in enumerate(shard.groups):
        _check_group(f"groups[{index}]", group, shard.areas, limits)
    _check_ranks(shard, limits)


def _range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadValue(field, value, f"from {low} to {high}")


def _check_area(field: str, area: Area) -> None:
    _range(f"{field}.base", area.base, 0, ADDRESS_MAX)
    _range(f"{field}.length", area.length, 1, ADDRESS_MAX - area.base)


def _check_group(field: str, group: Group, areas: tuple[Area, ...], limits: Limits) -> None:
    _range(f"{field}.tokens_per_block", group.tokens_per_block, 1, COUNT_MAX)
    _range(f"{field}.physical_per_block", group.physical_per_block, 1, group.tokens_per_block)
    if group.tokens_per_block % group.physical_per_block:
        bound = f"a divisor of tokens_per_block, {group.tokens_per_block}"
        raise BadValue(f"{field}.physical_per_block", group.physical_per_block, bound)
    _range(f"{field}.physical_blocks", group.physical_blocks, group.physical_per_block, COUNT_MAX)
    _range(f"{field}.heads_total", group.heads_total, 1, COUNT_MAX)
    _range(f"{field}.head_stop", group.head_stop, group.head_start + 1, group.heads_total)
    _range(f"{field}.head_start", group.head_start, 0, group.heads_total)
    _range(f"{field}.layers", len(group.layers), 1, limits.layers_max)
    if len(set(group.layers)) != len(group.layers):
        raise BadValue(f"{field}.layers", group.layers, "every layer once")
    _range(f"{field}.planes", len(group.planes), 1, 8)
    for axis, stride in _strides(group).items():
        _range(f"{field}.stride_{axis}", stride, 0, ADDRESS_MAX)
    for index, plane in enumerate(group.planes):
        _check_plane(f"{field}.planes[{index}]", group, plane, areas)
    _check_planes_apart(field, group)


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


def _check_planes_apart(field: str, group: Group) -> None:
    """Planes in one area are one more axis: each pair must fit between the others' steps."""
    planes = sorted(group.planes, key=lambda p: (p.area, p.offset))
    for first, second in itertools.pairwise(planes):
        if first.area != second.area:
            continue
        gap = second.offset - first.offset
        free_at = max(first.content_bytes, second.content_bytes)
        inner = first.content_bytes
        for stride, count, _ in _axes(group):
            if stride > gap:
                break
            inner += (count - 1) * stride
        outer = [stride for stride, _, _ in _axes(group) if stride > gap]
        if gap < inner or (outer and gap + inner > min(outer)) or gap < free_at:
            raise BadValue(
                f"{field}.planes", [first.name, second.name], "planes that share no byte"
            )


def _check_ranks(shard: Shard, limits: Limits) -> None:
    numbers = [entry.rank for entry in shard.ranks]
    if len(set(numbers)) != len(numbers):
        raise BadValue("ranks", numbers, "every rank once")
    own = next((entry for entry in shard.ranks if entry.rank == shard.rank), None)
    if own is None:
        raise BadValue("ranks", numbers, f"the shard's own rank, {shard.rank}")
    for entry in shard.ranks:
        _range(f"ranks[{entry.rank}].holdings", len(entry.holdings), 0, limits.groups_max)
        for holding in entry.holdings:
            _check_holding(f"ranks[{entry.rank}].holdings", holding, limits)
    claimed = {(h.group, h.head_start, h.head_stop, h.layers) for h in own.holdings}
    held = {(g.name, g.head_start, g.head_stop, g.layers) for g in shard.groups}
    if claimed != held:
        raise BadValue(f"ranks[{shard.rank}]", sorted(claimed), f"the shard's own groups, {held}")


def _check_holding(field: str, holding: Holding, limits: Limits) -> None:
    _range(f"{field}.head_start", holding.head_start, 0, COUNT_MAX)
    _range(f"{field}.head_stop", holding.head_stop, holding.head_start + 1, COUNT_MAX)
    _range(f"{field}.layers", len(holding.layers), 1, limits.layers_max)
