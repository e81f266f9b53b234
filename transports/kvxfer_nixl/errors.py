"""What an exception of nixl means in the words of the table.

Owns the one mapping. Refuses to import nixl: exceptions are known by the names
of their classes. Invariant: every exception gets a status, and each status in
the table is of the 'never posted' kind, so that a caller who knows that nothing
was posted may pass it on as it is. What was posted already and failed is
OP_UNKNOWN whatever the exception (`kvxfer_nixl.peer`), and metadata that nixl
does not take is PEER_BLOB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvxfer.status import Status

STATUS_OF: Final[Mapping[str, Status]] = {
    "nixlInvalidParamError": Status.OP_INVALID,
    "nixlMismatchError": Status.OP_INVALID,
    "nixlNotAllowedError": Status.OP_INVALID,
    "nixlNotSupportedError": Status.OP_INVALID,
    "nixlNotFoundError": Status.REGION_BOUNDS,
    "nixlRepostActiveError": Status.NO_RESOURCE,
    "nixlNotPostedError": Status.PEER_FAILED,
    "nixlBackendError": Status.PEER_FAILED,
    "nixlCancelledError": Status.PEER_FAILED,
    "nixlRemoteDisconnectError": Status.PEER_FAILED,
    "nixlUnknownError": Status.PEER_FAILED,
}
"""Class name of the exception -> status of a call that has posted nothing.

NotFound is what nixl says of a range that is in no registered region; a peer
that it has forgotten after a failure gives the same name, but then this side
has marked the peer as failed already and does not ask.
"""

_OTHERWISE: Final = Status.PEER_FAILED
"""Each peer has an agent of its own, so an unknown failure costs that peer only."""


def status_of(error: BaseException) -> Status:
    """Status for an exception that nixl raised before anything was posted."""
    for kind in type(error).__mro__:
        if kind.__name__ in STATUS_OF:
            return STATUS_OF[kind.__name__]
    return _OTHERWISE
