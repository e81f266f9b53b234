"""Do two engines mean the same bytes by the same group: what must agree, and what may differ.

Owns the comparison of two groups of one name (spec 7.4). Knows no addresses and no
ranks. Invariant: after `check_alike` a plane's content has one meaning at both
sides, and what remains different (order, strides, block size, splits) is arithmetic.
"""

from __future__ import annotations

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Group, GroupKind, Plane


def check_alike(source: Group, target: Group) -> None:
    """Raise LayoutMismatch naming the group, the field and, if it is one, the plane."""
    _same(target.name, "kind", source.kind.name, target.kind.name)
    for name in ("heads_total", "reach", "fingerprint"):
        _same(target.name, name, getattr(source, name), getattr(target, name))
    if target.whole_blocks and source.tokens_per_entry % target.tokens_per_entry:
        raise LayoutMismatch(
            f"group {target.name!r}: the consumer gives the blocks of a window to later requests "
            f"and needs {target.tokens_per_entry} tokens whole, the producer keeps them by "
            f"{source.tokens_per_entry}: without a prefix cache at the consumer they can pair"
        )
    # Planes are matched by name; their order is each side's own affair.
    here, there = ({p.name: p for p in group.planes} for group in (source, target))
    _same(target.name, "planes", _contents(source), _contents(target))
    for name, plane in there.items():
        _check_plane(source, here[name], target, plane)


def _same(group: str, field: str, source: object, target: object) -> None:
    if source != target:
        raise LayoutMismatch(
            f"group {group!r}: {field} is {source} at the producer and {target} at the consumer"
        )


def _contents(group: Group) -> dict[str, int]:
    return {plane.name: plane.content_bytes for plane in group.planes}


def _check_plane(source: Group, here: Plane, target: Group, there: Plane) -> None:
    where = f"plane {there.name!r}: "
    totals = [p.split.total if p.split is not None else None for p in (here, there)]
    _same(target.name, f"{where}split.total", *totals)
    if target.kind is not GroupKind.STATE or target.reach != 1:
        # Where only the last state moves it does not matter how many tokens led to it.
        tokens = [state_tokens(source, here), state_tokens(target, there)]
        _same(target.name, f"{where}tokens_per_state", *tokens)
    sizes = [p.element_bytes or p.content_bytes for p in (here, there)]
    if max(sizes) % min(sizes):
        raise LayoutMismatch(
            f"group {target.name!r}: {where}element_bytes are {sizes[0]} at the producer and "
            f"{sizes[1]} at the consumer: neither divides the other"
        )


def state_tokens(group: Group, plane: Plane) -> int:
    """Tokens of one slot of a plane."""
    own = plane.tokens_per_state
    return group.tokens_per_state if own is None else own
