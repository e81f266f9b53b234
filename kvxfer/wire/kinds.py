"""Kinds of fields: how one value is written and read.

Owns the check of every value that comes from a peer: type, range, and the named
bound that it must keep. Knows CBOR's value types, no message. Invariant: a
reader gives a value within its bound or raises RemoteFault naming the field;
nothing else leaves it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

import attrs
from cbor2 import CBORTag

from kvxfer.core.ids import Part, Reason
from kvxfer.core.messages import BlockRuns, Column
from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits
from kvxfer.wire.cbor import TAG_U32_LE, TAG_U64_LE

WIDTHS = {TAG_U32_LE: 4, TAG_U64_LE: 8}
TAGS = {4: TAG_U32_LE, 8: TAG_U64_LE}
TOKEN_MAX = 1 << 40
U32_MAX = (1 << 32) - 1

E = TypeVar("E", bound=IntEnum)

Write = Callable[[Any], Any]
Read = Callable[[str, Any, Limits], Any]


@attrs.frozen
class Kind:
    """How a field's value becomes a CBOR value, and back."""

    write: Write
    read: Read


def _same(value: Any) -> Any:
    return value


def number(low: int, high: int) -> Kind:
    """An integer in [low, high]."""

    def read(field: str, value: Any, _limits: Limits) -> int:
        if type(value) is not int or not low <= value <= high:
            raise RemoteFault(field, value, f"an integer from {low} to {high}")
        return value

    return Kind(_same, read)


def text(bytes_max: Callable[[Limits], int], *, empty: bool = False) -> Kind:
    """UTF-8 text, bounded in bytes."""

    def read(field: str, value: Any, limits: Limits) -> str:
        low, high = int(not empty), bytes_max(limits)
        if type(value) is not str:
            raise RemoteFault(field, value, f"text of {low} to {high} bytes")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise RemoteFault(field, value, "text without surrogates") from None
        if not low <= size <= high:
            raise RemoteFault(field, value, f"text of {low} to {high} bytes")
        return value

    return Kind(_same, read)


def prose(bytes_max: Callable[[Limits], int]) -> Kind:
    """Text for people: what is sent is cut to the default bound, and always has an encoding."""
    cut_at = bytes_max(Limits())

    def write(value: str) -> str:
        return value.encode(errors="replace")[:cut_at].decode(errors="ignore")

    return Kind(write, text(bytes_max, empty=True).read)


def binary(bytes_max: Callable[[Limits], int]) -> Kind:
    """A byte string, bounded."""

    def read(field: str, value: Any, limits: Limits) -> bytes:
        high = bytes_max(limits)
        if type(value) is not bytes or len(value) > high:
            raise RemoteFault(field, value, f"at most {high} bytes")
        return value

    return Kind(_same, read)


def exactly(size: int) -> Kind:
    """A byte string of one length."""

    def read(field: str, value: Any, _limits: Limits) -> bytes:
        if type(value) is not bytes or len(value) != size:
            raise RemoteFault(field, value, f"{size} bytes")
        return value

    return Kind(_same, read)


def texts(bytes_max: int, count_max: int) -> Kind:
    """An array of different texts."""
    item = text(lambda _limits: bytes_max)

    def read(field: str, value: Any, limits: Limits) -> tuple[str, ...]:
        items = _list(field, value, count_max)
        found = tuple(item.read(f"{field}[{i}]", one, limits) for i, one in enumerate(items))
        if len(set(found)) != len(found):
            raise RemoteFault(field, value, "every text once")
        return found

    return Kind(list, read)


def enum(members: type[E]) -> Kind:
    """A registered number; an unregistered one is a fault."""

    def read(field: str, value: Any, _limits: Limits) -> E:
        try:
            if type(value) is int:
                return members(value)
        except ValueError:
            pass
        raise RemoteFault(field, value, f"a number of the registry of {members.__name__}")

    return Kind(int, read)


def _write_reason(reason: Reason) -> int:
    """UNREGISTERED is a receiver's stand-in, never sent (K-5.2.7): no reason goes out for it."""
    return int(Reason.NONE if reason is Reason.UNREGISTERED else reason)


def _read_reason(field: str, value: Any, _limits: Limits) -> Reason:
    if type(value) is not int or not 0 <= value < 1 << 16:
        raise RemoteFault(field, value, "an integer from 0 to 65535")
    try:
        return Reason(value)
    except ValueError:
        # A newer minor version may name more reasons; the outcome does not depend on them.
        return Reason.UNREGISTERED


def _read_flag(field: str, value: Any, _limits: Limits) -> bool:
    if type(value) is not bool:
        raise RemoteFault(field, value, "true or false")
    return value


U32 = number(0, U32_MAX)
U64 = number(0, (1 << 64) - 1)
ATTEMPT = number(1, (1 << 32) - 1)
INCARNATION = number(1, (1 << 64) - 1)
TOKEN = number(0, TOKEN_MAX)
MILLISECONDS = number(0, (1 << 32) - 1)
REASON = Kind(_write_reason, _read_reason)
FLAG = Kind(_same, _read_flag)


