"""A wrapper that watches both sides of the table keep its rules.

Owns the checks that need nothing but the calls themselves: types of answers,
owner thread, life of handles and requests, use after close. Refuses to look at
memory. Invariant: a rule that is broken is raised at the call that broke it and
kept in the list, so that it is seen even where the caller swallows exceptions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
import numpy.typing as npt

from kvxfer.errors import KvxferError
from kvxfer.status import Status
from kvxfer.transport.answers import ENDS, status_fault, type_fault
from kvxfer.transport.ops import TransportOps
from kvxfer.transport.stubs import SLOTS, overlay

_POSTS: Final = ("post_write", "post_read", "post_strided")


class ContractBroken(KvxferError):
    """A rule of `kvxfer.transport.ops` was broken; `rule` is its number there."""

    def __init__(self, rule: int, slot: str, text: str) -> None:
        super().__init__(f"rule {rule}, {slot}: {text}")
        self.rule = rule
        self.slot = slot


@attrs.define
class _Watched:
    """What has been seen of one session."""

    owner: int
    closed: bool = False
    handles: dict[str, set[int]] = attrs.field(factory=dict)
    requests_open: set[int] = attrs.field(factory=set)
    fences_tried: set[int] = attrs.field(factory=set)


def checked(ops: TransportOps, broken: list[ContractBroken] | None = None) -> TransportOps:
    """`ops`, with `ContractBroken` raised where its caller or the transport breaks a rule.

    What was broken is also appended to `broken`.
    """
    checker = _Checker(ops, [] if broken is None else broken)
    special: dict[str, Callable[..., Any]] = {
        "open": checker.open,
        "close": checker.close,
        "register_region": partial(checker.new_handle, "register_region"),
        "allocate_region": checker.allocate_region,
        "peer_create": partial(checker.new_handle, "peer_create"),
        "fence_peer": checker.fence_peer,
        "post_write": partial(checker.post, "post_write"),
        "post_read": partial(checker.post, "post_read"),
        "post_strided": partial(checker.post, "post_strided"),
        "cancel": checker.cancel,
        "poll": checker.poll,
        "poll_notifications": checker.poll_notifications,
    }
    return overlay(ops, {slot: special.get(slot, partial(checker.plain, slot)) for slot in SLOTS})


class _Checker:
    def __init__(self, ops: TransportOps, broken: list[ContractBroken]) -> None:
        self._ops = ops
        self._broken = broken
        self._sessions: dict[int, _Watched] = {}

    def open(self, options: Any) -> Any:
        status, session = self._call("open", options)
        if status == Status.OK:
            if session <= 0 or session in self._sessions:
                self._raise(4, "open", f"session = {session}: must be positive and new")
            self._sessions[session] = _Watched(owner=threading.get_ident())
        return status, session

    def close(self, session: int) -> Any:
        watched = self._enter("close", session)
        status = self._call("close", session)
        if watched is not None and status == Status.OK:
            watched.closed = True
        return status

    def plain(self, slot: str, session: int, *args: Any) -> Any:
        self._enter(slot, session)
        return self._call(slot, session, *args)

    def new_handle(self, slot: str, session: int, *args: Any) -> Any:
        watched = self._enter(slot, session)
        answer = self._call(slot, session, *args)
        if watched is not None and answer[0] == Status.OK:
            self._new(watched, slot, answer[1])
        return answer

    def allocate_region(self, session: int, length: int, *args: Any) -> Any:
        answer = self.new_handle("allocate_region", session, length, *args)
        status, _, base = answer
        if status == Status.OK and base <= 0:
            self._raise(14, "allocate_region", f"base = {base}: {length} bytes are at no address")
        return answer

    def cancel(self, session: int, request: int) -> Any:
        watched = self._enter("cancel", session)
        status = self._call("cancel", session, request)
        if watched is not None and status in (Status.OK, Status.OP_INVALID):
            is_open = request in watched.requests_open
            if is_open != (status == Status.OK):
                word = "open" if is_open else "not open"
                self._raise(13, "cancel", f"request {request} is {word}, answer {status.name}")
        return status

    def fence_peer(self, session: int, peer: int) -> Any:
        watched = self._enter("fence_peer", session)
        status = self._call("fence_peer", session, peer)
        if watched is not None and status in (Status.OK, Status.NOT_FENCED):
            watched.fences_tried.add(peer)
        return status

    def post(self, slot: str, session: int, peer: int, *args: Any) -> Any:
        watched = self._enter(slot, session)
        status, request = self._call(slot, session, peer, *args)
        if status == Status.OK and watched is not None:
            if peer in watched.fences_tried:
                self._raise(8, slot, f"posted to peer {peer} after a fence was tried")
            self._new(watched, "request", request)
            watched.requests_open.add(request)
        return status, request

    def poll(self, session: int, records: npt.NDArray[Any]) -> Any:
        watched = self._enter("poll", session)
        status, count = self._call("poll", session, records)
        if status == Status.OK and watched is not None:
            if not 0 <= count <= len(records):
                self._raise(5, "poll", f"filled {count} of {len(records)} records")
            for request, _, end in records[:count].tolist():
                if request not in watched.requests_open:
                    self._raise(5, "poll", f"request {request} is not open: it ends once")
                watched.requests_open.discard(request)
                if end not in ENDS:
                    self._raise(7, "poll", f"request {request} ended with {end}")
        return status, count

    def poll_notifications(self, session: int, count_max: int) -> Any:
        self._enter("poll_notifications", session)
        status, taken = self._call("poll_notifications", session, count_max)
        if len(taken) > count_max:
            self._raise(1, "poll_notifications", f"gave {len(taken)}, asked for {count_max}")
        return status, taken

    def _enter(self, slot: str, session: int) -> _Watched | None:
        watched = self._sessions.get(session)
        if watched is None:
            return None
        if watched.closed:
            self._raise(1, slot, f"session {session} is used after its close")
        if watched.owner != threading.get_ident():
            self._raise(3, slot, f"session {session} is called from another thread than its open")
        return watched

    def _call(self, slot: str, *args: Any) -> Any:
        try:
            answer = getattr(self._ops, slot)(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not cross
            self._raise(1, slot, f"{type(error).__name__} crossed the table: {error}")
        text = type_fault(slot, answer)
        if text:
            self._raise(1, slot, text)
        text = status_fault(slot, answer)
        if text:
            # A post that answers anything else than 'never posted' leaves its caller in doubt.
            self._raise(5 if slot in _POSTS else 1, slot, text)
        return answer

    def _new(self, watched: _Watched, kind: str, handle: int) -> None:
        given = watched.handles.setdefault(kind, set())
        if handle <= 0 or handle in given:
            self._raise(4, kind, f"handle = {handle}: must be positive and new")
        given.add(handle)

    def _raise(self, rule: int, slot: str, text: str) -> None:
        error = ContractBroken(rule, slot, text)
        self._broken.append(error)
        raise error
