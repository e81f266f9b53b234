"""Messages of this library in the plain form of the vector files, and back.

Owns the names that the files use for our classes. Knows no bytes and no machine.
Invariant: what `to_plain` gives, `from_plain` takes back to an equal message.

Two forms: in codec.json numbers stay numbers and a part is a map; in the files of
the machines reasons and roles go by name, a part is its four or six numbers. In both,
what may be left out on the wire is left out where it has its default.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import attrs

from kvxfer.core.ids import Attempt, Incarnation, Initiator, Part, Reason, Role, TransferId
from kvxfer.core.messages import BlockRuns, Column, Header, Message, MessageType
from kvxfer.wire.schema import BY_CLASS, BY_TYPE, REQUIRED

_BYTES = ("blob", "shard", "digest", "nonce", "mac")


def to_numbers(value: object) -> Any:
    """The form of codec.json: byte strings in hex, columns as arrays, all else by name."""
    return _plain(value, named=False)


def to_plain(message: Message) -> dict[str, Any]:
    """The form of the machines' files, with the type under "type"."""
    kind = BY_CLASS[type(message)].number.name
    return {"type": kind, **_plain(message, named=True)}


def _plain(value: object, *, named: bool) -> Any:
    match value:
        case Column():
            steps = range(0, len(value.data), value.width)
            return [int.from_bytes(value.data[i : i + value.width], "little") for i in steps]
        case Part():
            return part_plain(value) if named else _part_map(value)
        case bytes():
            return value.hex()
        case Reason() | Role() | Initiator() if named:
            return value.name
        case IntEnum():
            return int(value)
        case tuple():
            return [_plain(item, named=named) for item in value]
        case bool() | str() | int():
            return value
    found = {}
    for field in attrs.fields(type(value)):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        if field.default is attrs.NOTHING or inner != field.default:
            found[field.name] = _plain(inner, named=named)
    return found


def _part_map(part: Part) -> dict[str, int]:
    return attrs.asdict(part, filter=None if part.layer_stop else _no_layers)


def part_plain(part: Part) -> list[int]:
    """A part as its numbers: four, or six where it is not whole in its layers."""
    return list(_part_map(part).values())


def _no_layers(field: attrs.Attribute[Any], _value: Any) -> bool:
    return not field.name.startswith("layer_")


def from_plain(message: dict[str, Any]) -> Message:
    """A message from either form. KeyError where a field is missing."""
    layout = BY_TYPE[MessageType[message["type"]]]
    values = {
        f.name: _value(f.name, message[f.name])
        for f in layout.fields
        if f.default is REQUIRED or f.name in message
    }
    if layout.headed:
        values["header"] = _header(message["header"])
    return layout.cls(**values)


def _value(name: str, value: Any) -> Any:
    if name in _BYTES:
        return bytes.fromhex(value)
    match name:
        case "reason":
            return Reason[value] if isinstance(value, str) else _reason(value)
        case "initiator":
            return Initiator[value] if isinstance(value, str) else Initiator(value)
        case "role":
            return Role[value] if isinstance(value, str) else Role(value)
        case "part":
            return part_of(value)
        case "parts":
            return tuple(part_of(item) for item in value)
        case "tables":
            return tuple(table_of(item) for item in value)
        case "key_ids":
            return tuple(value)
    return value


def _reason(number: int) -> Reason:
    return Reason(number) if number in list(Reason) else Reason.UNREGISTERED


def part_of(value: list[int] | dict[str, int]) -> Part:
    return Part(**value) if isinstance(value, dict) else Part(*value)


def table_of(value: dict[str, Any]) -> BlockRuns:
    return BlockRuns(
        group=value["group"],
        first_token=value["first_token"],
        starts=_column(value["starts"]),
        lengths=_column(value["lengths"]),
    )


def _column(values: list[int]) -> Column:
    width = 4 if all(v < 1 << 32 for v in values) else 8
    return Column(width, b"".join(v.to_bytes(width, "little") for v in values))


def _header(value: dict[str, Any]) -> Header:
    return Header(
        transfer_id=TransferId(value["transfer_id"]),
        attempt=Attempt(value["attempt"]),
        sender=Incarnation(value["sender"]),
        receiver=Incarnation(value["receiver"]),
    )
