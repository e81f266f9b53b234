"""How vLLM's CPU kernels arrange a page, spelled out as planes with strides.

Owns the arrangements that were found by writing through the kernels themselves
(tests/adapters/test_vllm_real_pages.py does it again). Knows no tensor. Invariant: an
arrangement that is not known here is refused by name, never described as another.

A page is one (block, head): all keys, then all values. In columns ("vec", "vec16") an
element of all keys lies together, and values slot by slot. In tiles ("amx", 16 bits)
keys lie in tiles of 16 slots, and values in strips of 16 elements, two slots at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import Group, Plane

TILE_SLOTS = 16
STRIP_ELEMENTS = 16
PAIR = 2


@attrs.frozen(kw_only=True)
class _Page:
    """Sizes of a page: slots, and bytes of one slot's keys and of one element."""

    slots: int
    key_bytes: int
    element_bytes: int


def in_slots(group: Group, packing: str) -> Group:
    """The same bytes with every slot's place given. `packing`: "cpu-" and the kernel's name.

    Raises LayoutMismatch for an arrangement that is not known, or not of this element type.
    """
    (plane,) = group.planes
    arrange = ARRANGEMENTS.get(packing)
    element_type = group.fingerprint
    element_bytes = ELEMENT_BYTES.get(element_type)
    if arrange is None or element_bytes is None:
        raise LayoutMismatch(
            f"group {group.name!r}: pages packed as {packing!r}, of {element_type}, can only "
            "travel whole (option pages)"
        )
    key_bytes, odd = divmod(plane.content_bytes, 2)
    page = _Page(slots=group.slots_per_physical, key_bytes=key_bytes, element_bytes=element_bytes)
    if odd or group.stride_slot != plane.content_bytes:
        raise LayoutMismatch(
            f"group {group.name!r}: pages packed as {packing!r} whose slots are "
            f"{group.stride_slot} bytes apart, not {plane.content_bytes}"
        )
    name, keys, values = arrange(plane, page)
    values = attrs.evolve(values, offset=values.offset + page.slots * key_bytes)
    return attrs.evolve(group, planes=(keys, values), fingerprint=f"{group.fingerprint} cpu-{name}")


def _columns(plane: Plane, page: _Page) -> tuple[str, Plane, Plane]:
    size = page.element_bytes
    keys = attrs.evolve(
        plane,
        name="k",
        content_bytes=page.key_bytes,
        element_bytes=size,
        stride_element=page.slots * size,
        stride_slot=size,
    )
    values = attrs.evolve(plane, name="v", content_bytes=page.key_bytes, stride_slot=page.key_bytes)
    return "columns", keys, values


def _tiles(plane: Plane, page: _Page) -> tuple[str, Plane, Plane]:
    size = page.element_bytes
    if size != 2 or page.slots % TILE_SLOTS or page.key_bytes % (STRIP_ELEMENTS * size):
        raise LayoutMismatch("pages packed in tiles hold 16-bit elements, in multiples of 16")
    tile, pair = TILE_SLOTS * page.key_bytes, PAIR * page.key_bytes
    keys = attrs.evolve(
        plane, name="k", content_bytes=tile, tokens_per_state=TILE_SLOTS, stride_slot=tile
    )
    strip = PAIR * STRIP_ELEMENTS * size
    values = attrs.evolve(
        plane,
        name="v",
        content_bytes=pair,
        tokens_per_state=PAIR,
        element_bytes=strip,
        stride_element=page.slots // PAIR * strip,
        stride_slot=strip,
    )
    return "tiles", keys, values


ARRANGEMENTS: dict[str, Callable[[Plane, _Page], tuple[str, Plane, Plane]]] = {
    "cpu-vec": _columns,
    "cpu-vec16": _columns,
    "cpu-amx": _tiles,
}

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""By a group's fingerprint; quantised elements are not among them."""
