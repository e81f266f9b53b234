"""What each slot of the table may answer.

Owns the types of the answers and the statuses in them, slot by slot. Refuses to
call anything. Invariant: a status that is not listed for a slot is a broken rule
1 of `kvxfer.transport.ops`; spec/kvxfer_transport.h lists the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvxfer.status import Status
from kvxfer.transport.caps import Caps

ENDS: Final = frozenset({Status.OK, Status.OP_FAILED, Status.OP_UNKNOWN})
"""How a request may end in `poll`."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "open": (Status, int),
    "close": (Status,),
    "caps": (Caps,),
    "register_region": (Status, int),
    "allocate_region": (Status, int, int),
    "deregister_region": (Status,),
    "revoke_region": (Status,),
    "peer_create": (Status, int, bytes),
    "peer_connect": (Status,),
    "peer_destroy": (Status,),
    "fence_peer": (Status,),
    "post_write": (Status, int),
    "post_read": (Status, int),
    "post_strided": (Status, int),
    "cancel": (Status,),
    "poll": (Status, int),
    "send_notification": (Status,),
    "poll_notifications": (Status, list),
    "wakeup_fd": (Status, int),
    "last_error": (str,),
}

_ALWAYS: Final = frozenset({Status.OK, Status.OP_INVALID, Status.CLOSED, Status.SESSION_FAILED})
"""Every call may succeed, have a wrong argument, come after `close`, or find the session broken."""

_REGION: Final = {Status.REGION_UNKNOWN, Status.REGION_STALE}
_TO_PEER: Final = {
    Status.NO_RESOURCE,
    Status.PEER_UNKNOWN,
    Status.PEER_FAILED,
    Status.PEER_NOT_CONNECTED,
}
_POST: Final = _ALWAYS | _REGION | _TO_PEER | {Status.REGION_BOUNDS, Status.UNSUPPORTED}

STATUSES: Final[Mapping[str, frozenset[Status]]] = {
    "open": frozenset(
        {
            Status.OK,
            Status.NO_RESOURCE,
            Status.OP_INVALID,
            Status.UNSUPPORTED,
            Status.LIBRARY_MISSING,
            Status.SESSION_FAILED,
        }
    ),
    "close": _ALWAYS,
    "register_region": _ALWAYS | {Status.NO_RESOURCE},
    "allocate_region": _ALWAYS | {Status.NO_RESOURCE, Status.UNSUPPORTED},
    "deregister_region": _ALWAYS | _REGION,
    "revoke_region": _ALWAYS | _REGION | {Status.NOT_FENCED, Status.UNSUPPORTED},
    "peer_create": _ALWAYS | {Status.NO_RESOURCE},
    "peer_connect": _ALWAYS
    | {Status.NO_RESOURCE, Status.PEER_UNKNOWN, Status.PEER_FAILED, Status.PEER_BLOB},
    "peer_destroy": _ALWAYS | {Status.PEER_UNKNOWN},
    "fence_peer": _ALWAYS | {Status.PEER_UNKNOWN, Status.NOT_FENCED, Status.UNSUPPORTED},
    "post_write": _POST,
    "post_read": _POST,
    "post_strided": _POST,
    "cancel": _ALWAYS | {Status.UNSUPPORTED},
    "poll": _ALWAYS,
    "send_notification": _ALWAYS | _TO_PEER | {Status.OP_FAILED, Status.OP_UNKNOWN},
    "poll_notifications": _ALWAYS,
    "wakeup_fd": _ALWAYS | {Status.UNSUPPORTED},
}
"""Statuses by slot. `caps` and `last_error` answer without one. OP_FAILED of a notification
that travels alone: it was not delivered; OP_UNKNOWN: nobody can say."""


def answer_fault(slot: str, answer: object) -> str:
    """What is wrong with an answer of `slot`, its types or its status; empty where nothing is."""
    return type_fault(slot, answer) or status_fault(slot, answer)


def type_fault(slot: str, answer: object) -> str:
    """What is wrong with the types of an answer of `slot`."""
    wanted = _TYPES[slot]
    parts = answer if len(wanted) > 1 else (answer,)
    if not isinstance(parts, tuple) or len(parts) != len(wanted):
        return f"answered {answer!r}: must be {_names(wanted)}"
    for part, kind in zip(parts, wanted):
        if not isinstance(part, kind):
            return f"answered {type(part).__name__} {part!r}: must be {kind.__name__}"
    return ""


def status_fault(slot: str, answer: Any) -> str:
    """What is wrong with the status in an answer of the right types."""
    status = answer[0] if isinstance(answer, tuple) else answer
    allowed = STATUSES.get(slot)
    if allowed is None or status in allowed:
        return ""
    return f"answered {Status(status).name}: this slot has no such answer"


def _names(kinds: tuple[type, ...]) -> str:
    return "(" + ", ".join(kind.__name__ for kind in kinds) + ")"
