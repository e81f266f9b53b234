"""The sessions of a transport that is written in Python, by their handles.

Owns the handles, one lock per session, and the rule that no exception crosses the
table. Refuses to know any network. Invariants: a session handle is never given again;
at the end of the interpreter each session that this process opened has been closed,
but for one that another thread is still inside.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from kvxfer.status import Status

_EXIT_WAIT_S: Final = 2.0
"""How long the end of the interpreter waits for a call that another thread is in."""


class Refused(Exception):
    """A call answers with a status that is not OK; caught by the table, never seen outside."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Closable(Protocol):
    """What a session must have. `error` is the text of the last refusal."""

    error: str

    def close(self) -> None: ...


_S = TypeVar("_S", bound=Closable)
_T = TypeVar("_T")


@attrs.define(eq=False)
class _Held(Generic[_S]):
    """A session with its lock. `pid` is that of the process that opened it."""

    session: _S
    pid: int
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    closed: bool = False


@attrs.define(eq=False)
class SessionTable(Generic[_S]):
    """All open sessions of one transport; `make` opens one from its options."""

    make: Callable[[Mapping[str, Any]], _S]
    _held: dict[int, _Held[_S]] = attrs.field(factory=dict, init=False)
    _handles: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _refusal: str = attrs.field(default="no call has been refused", init=False)

    def __attrs_post_init__(self) -> None:
        atexit.register(self.close_all)

    def open(self, options: Mapping[str, Any]) -> tuple[Status, int]:
        """The slot `open`."""
        try:
            session = self.make(options)
        except Refused as answer:
            self._refusal = str(answer)
            return answer.status, 0
        except (AttributeError, TypeError) as error:
            self._refusal = f"options: {text_of(error)}"
            return Status.OP_INVALID, 0
        handle = next(self._handles)
        self._held[handle] = _Held(session, os.getpid())
        return Status.OK, handle

    def close(self, session: int) -> Status:
        """The slot `close`."""
        status, _ = self.call(session, None, lambda s: s.close())
        if status == Status.OK:
            self._held.pop(session).closed = True
        return status

    def last_error(self, session: int) -> str:
        """The slot `last_error`; of a session that is not open, the last refusal of `open`."""
        status, text = self.call(session, "", lambda s: s.error)
        return text if status == Status.OK else self._refusal

    def call(
        self, session: int, nothing: _T, action: Callable[..., _T], *args: Any
    ) -> tuple[Status, _T]:
        """`action(session, *args)`: every way in which it can end is a status.

        `nothing` stands beside a status that is not OK.
        """
        try:
            held = self._held.get(session)
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
                held.session.error = text_of(error)
                return Status.OP_INVALID, nothing
            except Exception as error:  # noqa: BLE001 - rule 1: whatever it is, it must not cross
                held.session.error = text_of(error)
                return Status.SESSION_FAILED, nothing

    def close_all(self) -> None:
        """What the end of the interpreter does."""
        for held in list(self._held.values()):
            # After a fork the session is the parent's. A thread that is still inside a call keeps
            # its session: taking it from under that thread would be worse than leaving it.
            if held.pid == os.getpid() and held.lock.acquire(timeout=_EXIT_WAIT_S):
                held.closed = True
                held.session.close()
                held.lock.release()


def text_of(error: BaseException) -> str:
    """One line for people."""
    return f"{type(error).__name__}: {error}"
