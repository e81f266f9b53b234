"""One leg: an HTTP exchange with one engine.

Owns how a leg is sent, how its failures are named, and that its connection is
closed when it is dropped. Refuses to know the order of legs and the client.
Invariant: a leg never raises an aiohttp error; a failure is a LegFailed that
says which leg, of what kind, and why.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

import aiohttp
import attrs
from multidict import CIMultiDict, CIMultiDictProxy

from kvxfer_router.config import RouterConfig
from kvxfer_router.legs import Body
from kvxfer_router.pool import Engine, Seat

ANSWER_BYTES_MAX: Final = 16 << 20
"""Largest answer read whole: P's answer to a prefill leg, or an error's text."""

KEEPALIVE_S: Final = 2.0
"""An idle connection is dropped well before the servers' own 5 s, since a POST
that meets a closing connection cannot be repeated safely."""

REASON_CHARS_MAX: Final = 500
"""How much of an engine's error text goes into a reason."""

RANK_HEADER: Final = "X-data-parallel-rank"
"""By this header vLLM's server takes the choice of the rank from the router."""

UNAVAILABLE: Final = frozenset({502, 503, 504})
"""Statuses by which an engine, or what stands before it, says that it serves nobody now."""


class FailureKind(Enum):
    """Why a leg brought no usable answer; the label `kind` of the metrics."""

    UNREACHABLE = "unreachable"
    """No connection could be made: the engine is down. Nothing was sent."""
    TIMEOUT = "timeout"
    """Connected, then silent for longer than the idle bound."""
    BROKEN = "broken"
    """The connection ended before the answer did."""
    STATUS = "status"
    """The engine answered, with an error status."""
    ANSWER = "answer"
    """The answer is not JSON, too large, or lacks kv_transfer_params."""
    NO_ENGINE = "no_engine"
    """No engine of this kind may be asked now. Nothing was sent."""


NO_HEADERS: Final[CIMultiDictProxy[str]] = CIMultiDictProxy(CIMultiDict())


class LegFailed(Exception):
    """A leg failed. `status`, `text` and `headers` are the engine's own when it answered."""

    def __init__(
        self,
        leg: str,
        kind: FailureKind,
        reason: str,
        status: int = 0,
        text: bytes = b"",
        headers: CIMultiDictProxy[str] = NO_HEADERS,
    ) -> None:
        super().__init__(f"{leg} leg: {reason}")
        self.leg = leg
        self.kind = kind
        self.status = status
        self.text = text
        self.headers = headers

    @property
    def repeatable(self) -> bool:
        """True where another engine may do better; a request that is wrong is wrong there, too."""
        if self.kind is FailureKind.STATUS:
            return self.status == 429 or self.status >= 500
        return self.kind is not FailureKind.NO_ENGINE

    @property
    def accuses(self) -> bool:
        """True where the failure speaks against the engine, and not just against the request.

        Not a 500: that may be a request, or KV that P has lost. An engine that is dead
        behind it fails its health checks.
        """
        if self.kind is FailureKind.STATUS:
            return self.status in UNAVAILABLE
        return self.kind not in (FailureKind.ANSWER, FailureKind.NO_ENGINE)

    @property
    def may_be_the_kv(self) -> bool:
        """True where D failed by itself or for want of P's KV: vLLM tells both in the same way."""
        return self.kind is FailureKind.STATUS and self.status >= 500 and not self.accuses


def failure_of(leg: str, error: BaseException) -> LegFailed:
    """Name an error of the HTTP client. Connecting is told from everything later."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return LegFailed(leg, FailureKind.UNREACHABLE, f"no connection ({error})")
    if isinstance(error, TimeoutError):
        return LegFailed(leg, FailureKind.TIMEOUT, "silent for too long")
    detail = str(error) or type(error).__name__
    return LegFailed(leg, FailureKind.BROKEN, f"connection broke off ({detail})")


CLIENT_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What the HTTP client raises when an engine misbehaves."""


def open_session(config: RouterConfig) -> aiohttp.ClientSession:
    """The session for all legs: no pool bound, no total time, no decompression.

    The number of open legs is bounded by the clients, and a bound here could
    hold back a D leg behind its own P leg. Bytes are passed on as they came.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_timeout_s, sock_read=config.idle_timeout_s
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


@attrs.define
class Leg:
    """One POST to one engine. `close` may be called at any time and is repeatable."""

    name: str
    engine: Engine
    seat: Seat
    session: aiohttp.ClientSession
    response: aiohttp.ClientResponse | None = None

    async def send(
        self, path: str, headers: Mapping[str, str], body: Body
    ) -> aiohttp.ClientResponse:
        """Send the body, return when the status and headers have come."""
        # As a file, the body goes out in pieces: a long prompt does not hold up the loop.
        data = io.BytesIO(json.dumps(body, separators=(",", ":")).encode())
        spec = self.engine.spec
        rank = {} if spec.dp_rank is None else {RANK_HEADER: str(spec.dp_rank)}
        try:
            self.response = await self.session.post(
                spec.url.rstrip("/") + path,
                data=data,
                headers={**headers, **rank, "Content-Type": "application/json"},
                allow_redirects=False,
            )
        except CLIENT_ERRORS as error:
            raise failure_of(self.name, error) from error
        return self.response

    async def read(self) -> bytes:
        """The next bytes of the answer as they come; empty at its end."""
        assert self.response is not None
        try:
            return await self.response.content.readany()
        except CLIENT_ERRORS as error:
            raise failure_of(self.name, error) from error

    async def read_whole(self) -> bytes:
        """The rest of the answer, at most ANSWER_BYTES_MAX."""
        parts: list[bytes] = []
        size = 0
        while part := await self.read():
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise LegFailed(
                    self.name, FailureKind.ANSWER, f"answer exceeds {ANSWER_BYTES_MAX} bytes"
                )
            parts.append(part)
        return b"".join(parts)

    async def fail_by_status(self) -> None:
        """Raise what an error status means, with the engine's own words. None: no error."""
        assert self.response is not None
        if self.response.status < 400:
            return
        text = await self.read_whole()
        shown = text[:REASON_CHARS_MAX].decode(errors="replace")
        raise LegFailed(
            self.name,
            FailureKind.STATUS,
            f"status {self.response.status}: {shown}",
            status=self.response.status,
            text=text,
            headers=self.response.headers,
        )

    async def ask(self, path: str, headers: Mapping[str, str], body: Body) -> Any:
        """Send, and read a whole JSON answer that is no error and no redirection."""
        response = await self.send(path, headers, body)
        await self.fail_by_status()
        text = await self.read_whole()
        if response.status >= 300:
            raise LegFailed(self.name, FailureKind.ANSWER, f"redirected ({response.status})")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as bad:
            raise LegFailed(self.name, FailureKind.ANSWER, f"not JSON ({bad})") from bad

    def close(self) -> None:
        """End the exchange: a connection with an unfinished answer is closed."""
        self.seat.leave()
        if self.response is not None:
            self.response.close()


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks that were started here and wait until they have ended.

    All are cancelled before the first wait, so that a caller who is cancelled
    himself while he waits leaves none running.
    """
    ended = list(tasks)
    for task in ended:
        task.cancel()
    if running := [task for task in ended if not task.done()]:
        await asyncio.wait(running)
    for task in ended:
        if not task.cancelled():
            # The error, if any, was for a reader who has left; taking it marks it as seen.
            task.exception()
