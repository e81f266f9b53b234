"""Requests to engines and routers that can be cut in the middle.

Owns one HTTP session and the reading of completions. Refuses to know which engine it
talks to. Invariant: a call ends in exactly one Answer; what went wrong on the way
(an error status, a broken connection) is an answer too, never an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import attrs

from kvxfer.errors import RemoteFault
from kvxfer_vllm.pd.metrics import Snapshot, parse

MODEL_NAME = "tiny"
COMPLETIONS = "/v1/completions"
CALL_S_MAX = 180.0
"""No call is waited for longer than this, whatever its caller allows."""
METRICS_S_MAX = 30.0
EVENT = "data: "
LAST_EVENT = "[DONE]"

Body = dict[str, Any]


@attrs.frozen(kw_only=True)
class Answer:
    """How a call ended. `status` 0: no whole answer came, `text` says why."""

    status: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.status == 200 and bool(self.tokens)

    def __str__(self) -> str:
        what = f"{len(self.tokens)} tokens" if self.good else self.text[:120]
        return f"status {self.status} after {self.seconds:.1f} s: {what}"


@attrs.define
class Call:
    """A request under way."""

    _task: asyncio.Task[Answer]
    first_bytes: asyncio.Event
    """Set once the first part of the answer's body has come."""

    async def wait(self, limit_s: float) -> Answer | None:
        """The answer, or None if there is none within `limit_s`; the call goes on then."""
        done, _ = await asyncio.wait({self._task}, timeout=limit_s)
        return self._task.result() if done else None

    async def result(self) -> Answer:
        """The answer, for which the client's own bound is long enough."""
        return await self._task

    async def await_first_bytes(self, limit_s: float) -> bool:
        """True once the first part of the answer has come; False after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.first_bytes.wait(), limit_s)
        return self.first_bytes.is_set()

    async def cut(self) -> None:
        """Close the connection, as a client that goes away does. Ends the call."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def answered(self) -> bool:
        return self._task.done()


@attrs.define
class Client:
    """Sends requests. One event loop."""

    _session: aiohttp.ClientSession

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[Client]:
        """A client whose connections are fresh for each request, so that cutting one is exact."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield cls(session)

    def start(self, url: str, body: Body, request_id: str | None = None) -> Call:
        """Send a completion request; it runs until it ends or is cut."""
        first_bytes = asyncio.Event()
        headers = {"X-Request-Id": request_id} if request_id else {}
        task = asyncio.create_task(self._complete(url, body, headers, first_bytes))
        return Call(task, first_bytes)

    async def complete(self, url: str, body: Body, request_id: str | None = None) -> Answer:
        """Send a completion request and wait for its end."""
        return await self.start(url, body, request_id).result()

    async def is_up(self, url: str, path: str = "/health") -> bool:
        """True where `path` answers 200."""
        timeout = aiohttp.ClientTimeout(total=2)
        try:
            async with self._session.get(url + path, timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def metrics(self, url: str) -> Snapshot:
        """Scrape /metrics. Raises RemoteFault where the server does not answer with them."""
        timeout = aiohttp.ClientTimeout(total=METRICS_S_MAX)
        try:
            async with self._session.get(url + "/metrics", timeout=timeout) as response:
                response.raise_for_status()
                return parse(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            raise RemoteFault(url, f"{type(broken).__name__}: {broken}", "metrics") from broken

    async def _complete(
        self, url: str, body: Body, headers: Mapping[str, str], first_bytes: asyncio.Event
    ) -> Answer:
        started_s = time.monotonic()
        status, text = 0, ""
        try:
            timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
            async with self._session.post(
                url + COMPLETIONS, json=body, headers=headers, timeout=timeout
            ) as response:
                chunks = []
                async for chunk in response.content.iter_any():
                    first_bytes.set()
                    chunks.append(chunk)
                status, text = response.status, b"".join(chunks).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            text = f"{type(broken).__name__}: {broken}"
        tokens = tokens_of(text) if status == 200 else ()
        return Answer(status=status, tokens=tokens, text=text, seconds=time.monotonic() - started_s)


def tokens_of(text: str) -> tuple[int, ...]:
    """Token ids of a completion, streamed or not; empty where there are none."""
    streamed = [line[len(EVENT) :] for line in text.splitlines() if line.startswith(EVENT)]
    try:
        parts = [json.loads(part) for part in streamed or [text] if part.strip() != LAST_EVENT]
        return tuple(int(token) for part in parts for token in part["choices"][0]["token_ids"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ()


def completion(token_ids: Sequence[int], answer_tokens: int, **more: Any) -> Body:
    """A greedy completion of `answer_tokens` tokens that tells its token ids."""
    return {
        "model": MODEL_NAME,
        "prompt": list(token_ids),
        "max_tokens": answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
