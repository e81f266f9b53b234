"""The table of sessions: each way out of a call is a status, each handle is given once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvxfer.status import Status
from kvxfer.transport.sessions import Refused, SessionTable


class Plain:
    def __init__(self, options: Mapping[str, Any]) -> None:
        if options.get("no"):
            raise Refused(Status.LIBRARY_MISSING, "no = True: nothing to open")
        self.error = ""
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def raising(error: Exception) -> Callable[[Plain], None]:
    def action(_session: Plain) -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (Refused(Status.PEER_BLOB, "blob: bad"), Status.PEER_BLOB, "blob: bad"),
        (TypeError("no number"), Status.OP_INVALID, "TypeError: no number"),
        (OverflowError("too large"), Status.OP_INVALID, "OverflowError: too large"),
        (RuntimeError("broken"), Status.SESSION_FAILED, "RuntimeError: broken"),
    ],
)
def test_whatever_is_raised_becomes_a_status(error: Exception, status: Status, text: str) -> None:
    table = SessionTable(Plain)
    _, handle = table.open({})
    assert table.call(handle, -1, raising(error)) == (status, -1)
    assert table.last_error(handle) == text


def test_arguments_and_answers_go_through() -> None:
    table = SessionTable(Plain)
    _, handle = table.open({})
    assert table.call(handle, 0, lambda _s, a, b: a + b, 2, 3) == (Status.OK, 5)


def test_a_handle_is_never_given_again_and_closed_ones_answer_so() -> None:
    table = SessionTable(Plain)
    _, first = table.open({})
    assert table.close(first) == Status.OK
    assert table.close(first) == Status.CLOSED
    assert table.open({})[1] != first
    for handle in (first, 0, None, [], "1"):
        assert table.call(handle, 7, lambda _s: 1) == (Status.CLOSED, 7)  # type: ignore[arg-type]


def test_a_refused_open_says_why() -> None:
    table = SessionTable(Plain)
    assert table.last_error(0) == "no call has been refused"
    assert table.open({"no": True}) == (Status.LIBRARY_MISSING, 0)
    assert table.last_error(0) == "no = True: nothing to open"
    assert table.open(None) == (Status.OP_INVALID, 0)  # type: ignore[arg-type]
    assert table.last_error(0).startswith("options: AttributeError")


def test_the_end_closes_what_is_open_but_not_under_a_running_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvxfer.transport.sessions._EXIT_WAIT_S", 0.0)
    made: list[Plain] = []

    def make(options: Mapping[str, Any]) -> Plain:
        made.append(Plain(options))
        return made[-1]

    table = SessionTable(make)
    (_, idle), (_, busy) = table.open({}), table.open({})
    inside, leave = threading.Event(), threading.Event()

    def stay(_session: Plain) -> None:
        inside.set()
        leave.wait(10)

    thread = threading.Thread(target=table.call, args=(busy, None, stay))
    thread.start()
    assert inside.wait(10)
    table.close_all()
    leave.set()
    thread.join()
    assert [session.closed for session in made] == [1, 0]
    assert table.call(idle, 0, lambda _s: 1) == (Status.CLOSED, 0)


def test_a_forked_child_closes_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Plain] = []

    def make(options: Mapping[str, Any]) -> Plain:
        made.append(Plain(options))
        return made[-1]

    table = SessionTable(make)
    table.open({})
    monkeypatch.setattr("kvxfer.transport.sessions.os.getpid", lambda: -1)
    table.close_all()
    assert made[0].closed == 0
