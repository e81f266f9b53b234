"""Shard to plain values and back, for the wire.

Owns the keys of the descriptor (spec section 7.1). Knows no encoding. Invariant:
`shard_from_plain` gives a shard that passed `check_shard`, or RemoteFault.
"""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.layout.check import check_shard
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

T = TypeVar("T")
TEXT_BYTES_MAX = 512
ITEMS_MAX = 1 << 16


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
    shard = _shard(_Reader("shard", obj))
    try:
        check_shard(shard, limits)
    except BadValue as error:
        raise RemoteFault(error.field, error.value, error.bound) from None
    return shard


class _Reader:
    """Typed access to one untrusted map."""

    def __init__(self, field: str, obj: object) -> None:
        if type(obj) is not dict:
            raise RemoteFault(field, obj, "a map")
        self._field = field
        self._map = obj

    def number(self, key: str) -> int:
        value = self._map.get(key)
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise RemoteFault(f"{self._field}.{key}", value, "an integer from 0 to 2^64 - 1")
        return value

    def optional(self, key: str) -> int | None:
        return None if self._map.get(key) is None else self.number(key)

    def text(self, key: str) -> str:
        return self._text(key, self._map.get(key))

    def _text(self, key: str, value: object) -> str:
        if type(value) is not str or not value or len(value) > TEXT_BYTES_MAX:
            bound = f"text of 1 to {TEXT_BYTES_MAX} characters"
            raise RemoteFault(f"{self._field}.{key}", value, bound)
        return value

    def _items(self, key: str) -> list[object]:
        value = self._map.get(key)
        if type(value) is not list or len(value) > ITEMS_MAX:
            bound = f"an array of at most {ITEMS_MAX} items"
            raise RemoteFault(f"{self._field}.{key}", value, bound)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._text(key, item) for item in self._items(key))

    def maps(self, key: str) -> list[_Reader]:
        return [_Reader(f"{self._field}.{key}[{i}]", v) for i, v in enumerate(self._items(key))]


def _shard(read: _Reader) -> Shard:
    return Shard(
        rank=read.number("rank"),
        areas=tuple(_area(r) for r in read.maps("areas")),
        groups=tuple(_group(r) for r in read.maps("groups")),
        ranks=tuple(_rank(r) for r in read.maps("ranks")),
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
        raise RemoteFault("group.kind", kind, "a registered group kind")
    return Group(
        name=read.text("name"),
        kind=GroupKind(kind),
        tokens_per_block=read.number("tokens_per_block"),
        physical_per_block=read.number("physical_per_block"),
        physical_blocks=read.number("physical_blocks"),
        heads_total=read.number("heads_total"),
        head_start=read.number("head_start"),
        head_stop=read.number("head_stop"),
        layers=read.texts("layers"),
        planes=tuple(_plane(r) for r in read.maps("planes")),
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
    return RankHolding(
        rank=read.number("rank"), holdings=tuple(_holding(r) for r in read.maps("holdings"))
    )


def _holding(read: _Reader) -> Holding:
    return Holding(
        group=read.text("group"),
        head_start=read.number("head_start"),
        head_stop=read.number("head_stop"),
        layers=read.texts("layers"),
    )
