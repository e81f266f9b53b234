"""Server-sent events: where they end, and which of them tell an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer_router import events
from kvxfer_router.events import WholeEvents, error_event, error_of_event, is_event_stream


@given(st.lists(st.text(alphabet="a\n\r:", max_size=6).map(str.encode), max_size=12))
def test_bytes_pass_unchanged_and_stop_at_an_event_s_end(chunks: list[bytes]) -> None:
    cutter = WholeEvents()
    passed = b""
    for chunk in chunks:
        passed += cutter.feed(chunk)
        assert passed == b"" or passed.endswith((b"\n\n", b"\r\n\r\n"))
    assert passed + cutter.rest() == b"".join(chunks)


def test_whole_events_pass_at_once() -> None:
    cutter = WholeEvents()
    assert cutter.feed(b"data: 1\n\ndata: 2\n\ndata:") == b"data: 1\n\ndata: 2\n\n"
    assert cutter.feed(b" 3\n\n") == b"data: 3\n\n"
    assert cutter.rest() == b""


def test_an_event_without_end_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 10)
    cutter = WholeEvents()
    assert cutter.feed(b"0123456789") == b""
    assert cutter.feed(b"a") == b"0123456789a"


@pytest.mark.parametrize(
    ("kind", "is_stream"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_which_answers_are_streams_of_events(kind: str, is_stream: bool) -> None:
    assert is_event_stream({"Content-Type": kind}) is is_stream
    assert not is_event_stream({})


def test_our_own_error_event_is_one() -> None:
    event = error_event(502, 'with "quotes"\nand a line')
    told = error_of_event(event)
    assert told is not None
    status, text = told
    assert status == 502
    assert json.loads(text)["error"]["message"] == 'with "quotes"\nand a line'
    assert event.count(b"\n\n") == 1


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'data: {"error": {"message": "KV lost", "code": 500}}\n\n', 500),
        (b'data: {"error": {"message": "too long", "code": 400}}\n\ndata: [DONE]\n\n', 400),
        (b'data:{"error":{"code":"odd"}}\n\n', 500),
        (b'data: {"error": {"code": 7}}\n\n', 500),
    ],
)
def test_errors_as_engines_tell_them(event: bytes, status: int) -> None:
    told = error_of_event(event)
    assert told is not None
    assert told[0] == status


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"data: [DONE]\n\n",
        b'data: {"choices": [{"text": "the \\"error\\" of my ways"}]}\n\n',
        b'data: {"error": null, "choices": []}\n\n',
        b'data: {"error": {"code": 500}\n\n',
        b': "error"\n\n',
        b'data: ["error"]\n\n',
    ],
)
def test_everything_else_is_no_error(event: bytes) -> None:
    assert error_of_event(event) is None
