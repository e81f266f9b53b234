"""Compares what a peer did with what a vector file says.

Owns the two comparisons that are more than equality: effects of one step, and byte
ranges. Knows no peer. Invariant: an effect matches at most one of the file, and
text for people is never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def difference(wanted: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> str:
    """What is missing or too much among the effects of one step; empty where nothing is."""
    left = list(got)
    for effect in wanted:
        place = next((i for i, one in enumerate(left) if fits(effect, one)), None)
        if place is None:
            return f"lacks {dict(effect)}; gave {[dict(one) for one in got]}"
        del left[place]
    if left:
        return f"gave {dict(left[0])} too much"
    for link in {e["link"] for e in wanted if e["effect"] == "send"}:
        pairs = zip(_sent(wanted, link), _sent(got, link), strict=True)
        if not all(fits(effect, one) for effect, one in pairs):
            return f"sends over link {link} in another order: {_sent(got, link)}"
    return ""


def _sent(effects: Iterable[Mapping[str, Any]], link: int) -> list[Mapping[str, Any]]:
    return [e for e in effects if e["effect"] == "send" and e["link"] == link]


def fits(wanted: Any, got: Any) -> bool:
    """Equal, but for keys of maps that only `got` has, such as a detail for people."""
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        return all(key in got and fits(value, got[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(fits, wanted, got))
    return type(wanted) is type(got) and bool(wanted == got)


def joined_ranges(ranges: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Ranges by ascending target, joined where they touch on both sides.

    A range is (source area, source offset, target area, target offset, bytes).
    """
    found: list[list[int]] = []
    for one in sorted(ranges, key=lambda r: (r[2], r[3])):
        if found:
            last = found[-1]
            ends = (last[0], last[1] + last[4], last[2], last[3] + last[4])
            if ends == tuple(one[:4]):
                last[4] += one[4]
                continue
        found.append(list(one))
    return [tuple(one) for one in found]
