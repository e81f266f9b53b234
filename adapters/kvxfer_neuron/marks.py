"""What two caches must have in common besides their numbers: the fingerprint of a group.

Owns its text. Invariant: two caches whose equal bytes would mean different values never
have one fingerprint; plain elements have that of vLLM's adapter, so that the two can pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kvxfer.errors import BadValue


@attrs.frozen(kw_only=True)
class Elements:
    """What the bytes of a cache stand for."""

    dtype: str
    """As torch names it, without 'torch.'."""
    scales: str = ""
    """Convention of an FP8 cache, e.g. 'e4m3-240 per-module': Trn2 and Trn3 differ in the
    finite range of e4m3, and scales live on the module, so that bytes alone do not tell."""
    packing: str = ""
    """Name of the arrangement inside a (block, head) page where it is not token by token,
    as `fp8_packed_kv` makes it: such pages are opaque."""

    @property
    def fingerprint(self) -> str:
        """Raises BadValue for FP8 elements without a convention."""
        if "float8" in self.dtype and not self.scales:
            raise BadValue("scales", self.scales, f"the convention of scales, for {self.dtype}")
        return " ".join(part for part in (self.dtype, self.scales, self.packing) if part)


_KEYS = {"cache_scales": "scales", "cache_packing": "packing"}
"""Keys of `kv_connector_extra_config`, and what of `Elements` they give."""


def marks_of(extra: Mapping[str, Any]) -> dict[str, str]:
    """What the operator says of the elements, by their names in `Elements`.

    Raises BadValue with the key.
    """
    marks = {}
    for key, name in _KEYS.items():
        if key not in extra:
            continue
        value = extra[key]
        if not isinstance(value, str) or not value:
            raise BadValue(key, value, "a name that is not empty")
        marks[name] = value
    return marks
