"""The complete dummy table: an answer for every slot.

Owns the stubs and the map from capability flags to the slots they stand for.
Refuses to know any network. Invariant: no slot of a table is ever empty; a slot
that a transport has not replaced is one of these functions, so that "not done"
can be told from "done" by identity, also through the wrappers of `hooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import U64, Direction, Memory, Strided, TransportOps

SLOT_OF_CAP: Final[Mapping[Caps, str]] = {
    Caps.WRITE: "post_write",
    Caps.READ: "post_read",
    Caps.FENCE_PEER: "fence_peer",
    Caps.REVOKE_REGION: "revoke_region",
    Caps.WAKEUP_FD: "wakeup_fd",
    Caps.STRIDED: "post_strided",
    Caps.CANCEL: "cancel",
    Caps.ALLOCATE: "allocate_region",
}
"""A flag that promises a call, and the slot that must then be replaced."""

SLOTS: Final[tuple[str, ...]] = tuple(
    field.name for field in attrs.fields(TransportOps) if field.name != "name"
)
"""Every slot of the table, in the order of the table."""


def _open(_options: Mapping[str, Any]) -> tuple[Status, int]:
    return Status.UNSUPPORTED, 0


def _close(_session: int) -> Status:
    return Status.UNSUPPORTED


def _caps(_session: int) -> Caps:
    return Caps(0)


def _register_region(_session: int, _memory: Memory) -> tuple[Status, int]:
    return Status.UNSUPPORTED, 0


def _allocate_region(
    _session: int, _length: int, _kind: str, _device: int
) -> tuple[Status, int, int]:
    return Status.UNSUPPORTED, 0, 0


def _deregister_region(_session: int, _region: int) -> Status:
    return Status.UNSUPPORTED


def _revoke_region(_session: int, _region: int) -> Status:
    return Status.UNSUPPORTED


def _peer_create(_session: int) -> tuple[Status, int, bytes]:
    return Status.UNSUPPORTED, 0, b""


def _peer_connect(_session: int, _peer: int, _blob: bytes) -> Status:
    return Status.UNSUPPORTED


def _peer_destroy(_session: int, _peer: int) -> Status:
    return Status.UNSUPPORTED


def _fence_peer(_session: int, _peer: int) -> Status:
    return Status.UNSUPPORTED


def _post_write(
    _session: int, _peer: int, _local: U64, _remote: U64, _length: U64, _notify: bytes | None
) -> tuple[Status, int]:
    return Status.UNSUPPORTED, 0


def _post_read(
    _session: int, _peer: int, _local: U64, _remote: U64, _length: U64, _notify: bytes | None
) -> tuple[Status, int]:
    return Status.UNSUPPORTED, 0


def _post_strided(
    _session: int, _peer: int, _direction: Direction, _columns: Strided, _notify: bytes | None
) -> tuple[Status, int]:
    return Status.UNSUPPORTED, 0


def _cancel(_session: int, _request: int) -> Status:
    return Status.UNSUPPORTED


def _poll(_session: int, _records: npt.NDArray[Any]) -> tuple[Status, int]:
    return Status.UNSUPPORTED, 0


def _send_notification(_session: int, _peer: int, _payload: bytes) -> Status:
    return Status.UNSUPPORTED


def _poll_notifications(_session: int, _count_max: int) -> tuple[Status, list[tuple[int, bytes]]]:
    return Status.UNSUPPORTED, []


def _wakeup_fd(_session: int) -> tuple[Status, int]:
    return Status.UNSUPPORTED, -1


def _last_error(_session: int) -> str:
    return "this transport does not fill the slot"


_TABLE: Final = TransportOps(
    name="stub",
    open=_open,
    close=_close,
    caps=_caps,
    register_region=_register_region,
    allocate_region=_allocate_region,
    deregister_region=_deregister_region,
    revoke_region=_revoke_region,
    peer_create=_peer_create,
    peer_connect=_peer_connect,
    peer_destroy=_peer_destroy,
    fence_peer=_fence_peer,
    post_write=_post_write,
    post_read=_post_read,
    post_strided=_post_strided,
    cancel=_cancel,
    poll=_poll,
    send_notification=_send_notification,
    poll_notifications=_poll_notifications,
    wakeup_fd=_wakeup_fd,
    last_error=_last_error,
)
_STUBS: Final[frozenset[Callable[..., Any]]] = frozenset(getattr(_TABLE, slot) for slot in SLOTS)


def stub_ops(name: str) -> TransportOps:
    """The whole table under `name`, each slot a stub. Overlay it with `attrs.evolve`."""
    return attrs.evolve(_TABLE, name=name)


def overlay(ops: TransportOps, slots: Mapping[str, Callable[..., Any]]) -> TransportOps:
    """`ops` with the functions in `slots` in place of its own, but for slots that are stubs.

    For wrappers, which give a table without knowing what the one inside can do.
    """
    filled: dict[str, Any] = {
        slot: function for slot, function in slots.items() if not is_stub(getattr(ops, slot))
    }
    return attrs.evolve(ops, **filled)


def is_stub(function: Callable[..., Any]) -> bool:
    """True for a slot function that this module gave."""
    return function in _STUBS


def replaced_slots(ops: TransportOps) -> frozenset[str]:
    """Names of the slots of `ops` that a transport has really filled."""
    return frozenset(slot for slot in SLOTS if not is_stub(getattr(ops, slot)))


def missing_slots(ops: TransportOps, caps: Caps) -> frozenset[str]:
    """Slots that `caps` promises and `ops` leaves as stubs; empty for an honest table."""
    replaced = replaced_slots(ops)
    return frozenset(
        slot for cap, slot in SLOT_OF_CAP.items() if cap in caps and slot not in replaced
    )
