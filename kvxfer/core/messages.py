"""Control messages, one frozen class per section of the specification.

Owns the fields and their meaning. Knows no encoding: `kvxfer.wire` does. Every
message about a transfer carries (transfer_id, attempt, sender incarnation,
receiver incarnation); only durations are ever carried, never absolute times (J1).
Columns are little-endian unsigned integers as raw bytes, so that nothing is
copied element by element between the wire and the data plane.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from kvxfer.core.ids import (
    Attempt,
    AttemptKey,
    Incarnation,
    Initiator,
    Part,
    Reason,
    Role,
    TransferId,
)

MAGIC = b"kvxfer"
VERSION_MIN = 1
VERSION_MAX = 1


class MessageType(IntEnum):
    """Numbers on the wire (spec section 5). Reserved numbers stay listed and unused."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    DESCRIBE = 4
    BYE = 5
    GRANT = 16
    GRANT_ACK = 17
    RENEW = 18
    GONE = 19
    CANCEL = 20
    CANCELLED = 21
    DONE = 32
    FAILED = 33
    NEVER_POSTED = 34
    OFFER = 48
    RELEASE = 49
    DRAIN = 50
    PROOF = 64


@attrs.frozen
class Column:
    """A column of unsigned integers: `width` bytes each (4 or 8), little-endian."""

    width: int
    data: bytes

    def __len__(self) -> int:
        return len(self.data) // self.width


@attrs.frozen(kw_only=True)
class BlockRuns:
    """The block table of one cache group, as runs of consecutive block ids (spec 6.2).

    `starts` and `lengths` have one entry per run. `first_token` is the token at
    which the first block starts; entries follow in token order (G1).
    """

    group: int
    first_token: int
    starts: Column
    lengths: Column


# --- handshake, phase 1: fixed, decoded before anything else (spec section 4) ---


@attrs.frozen(kw_only=True)
class Hello:
    """Opens a link. Sent by the side that dials."""

    version_min: int
    version_max: int
    engine_id: str
    rank: int
    incarnation: Incarnation
    role: Role
    features: int
    expected_engine_id: str
    """Whom the dialler wants to reach; empty where any engine will do (I-10)."""
    expected_rank: int
    nonce: bytes = b""
    key_ids: tuple[str, ...] = ()
    """Names of the keys that the dialler can prove; none: it does not authenticate."""


@attrs.frozen(kw_only=True)
class Welcome:
    """Accepts a HELLO and names the version both sides now speak."""

    version: int
    engine_id: str
    rank: int
    incarnation: Incarnation
    role: Role
    features: int
    nonce: bytes = b""
    key_id: str = ""
    """The key that both sides prove; empty: this link is not authenticated."""


@attrs.frozen(kw_only=True)
class Refuse:
    """Ends a handshake with a reason. The link is closed after it."""

    reason: Reason
    detail: str


@attrs.frozen(kw_only=True)
class Proof:
    """Either way, behind WELCOME: the sender has the key that WELCOME names (spec section 4.6).

    Every message behind it is sealed, in that direction.
    """

    mac: bytes


# --- handshake, phase 2 ---


@attrs.frozen(kw_only=True)
class Describe:
    """What a peer's memory looks like and how the transport reaches it.

    `shard` is the layout descriptor in its plain form (spec section 7), `blob`
    belongs to the transport named `transport`. `part_tokens` and `part_layers` are
    the grid on which a producer's parts are cut; 0: not cut (spec section 6.4).
    """

    transport: str
    blob: bytes
    shard: bytes
    part_tokens: int = 0
    part_layers: int = 0


@attrs.frozen(kw_only=True)
class Bye:
    """Announces an orderly end of the link."""

    reason: Reason


@attrs.frozen(kw_only=True)
class Drain:
    """Producer to consumer: no new grant is taken here; those held are finished."""

    reason: Reason


# --- transfers ---


@attrs.frozen(kw_only=True)
class Header:
    """The part that every message about a transfer shares (E1, A3, I1)."""

    transfer_id: TransferId
    attempt: Attempt
    sender: Incarnation
    receiver: Incarnation

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.transfer_id, self.attempt)


@attrs.frozen(kw_only=True)
class Grant:
    """Consumer to producer: `parts` are wanted, for one attempt.

    Where the producer is the initiator: permission to write them into the blocks of
    `tables`. Where the consumer is: the wish to read them; then there are no tables.
    """

    header: Header
    digest: bytes
    """Digest of the prompt's token ids, empty where unknown. A wrong pair is refused by it."""
    lease_ms: int
    parts: tuple[Part, ...]
    tables: tuple[BlockRuns, ...]
    initiator: Initiator = Initiator.PRODUCER


@attrs.frozen(kw_only=True)
class GrantAck:
    """Producer to consumer: the attempt is held here for `lease_ms` more. Answers GRANT, RENEW.

    `serial` is that of the RENEW it answers, 0 for a GRANT.
    """

    header: Header
    serial: int = 0
    lease_ms: int = 0


@attrs.frozen(kw_only=True)
class Renew:
    """Consumer to producer: the attempt is still wanted for `lease_ms` more.

    `serial` goes up by one with each RENEW, but one that repeats an unanswered one
    has its serial.
    """

    header: Header
    lease_ms: int
    serial: int = 0


@attrs.frozen(kw_only=True)
class Offer:
    """Producer to consumer, in pull: `parts` are final, in the producer's blocks of `tables`.

    `token_count`: of a sealed offer, how many tokens it has; 0 while it grows. It tells
    after which token the state of a page is that a later chunk may still overwrite.
    """

    header: Header
    parts: tuple[Part, ...]
    tables: tuple[BlockRuns, ...]
    token_count: int = 0


@attrs.frozen(kw_only=True)
class Release:
    """Consumer to producer, in pull: none of my operations of this attempt is or will be in flight.

    `landed`: every part that this producer was asked for has been read.
    """

    header: Header
    landed: bool
    reason: Reason


@attrs.frozen(kw_only=True)
class Gone:
    """Producer to consumer: not served here any more.

    In push: nothing of this attempt is or will be in flight. In pull: what has not
    been read may not be read; RELEASE is awaited where something was offered.
    """

    header: Header
    reason: Reason


@attrs.frozen(kw_only=True)
class Cancel:
    """Consumer to producer: stop. Answered by CANCELLED once drained."""

    header: Header
    reason: Reason


@attrs.frozen(kw_only=True)
class Cancelled:
    """Producer to consumer: nothing of mine is or will be in flight for this attempt."""

    header: Header


@attrs.frozen(kw_only=True)
class Done:
    """The part's bytes are visible in the consumer's memory. Rides on the transport."""

    header: Header
    part: Part


@attrs.frozen(kw_only=True)
class Failed:
    """The part was posted and failed. `quiet`: proven to touch no memory any more."""

    header: Header
    part: Part
    reason: Reason
    quiet: bool


@attrs.frozen(kw_only=True)
class NeverPosted:
    """The part was never posted and never will be under this attempt."""

    header: Header
    part: Part
    reason: Reason


HandshakeMessage = Hello | Welcome | Proof | Refuse | Describe
ToProducer = Grant | Renew | Cancel | Release
ToConsumer = GrantAck | Gone | Cancelled | Offer | Done | Failed | NeverPosted
TransferMessage = ToProducer | ToConsumer
Message = HandshakeMessage | Bye | Drain | TransferMessage
