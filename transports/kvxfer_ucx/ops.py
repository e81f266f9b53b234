"""The ops table of this transport.

Owns the map from slots to what a session does. Refuses to know the shim. Invariant: at the
end of the interpreter no engine thread is left.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import U64, Direction, Memory, Strided, TransportOps
from kvxfer.transport.sessions import SessionTable
from kvxfer.transport.stubs import stub_ops
from kvxfer_ucx.session import CAPS, Session

_table: Final = SessionTable(Session.open)
_call: Final = _table.call


def _caps(session: int) -> Caps:
    status, caps = _call(session, CAPS, lambda s: s.caps)
    return caps if status == Status.OK else CAPS


def _register_region(session: int, memory: Memory) -> tuple[Status, int]:
    return _call(session, 0, Session.register_region, memory)


def _allocate_region(session: int, length: int, kind: str, device: int) -> tuple[Status, int, int]:
    status, (region, base) = _call(session, (0, 0), Session.allocate_region, length, kind, device)
    return status, region, base


def _deregister_region(session: int, region: int) -> Status:
    return _call(session, None, Session.deregister_region, region)[0]


def _peer_create(session: int) -> tuple[Status, int, bytes]:
    status, (peer, blob) = _call(session, (0, b""), Session.peer_create)
    return status, peer, blob


def _peer_connect(session: int, peer: int, blob: bytes) -> Status:
    return _call(session, None, Session.peer_connect, peer, blob)[0]


def _peer_destroy(session: int, peer: int) -> Status:
    return _call(session, None, Session.peer_destroy, peer)[0]


def _fence_peer(session: int, peer: int) -> Status:
    return _call(session, None, Session.fence_peer, peer)[0]


def _post_write(
    session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, 0, Session.post, True, peer, (local, remote, length), notify)


def _post_read(
    session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, 0, Session.post, False, peer, (local, remote, length), notify)


def _post_strided(
    session: int, peer: int, direction: Direction, columns: Strided, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, 0, Session.post_strided, peer, direction, columns, notify)


def _cancel(session: int, request: int) -> Status:
    return _call(session, None, Session.cancel, request)[0]


def _poll(session: int, records: npt.NDArray[Any]) -> tuple[Status, int]:
    return _call(session, 0, Session.poll, records)


def _send_notification(session: int, peer: int, payload: bytes) -> Status:
    return _call(session, None, Session.send_notification, peer, payload)[0]


def _poll_notifications(session: int, count_max: int) -> tuple[Status, list[tuple[int, bytes]]]:
    return _call(session, [], Session.poll_notifications, count_max)


def _wakeup_fd(session: int) -> tuple[Status, int]:
    return _call(session, -1, Session.wakeup_fd)


OPS: Final[TransportOps] = attrs.evolve(
    stub_ops("ucx"),
    open=_table.open,
    close=_table.close,
    caps=_caps,
    register_region=_register_region,
    allocate_region=_allocate_region,
    deregister_region=_deregister_region,
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
    last_error=_table.last_error,
)
