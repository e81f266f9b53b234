"""K beside V in one plane, described as two: so that an engine that keeps them apart can pair.

Owns that rewriting of a descriptor. Knows no engine: whether the first half of a slot is K
is its caller's word. Invariant: the same bytes are described, at the same addresses; two
planes at a fixed distance are one more axis, so nothing is lost where both sides split.
"""

from __future__ import annotations

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Group, GroupKind, Plane, Shard

PACKED = "kv"
HALVES = ("k", "v")
_WITH_HALVES = (GroupKind.FULL, GroupKind.WINDOW, GroupKind.PAGE)


def with_halves(shard: Shard) -> Shard:
    """The shard with planes 'k' and 'v' in place of each plane 'kv'.

    Groups of latents and states have no such plane and stay as they are. Raises
    LayoutMismatch where a plane does not divide in two.
    """
    return attrs.evolve(shard, groups=tuple(_halved(group) for group in shard.groups))


def _halved(group: Group) -> Group:
    if group.kind not in _WITH_HALVES or [p.name for p in group.planes] != [PACKED]:
        return group
    (plane,) = group.planes
    if plane.content_bytes % 2 or plane.element_bytes is not None:
        raise LayoutMismatch(
            f"group {group.name!r}: a slot of {plane.content_bytes} bytes, in elements of "
            f"{plane.element_bytes or plane.content_bytes}, has no two halves side by side"
        )
    half = plane.content_bytes // 2
    planes: tuple[Plane, ...] = tuple(
        attrs.evolve(plane, name=name, offset=plane.offset + number * half, content_bytes=half)
        for number, name in enumerate(HALVES)
    )
    return attrs.evolve(group, planes=planes)
