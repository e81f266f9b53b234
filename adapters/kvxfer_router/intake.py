"""From an HTTP request to a call that may be dispatched, or a refusal.

Owns the checks of a client's request and the making of names. Refuses to check
what the engines check themselves (model, prompt, sampling). Invariant: a
ClientCall holds a JSON object without peers, and names that no other dispatch
has or will have.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

import attrs
from aiohttp import web
from multidict import CIMultiDictProxy

from kvxfer_router.config import Mode, RouterConfig
from kvxfer_router.legs import Body, Names, without_peers
from kvxfer_router.prompts import Prompt, prompt_of

MODE_HEADER: Final = "X-Kvxfer-Mode"
REQUEST_ID: Final = "X-Request-Id"
CLIENT_ID_CHARS_MAX: Final = 128

_PASSED_ON: Final = ("Authorization", "traceparent", "tracestate")
"""Client headers that both engines get: the key to them, and the trace."""


class Refused(Exception):
    """The router itself turns a request down. `reason` is a label of the metrics."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@attrs.frozen(kw_only=True)
class ClientCall:
    """One request of a client, checked. `headers` go to every engine."""

    path: str
    body: Body
    mode: Mode
    names: Names
    headers: Mapping[str, str]
    prompt: Prompt


async def read_call(request: web.Request, config: RouterConfig) -> ClientCall:
    """Read and check one request. Raises Refused."""
    mode = _mode(request.headers, config.mode)
    body = await _body(request, config.body_timeout_s)
    names = make_names(request.headers.get(REQUEST_ID, ""))
    return ClientCall(
        path=request.path,
        body=without_peers(body),
        mode=mode,
        names=names,
        headers=engine_headers(request.headers, names.request_id),
        prompt=prompt_of(request.path, body),
    )


def make_names(client_id: str) -> Names:
    """Fresh names; the client's own id stays readable as a prefix.

    Clients repeat their ids, on a retry for one, and engines pair by this header
    when they know no `transfer_id`. So an id never goes out twice.
    """
    transfer_id = uuid.uuid4().hex
    prefix = re.sub(r"[^A-Za-z0-9._:-]", "", client_id)[:CLIENT_ID_CHARS_MAX]
    return Names(
        transfer_id=transfer_id,
        request_id=f"{prefix}-{transfer_id}" if prefix else transfer_id,
    )


def engine_headers(headers: CIMultiDictProxy[str], request_id: str) -> dict[str, str]:
    """Headers for an engine. No compression: it would hold streamed bytes back."""
    passed_on = {name: headers[name] for name in _PASSED_ON if name in headers}
    return {**passed_on, "Accept-Encoding": "identity", REQUEST_ID: request_id}


def _mode(headers: CIMultiDictProxy[str], default_mode: Mode) -> Mode:
    value = headers.get(MODE_HEADER)
    if value is None:
        return default_mode
    try:
        return Mode(value.strip().lower())
    except ValueError:
        raise Refused(
            400, "bad_mode", f"header {MODE_HEADER} = {value!r}: must be push, pull or auto"
        ) from None


async def _body(request: web.Request, timeout_s: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            text = await request.read()
    except TimeoutError:
        raise Refused(
            408, "slow_body", f"request body did not come within {timeout_s:g} s"
        ) from None
    except web.HTTPRequestEntityTooLarge as large:
        raise Refused(413, "too_large", f"request body: {large.text}") from large
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise Refused(400, "bad_json", f"request body is not JSON: {bad}") from bad
    if not isinstance(body, dict):
        raise Refused(
            400,
            "not_an_object",
            f"request body must be a JSON object, got {type(body).__name__}",
        )
    return body
