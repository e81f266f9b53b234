"""Whether the loopback takes a post, and which fault it meets.

Owns the questions that come before a post: bounds of memory, queues and
notifications, and the fault plan. Refuses to change anything. Invariant: what
is refused here has left no trace.
"""

from __future__ import annotations

from typing import Final

from kvxfer.status import Status
from kvxfer.transport.faults import Action, Kind, Posted
from kvxfer.transport.loopback_state import Peer, Session
from kvxfer.transport.ops import U64

NOTIFICATION_BYTES_MAX: Final = 1 << 20
REQUESTS_MAX: Final = 1 << 16
"""Requests of one session that have not been polled; a further post gets NO_RESOURCE."""
INBOX_MAX: Final = 1 << 16
"""Notifications that wait at one session; a further one gets NO_RESOURCE."""


def admission(session: Session, peer: Peer | None, notifies: bool) -> tuple[Status, str]:
    """Whether one more operation may go towards `peer`."""
    if peer is None:
        return Status.PEER_UNKNOWN, "peer: not a live peer of this session"
    status, text = peer.post_status()
    if status != Status.OK:
        return status, text
    if len(session.requests) >= REQUESTS_MAX:
        return Status.NO_RESOURCE, f"{REQUESTS_MAX} requests wait for poll"
    if notifies and peer.remote is not None and len(peer.remote.session.inbox) >= INBOX_MAX:
        return Status.NO_RESOURCE, f"{INBOX_MAX} notifications wait at the peer"
    return Status.OK, ""


def range_fault(peer: Peer, columns: tuple[U64, U64, U64]) -> tuple[Status, str]:
    """The first range that leaves a registered region, on either side."""
    local, remote, length = columns
    own = peer.session.index()
    at = own.first_outside(local, length)
    if at >= 0:
        status = Status.REGION_UNKNOWN if own.empty else Status.REGION_BOUNDS
        return status, _range_text("local_addr", local, length, at)
    if peer.remote is not None:
        status, at = peer.remote.refusal(remote, length)
        if status != Status.OK:
            return status, _range_text("remote_addr", remote, length, at)
    return Status.OK, ""


def _range_text(name: str, start: U64, length: U64, at: int) -> str:
    return f"{name}[{at}] = {start[at]}, {length[at]} bytes: not inside one registered region"


def decide(
    peer: Peer, kind: Kind, length: U64, notification: bytes | None
) -> tuple[Posted | None, Action | None]:
    """Ask the session's fault plan, if it has one."""
    plan = peer.session.plan
    if plan is None:
        return None, None
    return plan.decide(
        session=peer.session.handle,
        peer=peer.handle,
        kind=kind,
        range_count=len(length),
        byte_count=int(length.sum()),
        notification=notification,
    )


def notification_fault(payload: object) -> str:
    """What is wrong with a notification; empty where nothing is."""
    if not isinstance(payload, bytes):
        return f"notification is {type(payload).__name__}: must be bytes"
    if not 0 < len(payload) <= NOTIFICATION_BYTES_MAX:
        return f"notification has {len(payload)} bytes: must be 1 to {NOTIFICATION_BYTES_MAX}"
    return ""