def _list(field: str, value: Any, count_max: int) -> list[Any]:
    if type(value) is not list or len(value) > count_max:
        raise RemoteFault(field, value, f"an array of at most {count_max} items")
    return value


def _tuple(field: str, value: Any, count: int) -> list[Any]:
    # A newer minor version may append items; those of this version come first.
    if type(value) is not list or len(value) < count:
        raise RemoteFault(field, value, f"an array of at least {count} items")
    return value


def _write_part(part: Part) -> list[int]:
    items = [part.producer_rank, part.group, part.token_start, part.token_stop]
    if part.layer_stop:
        items += [part.layer_start, part.layer_stop]
    return items


def _read_part(field: str, value: Any, limits: Limits) -> Part:
    items = _tuple(field, value, 4)
    if len(items) == 5:
        raise RemoteFault(field, value, "layer_start and layer_stop, or neither")
    rank, group, start, stop = items[:4]
    first, last = items[4:6] if len(items) > 5 else (0, 0)
    layers_max = limits.layers_max
    if (
        type(rank) is type(group) is type(start) is type(stop) is type(first) is type(last) is int
        and 0 <= rank <= U32_MAX
        and 0 <= group < limits.groups_max
        and 0 <= start < stop <= TOKEN_MAX
        and (0 <= first < last <= layers_max or len(items) == 4)
    ):
        return Part(rank, group, start, stop, first, last)
    # Slow, once: find the item to name.
    U32.read(f"{field}.producer_rank", rank, limits)
    number(0, limits.groups_max - 1).read(f"{field}.group", group, limits)
    TOKEN.read(f"{field}.token_start", start, limits)
    number(start + 1, TOKEN_MAX).read(f"{field}.token_stop", stop, limits)
    number(0, layers_max).read(f"{field}.layer_start", first, limits)
    number(first + 1, layers_max).read(f"{field}.layer_stop", last, limits)
    raise RemoteFault(field, value, "a part")


PART = Kind(_write_part, _read_part)


def _read_parts(field: str, value: Any, limits: Limits) -> tuple[Part, ...]:
    items = _list(field, value, limits.parts_per_edge_max)
    parts = tuple(_read_part(f"{field}[{i}]", item, limits) for i, item in enumerate(items))
    if len(set(parts)) != len(parts):
        raise RemoteFault(field, value, "every part once")
    return parts


PARTS = Kind(lambda parts: [_write_part(part) for part in parts], _read_parts)


def _write_column(column: Column) -> CBORTag:
    return CBORTag(TAGS[column.width], column.data)


def _read_column(field: str, value: Any, limits: Limits) -> Column:
    width = WIDTHS.get(value.tag) if type(value) is CBORTag else None
    if width is None or type(value.value) is not bytes:
        raise RemoteFault(field, value, "a typed array with tag 70 or 71 (RFC 8746)")
    column = Column(width, value.value)
    if len(value.value) % width:
        raise RemoteFault(field, len(value.value), f"a multiple of {width} bytes")
    if len(column) > limits.blocks_per_grant_max:
        raise RemoteFault(field, len(column), f"at most {limits.blocks_per_grant_max} entries")
    return column


def _block_count(lengths: Column) -> int:
    """Sum of a column. Integers of Python cannot overflow, and no block list is built."""
    values = array("I" if lengths.width == 4 else "Q", lengths.data)
    if sys.byteorder == "big":
        values.byteswap()
    return sum(values)


def _write_runs(tables: tuple[BlockRuns, ...]) -> list[list[Any]]:
    return [
        [t.group, t.first_token, _write_column(t.starts), _write_column(t.lengths)] for t in tables
    ]


def _read_runs(field: str, value: Any, limits: Limits) -> tuple[BlockRuns, ...]:
    tables = []
    for i, item in enumerate(_list(field, value, limits.groups_max)):
        name = f"{field}[{i}]"
        group, first_token, starts, lengths = _tuple(name, item, 4)[:4]
        runs = BlockRuns(
            group=number(0, limits.groups_max - 1).read(f"{name}.group", group, limits),
            first_token=TOKEN.read(f"{name}.first_token", first_token, limits),
            starts=_read_column(f"{name}.starts", starts, limits),
            lengths=_read_column(f"{name}.lengths", lengths, limits),
        )
        if len(runs.starts) != len(runs.lengths):
            raise RemoteFault(f"{name}.lengths", len(runs.lengths), "as many as starts")
        tables.append(runs)
    blocks = sum(_block_count(t.lengths) for t in tables)
    if blocks > limits.blocks_per_grant_max:
        raise RemoteFault(field, blocks, f"at most {limits.blocks_per_grant_max} blocks in all")
    if len({t.group for t in tables}) != len(tables):
        raise RemoteFault(field, value, "one table for each group")
    return tuple(tables)


RUNS = Kind(_write_runs, _read_runs)
