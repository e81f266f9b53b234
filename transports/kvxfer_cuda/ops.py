"""The ops table of this transport.

Owns the map from slots to what a session does. Refuses to know CUDA. Invariant: at the
end of the interpreter no session is left, since its copies may run on.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import U64, Memory, TransportOps
from kvxfer.transport.sessions import SessionTable
from kvxfer.transport.stubs import stub_ops
from kvxfer_cuda.session import Session

CAPS: Final = (
    Caps.WRITE
    | Caps.READ
    | Caps.NOTIFY_AFTER_VISIBLE
    | Caps.FENCE_PEER
    | Caps.WAKEUP_FD
    | Caps.CANCEL
    | Caps.MEM_CUDA
    | Caps.THREAD_ONE_OWNER
    | Caps.CROSS_PROCESS
)
_table: Final = SessionTable(Session)
_call: Final = _table.call


def _caps(_session: int) -> Caps:
    return CAPS


def _register_region(session: int, memory: Memory) -> tuple[Status, int]:
    return _call(session, 0, lambda s: s.register_region(memory))


def _deregister_region(session: int, region: int) -> Status:
    return _call(session, None, lambda s: s.deregister_region(region))[0]


def _peer_create(session: int) -> tuple[Status, int, bytes]:
    status, (peer, blob) = _call(session, (0, b""), Session.peer_create)
    return status, peer, blob


def _peer_connect(session: int, peer: int, blob: bytes) -> Status:
    return _call(session, None, lambda s: s.peer_connect(peer, blob))[0]


def _peer_destroy(session: int, peer: int) -> Status:
    return _call(session, None, lambda s: s.peer_destroy(peer))[0]


def _fence_peer(session: int, peer: int) -> Status:
    return _call(session, None, lambda s: s.fence_peer(peer))[0]


def _post_write(
    session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, 0, lambda s: s.post(False, peer, (local, remote, length), notify))


def _post_read(
    session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, 0, lambda s: s.post(True, peer, (local, remote, length), notify))


def _cancel(session: int, request: int) -> Status:
    return _call(session, None, lambda s: s.cancel(request))[0]


def _poll(session: int, records: npt.NDArray[Any]) -> tuple[Status, int]:
    return _call(session, 0, lambda s: s.poll(records))


def _send_notification(session: int, peer: int, payload: bytes) -> Status:
    return _call(session, None, lambda s: s.send_notification(peer, payload))[0]


def _poll_notifications(session: int, count_max: int) -> tuple[Status, list[tuple[int, bytes]]]:
    return _call(session, [], lambda s: s.poll_notifications(count_max))


def _wakeup_fd(session: int) -> tuple[Status, int]:
    return _call(session, -1, Session.wakeup_fd)


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


OPS: Final[TransportOps] = attrs.evolve(
    stub_ops("cuda"),
    open=_table.open,
    close=_table.close,
    caps=_caps,
    register_region=_register_region,
    deregister_region=_deregister_region,
    peer_create=_peer_create,
    peer_connect=_peer_connect,
    peer_destroy=_peer_destroy,
    fence_peer=_fence_peer,
    post_write=_post_write,
    post_read=_post_read,
    cancel=_cancel,
    poll=_poll,
    send_notification=_send_notification,
    poll_notifications=_poll_notifications,
    wakeup_fd=_wakeup_fd,
    last_error=_table.last_error,
)
