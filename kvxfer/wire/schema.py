"""Which fields each message has, under which key, of which kind: data, nothing else.

Owns the numbers of spec/kvxfer-1.cddl. Keys 0 to 15 belong to the header, 16
and up to the message. Invariant: a key is never reused for something else.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kvxfer.core.credentials import MAC_BYTES, NONCE_BYTES
from kvxfer.core.ids import Initiator, Role
from kvxfer.core.messages import (
    MAGIC,
    Bye,
    Cancel,
    Cancelled,
    Describe,
    Done,
    Drain,
    Failed,
    Gone,
    Grant,
    GrantAck,
    Hello,
    Message,
    MessageType,
    NeverPosted,
    Offer,
    Proof,
    Refuse,
    Release,
    Renew,
    Welcome,
)
from kvxfer.wire.kinds import (
    ATTEMPT,
    FLAG,
    INCARNATION,
    MILLISECONDS,
    PART,
    PARTS,
    REASON,
    RUNS,
    TOKEN,
    U32,
    U64,
    Kind,
    binary,
    enum,
    exactly,
    number,
    prose,
    text,
    texts,
)

VERSION = number(0, 65535)
ENGINE_ID = text(lambda limits: limits.engine_id_bytes_max)
ENGINE_ID_OR_NONE = text(lambda limits: limits.engine_id_bytes_max, empty=True)
DETAIL = prose(lambda limits: limits.reason_bytes_max)
NAME = text(lambda _limits: 64)
BLOB = binary(lambda limits: limits.blob_bytes_max)
DIGEST = binary(lambda _limits: 64)
KEY_ID_BYTES_MAX = 64
KEY_IDS_MAX = 8
"""Keys that are live at a time; HELLO with all of them fits its bound."""
KEY_ID_OR_NONE = text(lambda _limits: KEY_ID_BYTES_MAX, empty=True)
KEY_IDS = texts(KEY_ID_BYTES_MAX, KEY_IDS_MAX)
NONCE = binary(lambda _limits: NONCE_BYTES)


REQUIRED = object()


@attrs.frozen
class Field:
    """One entry of a message's map.

    A field with a default is left out where it has that value, and read as it where it
    is not there: so a field of a newer minor version looks from the start.
    """

    key: int
    name: str
    kind: Kind
    default: object = REQUIRED


@attrs.frozen
class Layout:
    """One message: its number, its class, its fields; `headed` ones carry the header."""

    number: MessageType
    cls: Callable[..., Message]
    fields: tuple[Field, ...]
    headed: bool = True


HEADER = (
    Field(0, "transfer_id", text(lambda limits: limits.transfer_id_bytes_max)),
    Field(1, "attempt", ATTEMPT),
    Field(2, "sender", INCARNATION),
    Field(3, "receiver", INCARNATION),
)

MAGIC_KEY = 0
"""HELLO's first entry: the magic, so that a stray connection is told apart at once."""
MAGIC_VALUE = MAGIC

LAYOUTS = (
    Layout(
        MessageType.HELLO,
        Hello,
        (
            Field(16, "version_min", VERSION),
            Field(17, "version_max", VERSION),
            Field(18, "engine_id", ENGINE_ID),
            Field(19, "rank", U32),
            Field(20, "incarnation", INCARNATION),
            Field(21, "role", enum(Role)),
            Field(22, "features", U64),
            Field(23, "expected_engine_id", ENGINE_ID_OR_NONE),
            Field(24, "expected_rank", U32),
            Field(25, "nonce", NONCE, b""),
            Field(26, "key_ids", KEY_IDS, ()),
        ),
        headed=False,
    ),
    Layout(
        MessageType.WELCOME,
        Welcome,
        (
            Field(16, "version", VERSION),
            Field(18, "engine_id", ENGINE_ID),
            Field(19, "rank", U32),
            Field(20, "incarnation", INCARNATION),
            Field(21, "role", enum(Role)),
            Field(22, "features", U64),
            Field(25, "nonce", NONCE, b""),
            Field(26, "key_id", KEY_ID_OR_NONE, ""),
        ),
        headed=False,
    ),
    Layout(MessageType.PROOF, Proof, (Field(16, "mac", exactly(MAC_BYTES)),), headed=False),
    Layout(
        MessageType.REFUSE,
        Refuse,
        (Field(16, "reason", REASON), Field(17, "detail", DETAIL)),
        headed=False,
    ),
    Layout(
        MessageType.DESCRIBE,
        Describe,
        (
            Field(16, "transport", NAME),
            Field(17, "blob", BLOB),
            Field(18, "shard", BLOB),
            Field(19, "part_tokens", TOKEN, 0),
            Field(20, "part_layers", U32, 0),
        ),
        headed=False,
    ),
    Layout(MessageType.BYE, Bye, (Field(16, "reason", REASON),), headed=False),
    Layout(
        MessageType.GRANT,
        Grant,
        (
            Field(16, "digest", DIGEST),
            Field(17, "lease_ms", MILLISECONDS),
            Field(18, "parts", PARTS),
            Field(19, "tables", RUNS),
            Field(20, "initiator", enum(Initiator), Initiator.PRODUCER),
        ),
    ),
    Layout(
        MessageType.GRANT_ACK,
        GrantAck,
        (Field(17, "lease_ms", MILLISECONDS, 0), Field(20, "serial", U32, 0)),
    ),
    Layout(
        MessageType.RENEW,
        Renew,
        (Field(17, "lease_ms", MILLISECONDS), Field(20, "serial", U32, 0)),
    ),
    Layout(MessageType.GONE, Gone, (Field(16, "reason", REASON),)),
    Layout(MessageType.CANCEL, Cancel, (Field(16, "reason", REASON),)),
    Layout(MessageType.CANCELLED, Cancelled, ()),
    Layout(MessageType.DONE, Done, (Field(18, "part", PART),)),
    Layout(
        MessageType.FAILED,
        Failed,
        (Field(16, "reason", REASON), Field(17, "quiet", FLAG), Field(18, "part", PART)),
    ),
    Layout(
        MessageType.NEVER_POSTED,
        NeverPosted,
        (Field(16, "reason", REASON), Field(18, "part", PART)),
    ),
    Layout(
        MessageType.OFFER,
        Offer,
        (
            Field(18, "parts", PARTS),
            Field(19, "tables", RUNS),
            Field(20, "token_count", TOKEN, 0),
        ),
    ),
    Layout(
        MessageType.RELEASE,
        Release,
        (Field(16, "reason", REASON), Field(17, "landed", FLAG)),
    ),
    Layout(MessageType.DRAIN, Drain, (Field(16, "reason", REASON),), headed=False),
)

BY_TYPE = {int(layout.number): layout for layout in LAYOUTS}
BY_CLASS = {layout.cls: layout for layout in LAYOUTS}
