"""Reads a request's `kv_transfer_params`, once, into a frozen record.

Owns the field names that vLLM routers send (vLLM nixl connectors, 0.24 to 0.33) and
four of our own. Refuses to know what the engine does with them. Invariant:
`parse_params` is total: whatever the client sent gives a record, never an exception;
what is wrong is named in `problem`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import attrs

from kvxfer_vllm.config import MODES, PORT_MAX, port_of_rank
from kvxfer_vllm.names import is_transfer_name

TEXT_BYTES_MAX = 256
"""Longest transfer_id, engine id and host name that is taken from a request."""

TRANSFER_NAME_KEY = "kvx_transfer"
"""Our own key in a producer's answer: the exact name under which it holds the offer."""
MODE_KEY = "kvx_mode"
"""Our own key of a decode leg: who moves this request's KV, where D's connector leaves it open."""
STREAM_KEY = "kvx_stream"
"""Our own key of a prefill leg: false where this prefill is to be offered at its end only."""
TOKENS_DIGEST_KEY = "kvx_tokens_digest"
"""Our own key in a decode engine's answer: hash of the tokens whose KV it keeps, in hex."""

RANKS_MAX = 1024
REQUEST_ID_BYTES_MAX = 1024
TOKENS_MAX = 1 << 31
DIGEST_BYTES = 32


class Leg(Enum):
    """What this engine has to do for a request."""

    NONE = auto()
    PRODUCE = auto()
    CONSUME = auto()


@attrs.frozen(kw_only=True)
class Kept:
    """KV of an earlier turn that a decode engine says it still holds: its first tokens."""

    engine_id: str
    host: str
    port: int
    ranks: int
    """Workers of that engine."""
    request_id: str
    """The decode engine's own, of that turn."""
    token_count: int
    digest: bytes = b""
    """Of those tokens; empty where a router dropped it."""


@attrs.frozen(kw_only=True)
class LegParams:
    """The checked parameters of one leg.

    `problem` is empty or says, for people, which field is wrong and why; the other
    fields are then only as good as they could be read.
    """

    leg: Leg
    transfer_id: str | None = None
    """Made by the router, the same on both legs; None where it sent none."""
    transfer_name: str | None = None
    """The producer's own name for the transfer, when its answer was passed on (legs in series)."""
    remote_engine_id: str = ""
    remote_host: str = ""
    remote_port: int = 0
    traceparent: str = ""
    """W3C trace context, where the router put it here and not into a header."""
    remote_ranks: int = 1
    """Workers of the producing engine: tensor ranks times pipeline stages."""
    mode: str = ""
    """Who moves the data, where the request says so."""
    streams: bool = True
    problem: str = ""
    kept: Kept | None = None
    """On P's leg: what may be loaded instead of computed."""
    kept_problem: str = ""
    """Why what came of it is of no use; the leg can do without."""


class _Wrong(Exception):
    pass


def parse_params(params: object) -> LegParams:
    """Read `kv_transfer_params` as it came with the request. Never raises."""
    if params is None:
        return LegParams(leg=Leg.NONE)
    if not isinstance(params, Mapping):
        problem = f"kv_transfer_params = {_show(params)}: not an object"
        return LegParams(leg=Leg.NONE, problem=problem)
    produce = params.get("do_remote_decode")
    consume = params.get("do_remote_prefill")
    if not produce and not consume:
        return LegParams(leg=Leg.NONE)
    leg = Leg.CONSUME if consume else Leg.PRODUCE
    try:
        _check_flags(produce, consume)
        if leg is Leg.PRODUCE:
            return _producer(params)
        return _consumer(params)
    except _Wrong as wrong:
        return LegParams(leg=leg, problem=str(wrong))


def _check_flags(produce: object, consume: object) -> None:
    for field, value in (("do_remote_decode", produce), ("do_remote_prefill", consume)):
        if value is not None and not isinstance(value, bool):
            raise _Wrong(f"{field} = {_show(value)}: not true, false or null")
    if produce and consume:
        raise _Wrong("do_remote_decode and do_remote_prefill are both true")


