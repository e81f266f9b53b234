"""The reference transport: real one-sided writes between sessions of one process.

Owns the ops table over a hub, and the rule that no exception crosses it. Knows
no network, no clock and no chance. Invariants:

- bytes move only in the initiator's `poll` (or in `FaultPlan.release`), so a run
  on one thread is the same each time; requests are carried out in post order;
- once `fence_peer` has said OK, nothing of that link can write any more, not
  even an operation that a fault plan holds.

The hub's own parts are in `loopback_state`, `loopback_engine` and `loopback_hub`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import attrs

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import U64, TransportDescriptor, TransportOps
from kvxfer.transport.stubs import stub_ops

NAME: Final = "loopback"

_P = ParamSpec("_P")
_R = TypeVar("_R")


_NOT_THE_TABLE_S_TYPES: Final = (AttributeError, OverflowError, TypeError, ValueError)
"""What Python raises where an argument is not of the type that the table asks for."""


def _total(
    hub: Hub, function: Callable[_P, _R], answer: Callable[[Status], _R]
) -> Callable[_P, _R]:
    """`function` with an answer also for arguments that are not of its types."""

    @wraps(function)
    def slot(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except _NOT_THE_TABLE_S_TYPES as error:
            hub.remember(f"{function.__name__}: {error}")
            return answer(Status.OP_INVALID)

    return slot


def make_ops(hub: Hub) -> TransportOps:
    """A table over a hub of its own: nothing outside can reach its sessions.

    Handles count from 1 in each hub and each session, so that two runs with two
    hubs of the same token give the same handles and blobs.
    """

    def post_write(
        session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
    ) -> tuple[Status, int]:
        return hub.post("write", session, peer, (local, remote, length), notify)

    def post_read(
        session: int, peer: int, local: U64, remote: U64, length: U64, notify: bytes | None
    ) -> tuple[Status, int]:
        return hub.post("read", session, peer, (local, remote, length), notify)

    def total(function: Callable[_P, _R], answer: Callable[[Status], _R]) -> Callable[_P, _R]:
        return _total(hub, function, answer)

    return attrs.evolve(
        stub_ops(NAME),
        open=total(hub.open, lambda bad: (bad, 0)),
        close=total(hub.close, lambda bad: bad),
        caps=total(hub.caps, lambda _: Caps(0)),
        register_region=total(hub.register_region, lambda bad: (bad, 0)),
        allocate_region=total(hub.allocate_region, lambda bad: (bad, 0, 0)),
        deregister_region=total(hub.deregister_region, lambda bad: bad),
        revoke_region=total(hub.revoke_region, lambda bad: bad),
        peer_create=total(hub.peer_create, lambda bad: (bad, 0, b"")),
        peer_connect=total(hub.peer_connect, lambda bad: bad),
        peer_destroy=total(hub.peer_destroy, lambda bad: bad),
        fence_peer=total(hub.fence_peer, lambda bad: bad),
        post_write=total(post_write, lambda bad: (bad, 0)),
        post_read=total(post_read, lambda bad: (bad, 0)),
        post_strided=total(hub.post_strided, lambda bad: (bad, 0)),
        cancel=total(hub.cancel, lambda bad: bad),
        poll=total(hub.poll, lambda bad: (bad, 0)),
        send_notification=total(hub.send_notification, lambda bad: bad),
        poll_notifications=total(hub.poll_notifications, lambda bad: (bad, [])),
        wakeup_fd=total(hub.wakeup_fd, lambda bad: (bad, -1)),
        last_error=total(hub.last_error, lambda _: "a session handle is an integer"),
    )


OPS: Final = make_ops(Hub())
"""The table whose sessions all find each other in this process."""

DESCRIPTOR: Final = TransportDescriptor(
    name=NAME,
    summary="between threads of one process; the reference, needs no network",
    probe=lambda: (Status.OK, "built in"),
    load=lambda: OPS,
)
