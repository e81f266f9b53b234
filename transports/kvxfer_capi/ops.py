"""The ops table over C libraries.

Owns the session handles, across libraries, and the rule that no exception crosses
the table. Refuses to know C types. Invariant: a library is loaded once for each path
and stays loaded, since its functions may be running in another thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from ctypes import byref, c_uint64
from threading import Lock
from typing import Any, Final, TypeVar

import attrs
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import U64, Direction, Memory, Strided, TransportOps
from kvxfer.transport.stubs import stub_ops
from kvxfer_capi.binding import Library, Option, Unusable
from kvxfer_capi.session import Refused, Session, status_of

LIBRARY: Final = "library"
"""Name of the option that says which library; all others go to that library as texts."""

_lock: Final = Lock()
_libraries: Final[dict[str, Library]] = {}
_sessions: Final[dict[int, Session]] = {}
_handles: Final = itertools.count(1)
_last_refusal: Final = {"text": "no call has been refused"}

_T = TypeVar("_T")


def _library(path: str) -> Library:
    with _lock:
        if path not in _libraries:
            _libraries[path] = Library(path)
        return _libraries[path]


def _open(options: Mapping[str, Any]) -> tuple[Status, int]:
    try:
        session = _opened(dict(options))
    except (Refused, Unusable) as answer:
        _last_refusal["text"] = str(answer)
        return answer.status, 0
    except (AttributeError, TypeError, ValueError) as error:
        _last_refusal["text"] = f"options: {error}"
        return Status.OP_INVALID, 0
    handle = next(_handles)
    _sessions[handle] = session
    return Status.OK, handle


def _opened(options: dict[str, Any]) -> Session:
    path = options.pop(LIBRARY, None)
    if not isinstance(path, str):
        text = f"option {LIBRARY} = {path!r}: must be the path of a shared library"
        raise Refused(Status.OP_INVALID, text)
    library = _library(path)
    texts = [(str(name).encode(), str(value).encode()) for name, value in options.items()]
    given = (Option * len(texts))(*(Option(*pair) for pair in texts))
    handle = c_uint64()
    status = status_of(library.table.open(given, len(texts), byref(handle)))
    session = Session(library, handle.value)
    if status != Status.OK:
        raise Refused(status, session.last_error())
    lies = library.promised(session.caps())
    if lies:
        library.table.close(session.handle)
        raise Refused(Status.SESSION_FAILED, f"library = {path!r}: declares {lies}")
    return session


def _call(session: int, action: Callable[[Session], _T], nothing: _T) -> tuple[Status, _T]:
    """Run `action` on a session; every way in which it can end is a status."""
    try:
        found = _sessions.get(session)
    except TypeError:
        found = None
    if found is None:
        return Status.CLOSED, nothing
    try:
        return Status.OK, action(found)
    except Refused as answer:
        found.refusal = str(answer)
        return answer.status, nothing
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        # What Python raises where an argument is not of the type that the table asks for.
        found.refusal = f"{type(error).__name__}: {error}"
        return Status.OP_INVALID, nothing


def _close(session: int) -> Status:
    status, _ = _call(session, lambda s: s.call("close"), None)
    if status == Status.OK:
        del _sessions[session]
    return status


def _caps(session: int) -> Caps:
    return _call(session, Session.caps, Caps(0))[1]


def _register_region(session: int, memory: Memory) -> tuple[Status, int]:
    return _call(session, lambda s: s.register_region(memory), 0)


def _allocate_region(session: int, length: int, kind: str, device: int) -> tuple[Status, int, int]:
    status, (region, base) = _call(
        session, lambda s: s.allocate_region(length, kind, device), (0, 0)
    )
    return status, region, base


def _deregister_region(session: int, region: int) -> Status:
    return _call(session, lambda s: s.drop_region("deregister_region", region), None)[0]


def _revoke_region(session: int, region: int) -> Status:
    return _call(session, lambda s: s.drop_region("revoke_region", region), None)[0]


def _peer_create(session: int) -> tuple[Status, int, bytes]:
    status, (peer, blob) = _call(session, Session.peer_create, (0, b""))
    return status, peer, blob


def _peer_connect(session: int, peer: int, blob: bytes) -> Status:
    return _call(session, lambda s: s.peer_connect(peer, blob), None)[0]


def _peer_destroy(session: int, peer: int) -> Status:
    return _call(session, lambda s: s.on_peer("peer_destroy", peer), None)[0]


def _fence_peer(session: int, peer: int) -> Status:
    return _call(session, lambda s: s.on_peer("fence_peer", peer), None)[0]


def _post_write(
    session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, lambda s: s.post("post_write", peer, (local, remote, length), notify), 0)


def _post_read(
    session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, lambda s: s.post("post_read", peer, (local, remote, length), notify), 0)


def _post_strided(
    session: int, peer: int, direction: Direction, columns: Strided, notify: bytes | None
) -> tuple[Status, int]:
    return _call(session, lambda s: s.post_strided(peer, direction, columns, notify), 0)


def _cancel(session: int, request: int) -> Status:
    return _call(session, lambda s: s.cancel(request), None)[0]


def _poll(session: int, records: npt.NDArray[Any]) -> tuple[Status, int]:
    return _call(session, lambda s: s.poll(records), 0)


def _send_notification(session: int, peer: int, payload: bytes) -> Status:
    return _call(session, lambda s: s.send_notification(peer, payload), None)[0]


def _poll_notifications(session: int, count_max: int) -> tuple[Status, list[tuple[int, bytes]]]:
    return _call(session, lambda s: s.poll_notifications(count_max), [])


def _wakeup_fd(session: int) -> tuple[Status, int]:
    return _call(session, Session.wakeup_fd, -1)


def _last_error(session: int) -> str:
    status, text = _call(session, Session.last_error, "")
    return text if status == Status.OK else _last_refusal["text"]


OPS: Final[TransportOps] = attrs.evolve(
    stub_ops("capi"),
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
"""The table. Every slot is filled: which ones a session can do say its flags."""
