"""Bounds of a descriptor's numbers, and the check of one number against its bound.

Owns the figures of the specification, 7.3. Knows no descriptor. Invariant: no number
that passed makes an address that Python or numpy would have to wrap unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvxfer.errors import BadValue

ADDRESS_MAX = (1 << 64) - 1
COUNT_MAX = 1 << 40
PLANES_MAX = 8
AREAS_PER_GROUP_MAX = 4
CONTEXT_SIZE_MAX = 256
"""Ranks that share the tokens of one group."""


def check_range(field: str, value: int, low: int, high: int) -> None:
    """Raise BadValue unless `value` is an int from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue(field, type(value).__name__, "a Python int")
    if not low <= value <= high:
        raise BadValue(field, value, f"from {low} to {high}")


def check_divisor(field: str, value: int, whole: int) -> None:
    """Raise BadValue unless `value` is a positive divisor of `whole`."""
    check_range(field, value, 1, whole)
    if whole % value:
        raise BadValue(field, value, f"a divisor of {whole}")


def check_each_once(field: str, names: Sequence[str] | Sequence[int]) -> None:
    """Raise BadValue showing a name that stands twice."""
    if len(set(names)) != len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise BadValue(field, twice, "every name once")
