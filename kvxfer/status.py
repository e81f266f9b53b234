"""Status codes of the transport table, in bands by what died.

Owns the numbers. Knows nothing else. Invariant: a code's band says how far the
damage goes (operation, region, peer, session), so a caller can act without
knowing the exact code. The same numbers stand in spec/registries.md.
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Result of one transport call or one posted operation."""

    OK = 0
    IN_PROGRESS = 1

    # Operation band, -100 to -199: this operation only.
    NO_RESOURCE = -100
    """Not posted: the queue is full. Post again after progress."""
    OP_INVALID = -101
    """Not posted: an argument is wrong. Posting again will not help."""
    OP_FAILED = -102
    """Posted, failed, and proven quiet: it touches no memory any more."""
    OP_UNKNOWN = -103
    """Posted, failed, not proven quiet: it may still touch memory on either side."""

    # Region band, -200 to -299: one registered memory region.
    REGION_UNKNOWN = -200
    REGION_STALE = -201
    REGION_BOUNDS = -202

    # Peer band, -300 to -399: everything towards one peer.
    PEER_UNKNOWN = -300
    PEER_FAILED = -301
    PEER_NOT_CONNECTED = -302
    PEER_BLOB = -303
    """The peer's connection blob cannot be used (malformed, other transport, other version)."""
    NOT_FENCED = -304
    """No proof that the peer can no longer reach our memory."""

    # Session band, -400 to -499: the whole transport instance.
    UNSUPPORTED = -400
    CLOSED = -401
    LIBRARY_MISSING = -402
    SESSION_FAILED = -403


def is_error(status: int) -> bool:
    """True for every code that is neither OK nor IN_PROGRESS."""
    return status < 0


def is_operation_error(status: int) -> bool:
    """True where only one operation died."""
    return -200 < status <= -100


def is_region_error(status: int) -> bool:
    """True where one memory region cannot be used as asked."""
    return -300 < status <= -200


def is_peer_error(status: int) -> bool:
    """True where nothing more can be posted towards one peer."""
    return -400 < status <= -300


def is_session_error(status: int) -> bool:
    """True where the transport instance as a whole refuses."""
    return -500 < status <= -400


def is_never_posted(status: int) -> bool:
    """True where a post call left nothing in flight (C1: 'never posted')."""
    return status in (Status.NO_RESOURCE, Status.OP_INVALID) or -500 < status <= -200
