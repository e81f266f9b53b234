"""Calls of the table as bytes, between the kit and a far end.

Owns the framing and the encoding (CBOR, RFC 8949). Refuses to run anything.
Invariant: what the table's types can say comes out at the other end as it went
in; anything else raises here, before a byte is sent.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

import attrs
import cbor2
import numpy as np

from kvxfer.status import Status
from kvxfer.transport.answers import STATUSES
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Direction, Memory, Strided

_LENGTH: Final = struct.Struct("<I")
_COLUMN, _MEMORY, _STRIDED = "column", "memory", "strided"


def send(link: socket.socket, message: Any) -> None:
    """One message, framed."""
    body = cbor2.dumps(message)
    link.sendall(_LENGTH.pack(len(body)) + body)


def receive(link: socket.socket) -> Any:
    """The next message. Raises EOFError where the other side has gone."""
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return cbor2.loads(_exactly(link, length))


def _exactly(link: socket.socket, length: int) -> bytes:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        got = link.recv_into(view)
        if got == 0:
            raise EOFError("the other side has gone")
        view = view[got:]
    return bytes(buffer)


def pack(value: Any) -> Any:
    """An argument of a slot as plain values."""
    match value:
        case np.ndarray():
            return {_COLUMN: value.astype("<u8", casting="safe").tobytes()}
        case Memory():
            return {_MEMORY: [value.base, value.length, value.kind, value.device]}
        case Strided():
            return {_STRIDED: [pack(column) for column in attrs.astuple(value, recurse=False)]}
        case None | bool() | int() | str() | bytes():
            return value
        case list() | tuple():
            return [pack(inner) for inner in value]
        case dict():
            return {str(key): pack(inner) for key, inner in value.items()}
        case _:
            raise TypeError(f"{type(value).__name__} cannot be sent to a far end")


def unpack(value: Any) -> Any:
    """The argument again; a tuple comes as a list."""
    if isinstance(value, list):
        return [unpack(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if _COLUMN in value:
        return np.frombuffer(value[_COLUMN], dtype="<u8").astype(np.uint64)
    if _MEMORY in value:
        base, length, kind, device = value[_MEMORY]
        return Memory(base=base, length=length, kind=kind, device=device)
    if _STRIDED in value:
        names = [field.name for field in attrs.fields(Strided)]
        return Strided(**{name: unpack(one) for name, one in zip(names, value[_STRIDED])})
    return {key: unpack(inner) for key, inner in value.items()}


def arguments(slot: str, values: list[Any]) -> list[Any]:
    """The unpacked arguments of `slot`, with the enumerations that the table asks for."""
    found = [unpack(value) for value in values]
    if slot == "post_strided" and found[2] in tuple(Direction):
        found[2] = Direction(found[2])
    return found


def pack_answer(answer: Any) -> Any:
    """What a slot gave, as plain values; enumerations are numbers."""
    if isinstance(answer, tuple):
        return [pack_answer(part) for part in answer]
    if isinstance(answer, list):
        return [[peer, payload] for peer, payload in answer]
    return int(answer) if isinstance(answer, int) else answer


def unpack_answer(slot: str, answer: Any) -> Any:
    """What the slot gave, with the types of the table."""
    if slot == "caps":
        return Caps(answer)
    if slot not in STATUSES:
        return answer
    if not isinstance(answer, list):
        return Status(answer)
    status, *rest = answer
    if slot == "poll_notifications":
        rest = [[(peer, payload) for peer, payload in rest[0]]]
    return (Status(status), *rest)
