"""The ops table of this transport.

Owns the session handles, one lock per session, and the rule that no exception
crosses the table. Refuses to know the shim. Invariants: a session handle is never
given again; at the end of the interpreter no engine thread is left.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import U64, Direction, Memory, Strided, TransportOps
from kvxfer.transport.stubs import stub_ops
from kvxfer_ucx.session import CAPS, Refused, Session

_EXIT_WAIT_S: Final = 2.0
"""How long the end of the interpreter waits for a call that another thread is in."""

_T = TypeVar("_T")


@attrs.define(eq=False)
class _Held:
    """A session with its lock. `pid` is that of the process that opened it."""

    session: Session
    pid: int
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    closed: bool = False


_held: Final[dict[int, _Held]] = {}
_handles: Final = itertools.count(1)
_last_refusal: Final = {"text": "no call has been refused"}


def _call(session: int, nothing: _T, action: Callable[..., _T], *args: Any) -> tuple[Status, _T]:
    """Run `action` on a session; every way in which it can end is a status."""
    try:
        held = _held.get(session)
    except TypeError:
        held = None
    if held is None:
        return Status.CLOSED, nothing
    with held.lock:
        if held.closed:
            return Status.CLOSED, nothing
        try:
            return Status.OK, action(held.session, *args)
        except Refused as answer:
            held.session.error = str(answer)
            return answer.status, nothing
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            # What Python raises where an argument is not of the type that the table asks for.
            held.session.error = _text_of(error)
            return Status.OP_INVALID, nothing
        except Exception as error:  # noqa: BLE001 - rule 1: whatever it is, it must not cross
            held.session.error = _text_of(error)
            return Status.SESSION_FAILED, nothing


def _open(options: Mapping[str, Any]) -> tuple[Status, int]:
    try:
        session = Session.open(options)
    except Refused as answer:
        _last_refusal["text"] = str(answer)
        return answer.status, 0
    except (AttributeError, TypeError) as error:
        _last_refusal["text"] = f"options: {_text_of(error)}"
        return Status.OP_INVALID, 0
    handle = next(_handles)
    _held[handle] = _Held(session, os.getpid())
    return Status.OK, handle


def _close(session: int) -> Status:
    status, _ = _call(session, None, Session.close)
    if status == Status.OK:
        _held.pop(session).closed = True
    return status


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


def _last_error(session: int) -> str:
    status, text = _call(session, "", lambda s: s.error)
    return text if status == Status.OK else _last_refusal["text"]


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _close_at_exit() -> None:
    for held in list(_held.values()):
        # After a fork the engine is the parent's. A thread that is still inside a call keeps
        # its session: taking it from under the thread would be worse than leaving it.
        if held.pid == os.getpid() and held.lock.acquire(timeout=_EXIT_WAIT_S):
            held.closed = True
            held.session.close()
            held.lock.release()


atexit.register(_close_at_exit)

OPS: Final[TransportOps] = attrs.evolve(
    stub_ops("ucx"),
    open=_open,
    close=_close,
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
    last_error=_last_error,
)
