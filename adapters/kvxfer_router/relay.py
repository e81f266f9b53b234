"""D's answer, byte by byte, to the client.

Owns the client's response: which headers pass, when it starts, how it breaks
off. Refuses to know legs other than the one it is given. Invariant: the client
sees a complete answer only if D's was complete; else a stream ends with an error
event and without its usual last one, and any other answer by a cut connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from kvxfer_router.engine import Leg, LegFailed
from kvxfer_router.events import WholeEvents, error_event, is_event_stream
from kvxfer_router.intake import REQUEST_ID
from kvxfer_router.metrics import Outcome

_NOT_PASSED_ON: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        REQUEST_ID.lower(),
    }
)
"""Headers of one hop (RFC 9110 section 7.6.1), and those that are set anew."""


@attrs.frozen(kw_only=True)
class Answer:
    """D's answer from its first bytes on. `first` is empty if the body is."""

    leg: Leg
    status: int
    headers: CIMultiDictProxy[str]
    first: bytes


def passed_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The engine's headers that concern the client."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _NOT_PASSED_ON | named
    )


@attrs.define
class Relay:
    """Answers one client request with one answer of D."""

    request: web.Request
    extra_headers: Mapping[str, str]
    response: web.StreamResponse | None = None
    _events: WholeEvents | None = None

    async def pass_on(self, answer: Answer) -> Outcome:
        """Stream the answer. Raises LegFailed when D's answer breaks off: then `break_off`."""
        response = web.StreamResponse(status=answer.status, headers=passed_headers(answer.headers))
        response.headers.update(self.extra_headers)
        length = answer.headers.get("Content-Length", "")
        if length.isdigit():
            response.content_length = int(length)
        self.response = response
        if is_event_stream(answer.headers) and response.content_length is None:
            self._events = WholeEvents()
        try:
            chunk = answer.first
            await response.prepare(self.request)
            while chunk:
                await self._write(chunk if self._events is None else self._events.feed(chunk))
                chunk = await answer.leg.read()
            await self._write(b"" if self._events is None else self._events.rest())
            await response.write_eof()
        except ConnectionError:
            return Outcome.CANCELLED
        return Outcome.COMPLETED

    async def _write(self, data: bytes) -> None:
        assert self.response is not None
        if data:
            await self.response.write(data)

    async def break_off(self, failed: LegFailed) -> None:
        """End an answer that D did not finish: a clean end would make a part look whole."""
        if self._events is None or self.request.transport is None:
            self.cut()
            return
        try:
            await self._write(error_event(502, str(failed)))
            assert self.response is not None
            await self.response.write_eof()
        except ConnectionError:
            self.cut()

    def cut(self) -> None:
        """End the client's connection."""
        if self.request.transport is not None:
            self.request.transport.abort()