def _producer(params: Mapping[Any, Any]) -> LegParams:
    streams = params.get(STREAM_KEY, True)
    if not isinstance(streams, bool):
        raise _Wrong(f"{STREAM_KEY} = {_show(streams)}: not true or false")
    leg = LegParams(
        leg=Leg.PRODUCE,
        transfer_id=_transfer_id(params),
        streams=streams,
        traceparent=_traceparent(params),
    )
    if not params.get("remote_block_ids"):
        return leg
    try:
        return attrs.evolve(leg, kept=_kept(params))
    except _Wrong as wrong:
        return attrs.evolve(leg, kept_problem=str(wrong))


def _kept(params: Mapping[Any, Any]) -> Kept:
    tokens = params.get("remote_num_tokens")
    if type(tokens) is not int or not 0 < tokens < TOKENS_MAX:
        raise _Wrong(f"remote_num_tokens = {_show(tokens)}: not an integer above 0")
    port, ranks = _place(params)
    return Kept(
        engine_id=_text(params, "remote_engine_id"),
        host=_text(params, "remote_host"),
        port=port,
        ranks=ranks,
        request_id=_text(params, "remote_request_id", REQUEST_ID_BYTES_MAX),
        token_count=tokens,
        digest=_digest(params.get(TOKENS_DIGEST_KEY)),
    )


def _digest(value: object) -> bytes:
    if value is None:
        return b""
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise _Wrong(f"{TOKENS_DIGEST_KEY} = {_show(value)}: not {DIGEST_BYTES} bytes in hex")
    return digest


def _place(params: Mapping[Any, Any]) -> tuple[int, int]:
    """The first rank's port, and how many ranks there are."""
    tensor, pipeline = (_size(params, field, RANKS_MAX) for field in ("tp_size", "pp_size"))
    _size(params, "dcp_size", 1)
    port = params.get("remote_port")
    if type(port) is not int or not 0 < port < 65536:
        raise _Wrong(f"remote_port = {_show(port)}: not an integer from 1 to 65535")
    ranks = tensor * pipeline
    if ranks > RANKS_MAX or port_of_rank(port, ranks - 1) > PORT_MAX:
        raise _Wrong(f"remote_port = {port}: {ranks} ranks would have ports above {PORT_MAX}")
    return port, ranks


def _consumer(params: Mapping[Any, Any]) -> LegParams:
    name = params.get(TRANSFER_NAME_KEY)
    if name is not None and not is_transfer_name(name):
        raise _Wrong(f"{TRANSFER_NAME_KEY} = {_show(name)}: not a name that a producer gave")
    port, ranks = _place(params)
    mode = params.get(MODE_KEY, "")
    if mode not in ("", *MODES):
        raise _Wrong(f"{MODE_KEY} = {_show(mode)}: not one of {tuple(MODES)}")
    return LegParams(
        leg=Leg.CONSUME,
        transfer_id=_transfer_id(params),
        transfer_name=name,
        remote_engine_id=_text(params, "remote_engine_id"),
        remote_host=_text(params, "remote_host"),
        remote_port=port,
        traceparent=_traceparent(params),
        remote_ranks=ranks,
        mode=mode,
    )


def _size(params: Mapping[Any, Any], field: str, high: int) -> int:
    value = params.get(field)
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= high:
        bound = "only 1 is supported" if high == 1 else f"not an integer from 1 to {high}"
        raise _Wrong(f"{field} = {_show(value)}: {bound}")
    return value


def _transfer_id(params: Mapping[Any, Any]) -> str | None:
    if params.get("transfer_id") is None:
        return None
    return _text(params, "transfer_id")


def _traceparent(params: Mapping[Any, Any]) -> str:
    """Never a problem: a trace must not cost a request its transfer."""
    value = params.get("traceparent")
    return value if isinstance(value, str) and len(value) <= TEXT_BYTES_MAX else ""


def traceparent_of(request: Any, params: LegParams) -> str:
    """The context of a request: of its parameters, else of its HTTP headers; empty: of none."""
    headers = getattr(request, "trace_headers", None)
    return params.traceparent or (_traceparent(headers) if isinstance(headers, Mapping) else "")


def _text(params: Mapping[Any, Any], field: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    value = params.get(field)
    if not isinstance(value, str) or not value:
        raise _Wrong(f"{field} = {_show(value)}: not a text that is not empty")
    if not value.isprintable():
        raise _Wrong(f"{field} = {_show(value)}: has characters that cannot be printed")
    size = len(value.encode())
    if size > bytes_max:
        raise _Wrong(f"{field} = {_show(value)}: {size} bytes, at most {bytes_max}")
    return value


def _show(value: object) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else text[:57] + "..."
