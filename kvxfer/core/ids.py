"""Names of things on the wire.

Owns the identifiers that tie messages to peers, transfers and parts. Knows no
encoding. Invariant: two names compare equal only if every field does; nothing
here is ever matched by prefix, suffix or position (E3).
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import NewType

import attrs

TransferId = NewType("TransferId", str)
"""Router-made, opaque, one per dispatch of a request."""

Attempt = NewType("Attempt", int)
"""Counts registrations of one transfer at one consumer, from 1."""

Incarnation = NewType("Incarnation", int)
"""Random 64-bit number drawn at the start of a peer; never 0."""

LinkId = NewType("LinkId", int)
"""Local name of one control connection. Never on the wire."""

OpId = NewType("OpId", int)
"""Local name of one part to be posted. Never on the wire, never reused."""


class Role(IntEnum):
    """Which side of a transfer a peer can take (spec section 4.1)."""

    PRODUCER = 1
    CONSUMER = 2
    BOTH = 3


class Initiator(IntEnum):
    """Who posts the one-sided operations of a transfer; a role on it, not on an engine.

    PRODUCER is push (it writes), CONSUMER is pull (it reads). Spec section 5.9.
    """

    PRODUCER = 1
    CONSUMER = 2


class Feature(IntFlag):
    """What a peer can take part in beyond the base of its version (spec section 4.5).

    A feature is used on a link only where both ends have its bit.
    """

    STREAMING = 1
    PULL = 2
    DRAIN = 4
    LAYER_RANGES = 8


FEATURES = Feature.STREAMING | Feature.PULL | Feature.DRAIN | Feature.LAYER_RANGES
"""All that this version has."""

NO_FEATURES = Feature(0)


class Reason(IntEnum):
    """Why something ended or was refused (spec section 9, registry 'reasons').

    Numbers are on the wire and never reused.
    """

    NONE = 0
    CANCELLED_BY_CONSUMER = 1
    PRODUCER_ABORTED = 2
    OFFER_EXPIRED = 3
    GRANT_EXPIRED = 4
    UNKNOWN_TRANSFER = 5
    STALE_ATTEMPT = 6
    DIGEST_MISMATCH = 7
    TOKENS_MISSING = 8
    LAYOUT_REFUSED = 9
    OUT_OF_BOUNDS = 10
    TRANSPORT_FAILED = 11
    DEADLINE = 12
    PEER_LOST = 13
    PEER_SILENT = 14
    UNREACHABLE = 15
    ALREADY_IN_USE = 16
    TABLE_FULL = 17
    SHUTDOWN = 18
    PROTOCOL_ERROR = 19
    VERSION_MISMATCH = 20
    WRONG_PEER = 21
    TRANSPORT_MISMATCH = 22
    ROLE_MISMATCH = 23
    PARTS_MISMATCH = 24
    NEW_INCARNATION = 25
    UNSUPPORTED = 26
    DRAINING = 27
    UNAUTHENTICATED = 28
    AUTHENTICATION_FAILED = 29
    UNREGISTERED = 65535
    """Stands for a number that this version does not know. Never sent."""


@attrs.frozen(order=True)
class PeerKey:
    """One worker process of an engine, over restarts."""

    engine_id: str
    rank: int


@attrs.frozen
class Peer:
    """One life of one worker process (I1)."""

    key: PeerKey
    incarnation: Incarnation


@attrs.frozen(order=True)
class Part:
    """One named unit of completion on one edge (D1).

    A part is a box: tokens [token_start, token_stop) of cache group `group`, in
    the layers that the two ends of the edge share, held by `producer_rank`. Where
    `layer_stop` is not 0, only in those at the positions [layer_start, layer_stop)
    of the producer's own list of layers of that group (spec section 6.4).
    """

    producer_rank: int
    group: int
    token_start: int
    token_stop: int
    layer_start: int = 0
    layer_stop: int = 0


@attrs.frozen
class AttemptKey:
    """Names one registration: what every message about a transfer carries (E1, A3)."""

    transfer_id: TransferId
    attempt: Attempt
