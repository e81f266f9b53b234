"""Server-sent events, as far as a relay must understand them.

Owns where one event ends, and the form of an error in a stream (both as OpenAI's clients
and vLLM have them). Refuses to know legs and responses. Invariant: the bytes that `feed`
gave out end where an event ends, so that an error event may follow at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

EVENT_BYTES_MAX: Final = 1 << 20
"""An event that is longer is passed on in pieces."""

_ENDS: Final = (b"\n\n", b"\r\n\r\n")


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """True where the body is a stream of events."""
    kind = headers.get("Content-Type", "").partition(";")[0]
    return kind.strip().lower() == "text/event-stream"


def has_whole_event(data: bytes) -> bool:
    """True where an event ends in these bytes."""
    return any(end in data for end in _ENDS)


@attrs.define
class WholeEvents:
    """Cuts a stream of bytes behind whole events. A client could do nothing with less."""

    _held: bytes = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now that `chunk` has come."""
        held = self._held + chunk
        cut = max(held.rfind(end) + len(end) if end in held else 0 for end in _ENDS)
        if len(held) - cut > EVENT_BYTES_MAX:
            cut = len(held)
        self._held = held[cut:]
        return held[:cut]

    def rest(self) -> bytes:
        """What is left at the end of the stream."""
        rest, self._held = self._held, b""
        return rest


def error_object(status: int, message: str) -> dict[str, Any]:
    """An error in the form that OpenAI's clients read, in an answer or an event."""
    kind = "invalid_request_error" if status < 500 else "router_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_event(status: int, message: str) -> bytes:
    """The event by which a stream ends that has no good end."""
    return b"data: " + json.dumps(error_object(status, message)).encode() + b"\n\n"


def error_of_event(event: bytes) -> tuple[int, bytes] | None:
    """The status and the JSON of an event that tells an error; None for every other event."""
    line = event.split(b"\n", 1)[0]
    if not line.startswith(b"data:") or b'"error"' not in line:
        return None
    text = line.removeprefix(b"data:").strip()
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    return (code if type(code) is int and 400 <= code < 600 else 500), text
