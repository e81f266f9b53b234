"""CBOR at the border: total, bounded, with nothing surprising in the result.

Owns the calls into cbor2. Knows no message. Invariant: any bytes give a value
made of plain types and typed arrays, or RemoteFault; no other exception, no
executable tag, no unbounded nesting, no second value behind the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cbor2

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.limits import Limits

DEPTH_MAX = 16
PLAIN_ITEMS_MAX = 1 << 17
"""Items of one plain object."""

TAG_U32_LE = 70
TAG_U64_LE = 71
"""Typed arrays of RFC 8746: little-endian uint32 and uint64."""


def dumps(value: Any) -> bytes:
    """Deterministic encoding of a value (RFC 8949 section 4.2.1, map order as given).

    Raises BadValue for what has no encoding, such as text with a lone surrogate.
    """
    try:
        return cbor2.dumps(value)
    except (cbor2.CBOREncodeError, UnicodeEncodeError) as error:
        raise BadValue("message", type(value).__name__, f"an encoding ({error})") from None


def items_max(limits: Limits) -> int:
    """Items that a message within its limits can need, with room for fields of newer versions."""
    return 4096 + 16 * limits.parts_per_edge_max + 16 * limits.groups_max


def loads(data: bytes | memoryview, limits: Limits, count_max: int | None = None) -> Any:
    """Decode exactly one value of at most `count_max` items.

    Raises RemoteFault where the bytes are anything else.
    """
    if len(data) > limits.message_bytes_max:
        raise RemoteFault("message", len(data), f"at most {limits.message_bytes_max} bytes")
    whole = bytes(data)
    entries = _scan(whole, items_max(limits) if count_max is None else count_max)
    try:
        value = cbor2.loads(whole)
    except Exception as error:  # noqa: BLE001 - whatever the bytes did, the peer sent them
        raise RemoteFault("message", whole[:16], f"one CBOR value ({error})") from None
    if _entries(value) != entries:
        raise RemoteFault("message", entries, "every key of a map once")
    return value


def _entries(value: Any) -> int:
    """Map entries of a decoded value; fewer than were read means that a key came twice."""
    count = 0
    inner: Iterable[Any] = ()
    if type(value) is dict:
        count, inner = len(value), value.values()
    elif type(value) is list:
        inner = value
    for item in inner:
        if type(item) is dict or type(item) is list:
            count += _entries(item)
    return count


def _scan(data: bytes, count_max: int) -> int:
    """Walk the heads once, before anything is built; gives the number of map entries.

    Holds: every length is inside the data, nesting and items are bounded, map keys
    are integers or text, tags are typed arrays, one value and nothing behind it.
    cbor2 alone would follow shared references, build dates, patterns and big
    numbers, hash keys of the peer's making, and turn 16 MB into a gigabyte of lists.
    """
    size = len(data)
    position = entries = 0
    left = items = 1
    in_map = False
    outer: list[tuple[int, bool]] = []
    while True:
        while left == 0:
            if not outer:
                if position != size:
                    raise RemoteFault("message", size - position, "no bytes behind the value")
                return entries
            left, in_map = outer.pop()
        left -= 1
        first = data[position] if position < size else 0xFF
        if first & 31 < 24 and first < 0xE0:
            # Most heads are this one byte; the call is what takes time.
            major, argument, position = first >> 5, first & 31, position + 1
        else:
            major, argument, position = _head(data, position)
        if in_map and left & 1 and major not in (0, 1, 3):
            raise RemoteFault("message", major, "a map key of integer or text")
        if major < 2 or major == 7:
            continue
        if major == 6:
            if argument not in (TAG_U32_LE, TAG_U64_LE):
                raise RemoteFault("message", argument, "no tag but 70 and 71 (RFC 8746)")
            major, argument, position = _head(data, position)
            if major != 2:
                raise RemoteFault("message", major, "a byte string in a typed array")
        if major < 4:
            position += argument
            if position > size:
                raise RemoteFault("message", argument, "a string length inside the message")
            continue
        count = argument * (major - 3)
        items += count
        if count > size - position or items > count_max:
            raise RemoteFault("message", argument, f"an item count inside it, below {count_max}")
        entries += argument * (major - 4)
        outer.append((left, in_map))
        left, in_map = count, major == 5
        if len(outer) > DEPTH_MAX:
            raise RemoteFault("message", len(outer), f"nested at most {DEPTH_MAX} deep")


def _head(data: bytes, position: int) -> tuple[int, int, int]:
    """Major type, argument, and where the head ends (RFC 8949 section 3)."""
    if position >= len(data):
        raise RemoteFault("message", len(data), "whole: it ends inside a value")
    first = data[position]
    major, low = first >> 5, first & 31
    position += 1
    if low < 24:
        if major == 7 and low not in (20, 21, 22):
            raise RemoteFault("message", low, "true, false or null of the simple values")
        return major, low, position
    if low > 27 or major == 7:
        # Indefinite lengths, floats and other simple values are not part of the protocol.
        raise RemoteFault("message", first, "definite lengths and integers")
    end = position + (1 << (low - 24))
    if end > len(data):
        raise RemoteFault("message", len(data), "whole: it ends inside a head")
    return major, int.from_bytes(data[position:end], "big"), end


def encode_plain(value: Any) -> bytes:
    """Encode a plain object: None, bool, int of 64 bits, str, bytes, list, dict."""
    _check_plain(value, 1)
    return dumps(value)


def decode_plain(data: bytes | memoryview, limits: Limits) -> Any:
    """Decode a plain object. RemoteFault for anything else."""
    value = loads(data, limits, PLAIN_ITEMS_MAX)
    try:
        _check_plain(value, 1)
    except BadValue as error:
        raise RemoteFault("plain", error.value, error.bound) from None
    return value


def _check_plain(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise BadValue("plain", type(value).__name__, f"nested at most {DEPTH_MAX} deep")
    if value is None or type(value) in (bool, str, bytes):
        return
    if type(value) is int:
        if not -(1 << 63) <= value < 1 << 64:
            raise BadValue("plain", value, "an integer of 64 bits")
    elif type(value) in (list, tuple):
        for item in value:
            _check_plain(item, depth + 1)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) not in (str, int):
                raise BadValue("plain", key, "a key of text or integer")
            _check_plain(item, depth + 1)
    else:
        raise BadValue("plain", type(value).__name__, "a plain type")
