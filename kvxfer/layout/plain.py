"""Shard to plain values and back, for the wire.

Owns the keys of the descriptor (spec section 7.1). Knows no encoding. Invariant:
`shard_from_plain` gives a shard that passed `check_shard`, or RemoteFault.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.layout.bounds import AREAS_PER_GROUP_MAX, PLANES_MAX
from kvxfer.layout.check import check_shard
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Holding,
    Plane,
    PlaneSplit,
    RankHolding,
    Shard,
    Split,
)
from kvxfer.limits import Limits

TEXT_CHARACTERS_MAX = 512


def shard_to_plain(shard: Shard) -> dict[str, Any]:
    """Nested dicts, lists, text and integers; nothing else.

    A field that has its default value is left out: a rank map of thousands of ranks
    stays small. An area's fields are always there.
    """
    plain = _plain(shard)
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        given = {f.name: (getattr(value, f.name), f.default) for f in attrs.fields(type(value))}
        return {
            name: _plain(item)
            for name, (item, default) in given.items()
            if item != default or type(value) is Area
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, GroupKind):
        return int(value)
    return value


def shard_from_plain(obj: object, limits: Limits) -> Shard:
    """Any object to a checked Shard. RemoteFault names the field. Unknown keys are skipped."""
    shard = _shard(_Reader("shard", obj, limits))
    try:
        check_shard(shard, limits)
    except BadValue as error:
        raise RemoteFault(error.field, error.value, error.bound) from None
    return shard


def _fault(field: str, value: object, bound: str) -> RemoteFault:
    """A fault that shows the value only where that is short and cannot fail.

    Python refuses to print very long integers and very deep lists; neither may turn a
    peer's nonsense into an exception of another kind.
    """
    shown: object = value
    if type(value) is str:
        shown = value[:80]
    elif type(value) is int and value.bit_length() > 128:
        shown = f"an integer of {value.bit_length()} bits"
    elif value is not None and type(value) not in (bool, int):
        shown = type(value).__name__
    return RemoteFault(field, shown, bound)


class _Reader:
    """Typed access to one untrusted map."""

    def __init__(self, field: str, obj: object, limits: Limits) -> None:
        if type(obj) is not dict:
            raise _fault(field, obj, "a map")
        self._field = field
        self._map = obj
        self.limits = limits

    def number(self, key: str, default: int | None = None) -> int:
        """An integer; `default`, if there is one, where the key is absent."""
        value = self._map.get(key, default)
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise _fault(f"{self._field}.{key}", value, "an integer from 0 to 2^64 - 1")
        return value

    def optional(self, key: str) -> int | None:
        return None if self._map.get(key) is None else self.number(key)

    def text(self, key: str) -> str:
        return self._text(key, self._map.get(key))

    def optional_text(self, key: str) -> str:
        return self._text(key, self._map[key]) if key in self._map else ""

    def _text(self, key: str, value: object) -> str:
        if type(value) is not str or not 0 < len(value) <= TEXT_CHARACTERS_MAX:
            bound = f"text of 1 to {TEXT_CHARACTERS_MAX} characters"
            raise _fault(f"{self._field}.{key}", value, bound)
        return value

    def _items(self, key: str, count_max: int) -> list[object]:
        value = self._map.get(key)
        if type(value) is not list or len(value) > count_max:
            raise _fault(f"{self._field}.{key}", value, f"an array of at most {count_max} items")
        return value

    def texts(self, key: str, count_max: int) -> tuple[str, ...]:
        return tuple(self._text(key, item) for item in self._items(key, count_max))

    def numbers(self, key: str, count_max: int) -> tuple[int, ...]:
        found = []
        for value in self._items(key, count_max) if key in self._map else ():
            if type(value) is not int or not 0 <= value < 1 << 64:
                raise _fault(f"{self._field}.{key}", value, "integers from 0 to 2^64 - 1")
            found.append(value)
        return tuple(found)

    def optional_map(self, key: str) -> _Reader | None:
        value = self._map.get(key)
        return None if value is None else _Reader(f"{self._field}.{key}", value, self.limits)

    def optional_maps(self, key: str, count_max: int) -> list[_Reader]:
        return self.maps(key, count_max) if key in self._map else []

    def maps(self, key: str, count_max: int) -> list[_Reader]:
        return [
            _Reader(f"{self._field}.{key}[{i}]", item, self.limits)
            for i, item in enumerate(self._items(key, count_max))
        ]


def _shard(read: _Reader) -> Shard:
    limits = read.limits
    return Shard(
        rank=read.number("rank"),
        areas=tuple(_area(r) for r in read.maps("areas", limits.groups_max * AREAS_PER_GROUP_MAX)),
        groups=tuple(_group(r) for r in read.maps("groups", limits.groups_max)),
        ranks=tuple(_rank(r) for r in read.maps("ranks", limits.ranks_per_engine_max)),
    )


def _area(read: _Reader) -> Area:
    return Area(
        base=read.number("base"),
        length=read.number("length"),
        kind=read.text("kind"),
        device=read.number("device"),
    )


def _group(read: _Reader) -> Group:
    kind = read.number("kind")
    if kind not in list(GroupKind):
        raise _fault("group.kind", kind, "a registered group kind")
    return Group(
        name=read.text("name"),
        kind=GroupKind(kind),
        tokens_per_block=read.number("tokens_per_block"),
        physical_per_block=read.number("physical_per_block"),
        physical_blocks=read.number("physical_blocks"),
        heads_total=read.number("heads_total"),
        head_start=read.number("head_start"),
        head_stop=read.number("head_stop"),
        layers=read.texts("layers", read.limits.layers_max),
        planes=tuple(_plane(r) for r in read.maps("planes", PLANES_MAX)),
        stride_layer=read.number("stride_layer"),
        stride_block=read.number("stride_block"),
        stride_head=read.number("stride_head"),
        stride_slot=read.number("stride_slot"),
        null_block=read.optional("null_block"),
        tokens_per_state=read.number("tokens_per_state", 1),
        reach=read.optional("reach"),
        fingerprint=read.optional_text("fingerprint"),
        context_rank=read.number("context_rank", 0),
        context_size=read.number("context_size", 1),
        context_interleave=read.number("context_interleave", 1),
    )


def _plane(read: _Reader) -> Plane:
    return Plane(
        name=read.text("name"),
        area=read.number("area"),
        offset=read.number("offset"),
        content_bytes=read.number("content_bytes"),
        tokens_per_state=read.optional("tokens_per_state"),
        split=_split(read.optional_map("split")),
        element_bytes=read.optional("element_bytes"),
        stride_element=read.optional("stride_element"),
        stride_layer=read.optional("stride_layer"),
        stride_block=read.optional("stride_block"),
        stride_head=read.optional("stride_head"),
        stride_slot=read.optional("stride_slot"),
        layer_areas=read.numbers("layer_areas", read.limits.layers_max),
    )


def _split(read: _Reader | None) -> Split | None:
    if read is None:
        return None
    return Split(total=read.number("total"), start=read.number("start"), stop=read.number("stop"))


def _rank(read: _Reader) -> RankHolding:
    holdings = read.maps("holdings", read.limits.groups_max)
    return RankHolding(rank=read.number("rank"), holdings=tuple(_holding(r) for r in holdings))


def _holding(read: _Reader) -> Holding:
    return Holding(
        group=read.text("group"),
        head_start=read.number("head_start"),
        head_stop=read.number("head_stop"),
        layers=read.texts("layers", read.limits.layers_max),
        splits=tuple(_plane_split(r) for r in read.optional_maps("splits", PLANES_MAX)),
        context_rank=read.number("context_rank", 0),
        context_size=read.number("context_size", 1),
        context_interleave=read.number("context_interleave", 1),
    )


def _plane_split(read: _Reader) -> PlaneSplit:
    return PlaneSplit(
        plane=read.text("plane"), start=read.number("start"), stop=read.number("stop")
    )
