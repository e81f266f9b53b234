"""Messages to bytes and back.

Owns the frame of a message: [type, {key: value}]. Decoding is total: any bytes
give a Message, or RemoteFault with the field, the value and the bound. Unknown
keys are skipped, so that a newer minor version may add fields; an unknown type
is UnknownMessage, so that the caller may skip the message.
"""

from __future__ import annotations

from typing import Any

from kvxfer.core.messages import Header, Hello, Message
from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits
from kvxfer.wire.cbor import dumps, loads
from kvxfer.wire.schema import (
    BY_CLASS,
    BY_TYPE,
    HEADER,
    MAGIC_KEY,
    MAGIC_VALUE,
    REQUIRED,
    Field,
    Layout,
)

TYPE_MAX = 65535


class UnknownMessage(RemoteFault):
    """A message type that this version does not know (spec section 5.2)."""


def encode(message: Message) -> bytes:
    """One message as CBOR (RFC 8949), without the stream's length prefix."""
    layout = BY_CLASS[type(message)]
    body: dict[int, Any] = {}
    if isinstance(message, Hello):
        body[MAGIC_KEY] = MAGIC_VALUE
    if layout.headed:
        _write(HEADER, message.header, body)  # type: ignore[union-attr]
    _write(layout.fields, message, body)
    return dumps([int(layout.number), body])


def _write(fields: tuple[Field, ...], values: object, body: dict[int, Any]) -> None:
    for field in fields:
        value = getattr(values, field.name)
        if field.default is REQUIRED or value != field.default:
            body[field.key] = field.kind.write(value)


def decode(data: bytes | memoryview, limits: Limits) -> Message:
    """Any bytes to a Message.

    Raises:
        UnknownMessage: the type is not registered in this version.
        RemoteFault: everything else that is not a message within its limits.
    """
    value = loads(data, limits)
    if type(value) is not list or len(value) < 2:
        raise RemoteFault("message", value, "[type, {key: value}]")
    number, body = value[0], value[1]
    if type(number) is not int or not 0 <= number <= TYPE_MAX:
        raise RemoteFault("type", number, f"an integer from 0 to {TYPE_MAX}")
    if type(body) is not dict:
        raise RemoteFault(f"message {number}", body, "a map")
    layout = BY_TYPE.get(number)
    if layout is None:
        raise UnknownMessage("type", number, "a registered message type")
    if type(body) is not dict:
        raise RemoteFault(layout.number.name, body, "a map")
    return _build(layout, body, limits)


def _build(layout: Layout, body: dict[Any, Any], limits: Limits) -> Message:
    if layout.cls is Hello and body.get(MAGIC_KEY) != MAGIC_VALUE:
        raise RemoteFault("HELLO.magic", body.get(MAGIC_KEY), repr(MAGIC_VALUE))
    values = _read(layout.number.name, layout.fields, body, limits)
    if layout.headed:
        values["header"] = Header(**_read(layout.number.name, HEADER, body, limits))
    return layout.cls(**values)


def _read(
    message: str, fields: tuple[Field, ...], body: dict[Any, Any], limits: Limits
) -> dict[str, Any]:
    values = {}
    for field in fields:
        name = f"{message}.{field.name}"
        if field.key in body:
            values[field.name] = field.kind.read(name, body[field.key], limits)
        elif field.default is REQUIRED:
            raise RemoteFault(name, None, "present")
        else:
            values[field.name] = field.default
    return values
