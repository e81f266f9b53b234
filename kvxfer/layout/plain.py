"""Shard to plain values and back, for the wire.

Owns the keys of the descriptor (spec section 7.1). Knows no encoding. Invariant:
`shard_from_plain` gives a shard that passed `check_shard`, or RemoteFault.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.layout.check import AREAS_PER_GROUP_MAX, PLANES_MAX, check_shard
from kvxfer.layout.geometry import (
    Area,
    Group,
    GroupKind,
    Holding,
    Plane,
    RankHolding,
    Shard,
)
from kvxfer.limits import Limits

TEXT_CHARACTERS_MAX = 512


def shard_to_plain(shard: Shard) -> dict[str, Any]:
    """Nested dicts, lists, text and integers; nothing else."""
    plain = _plain(shard)
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return {
            field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))
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

    def number(self, key: str) -> int:
        value = self._map.get(key)
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise _fault(f"{self._field}.{key}", value, "an integer from 0 to 2^64 - 1")
        return value

    def optional(self, key: str) -> int | None:
        return None if self._map.get(key) is None else self.number(key)

    def text(self, key: str) -> str:
        return self._text(key, self._map.get(key))

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
    )


def _plane(read: _Reader) -> Plane:
    return Plane(
        name=read.text("name"),
        area=read.number("area"),
        offset=read.number("offset"),
        content_bytes=read.number("content_bytes"),
    )


def _rank(read: _Reader) -> RankHolding:
    holdings = read.maps("holdings", read.limits.groups_max)
    return RankHolding(rank=read.number("rank"), holdings=tuple(_holding(r) for r in holdings))


def _holding(read: _Reader) -> Holding:
    return Holding(
        group=read.text("group"),
        head_start=read.number("head_start"),
        head_stop=read.number("head_stop"),
        layers=read.texts("layers", read.limits.layers_max),
    )
