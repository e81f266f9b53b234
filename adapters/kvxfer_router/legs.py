"""The bodies of the two legs, as pure functions of a client's body.

Owns what P and D are asked and how P's answer is read. Refuses to know HTTP,
clocks and chance. Invariant: no body that leaves here carries a peer's name that
came from a client; and the two legs of one dispatch carry the same
`transfer_id`. The fields are those of vLLM's P/D contract, so that the same
router drives engines with other connectors.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import attrs

from kvxfer.errors import BadValue
from kvxfer_router.config import Coordinates

Body = dict[str, Any]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_PEER_FIELDS = ("kv_transfer_params", "ec_transfer_params")
"""Fields by which a body names other engines. `ec` is the encoder cache's own."""

_NOT_FOR_PREFILL = ("stream_options", "min_tokens", "max_completion_tokens")
"""Wrong together with one token that is not streamed."""


@attrs.frozen(kw_only=True)
class Names:
    """What ties the legs of one dispatch together.

    `transfer_id` pairs them at P and D; `request_id` goes out as X-Request-Id of
    both. No engine is ever sent the same names twice (docs/design/router.md): `attempt`
    counts the engines to which a leg under these names was directed, in vain but the last.
    """

    transfer_id: str
    request_id: str
    attempt: int = 1

    def next_attempt(self) -> Names:
        """The same names, for another engine in the place of one that never heard them."""
        return attrs.evolve(self, attempt=self.attempt + 1)

    def of_round(self, number: int) -> Names:
        """Other names for another try; the first ones stay readable in them."""
        return Names(
            transfer_id=f"{self.transfer_id}-{number}", request_id=f"{self.request_id}-{number}"
        )


def without_peers(body: Mapping[str, Any]) -> Body:
    """The client's body without the fields that name engines.

    vLLM merges `vllm_xargs` into the place where `kv_transfer_params` ends up,
    so both spellings go.
    """
    clean = {key: value for key, value in body.items() if key not in _PEER_FIELDS}
    extra = clean.get("vllm_xargs")
    if isinstance(extra, dict):
        clean["vllm_xargs"] = {k: v for k, v in extra.items() if k not in _PEER_FIELDS}
    return clean


def reason_not_to_split(path: str, body: Mapping[str, Any]) -> str | None:
    """Why this body cannot be served by one transfer, or None when it can.

    One transfer moves the KV of one prompt to one sequence. A body with several
    sequences, or one whose answer needs the prompt computed at D (log
    probabilities of the prompt skip the prefix cache), goes to D alone.
    """
    if body.get("n") not in (None, 1):
        return "several_answers"
    if body.get("best_of") not in (None, 1) or body.get("use_beam_search"):
        return "several_answers"
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    if path != COMPLETIONS:
        return None
    if body.get("echo") and body.get("logprobs") is not None:
        return "prompt_logprobs"
    if body.get("prompt_embeds") is not None:
        return "prompt_embeds"
    return "several_prompts" if _prompt_count(body.get("prompt")) > 1 else None


def _prompt_count(prompt: object) -> int:
    """Prompts in the `prompt` field: a text, a list of token ids, or a list of either."""
    if not isinstance(prompt, list) or not prompt:
        return 1
    if all(isinstance(item, int) for item in prompt):
        return 1
    return len(prompt)


def prefill_body(path: str, body: Mapping[str, Any], transfer_id: str) -> Body:
    """What P is asked: the same prompt, one token, not streamed, KV kept for D."""
    leg = {key: value for key, value in body.items() if key not in _NOT_FOR_PREFILL}
    leg["max_tokens"] = 1
    if path == CHAT:
        leg["max_completion_tokens"] = 1
    leg["stream"] = False
    leg["kv_transfer_params"] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
        "transfer_id": transfer_id,
    }
    return leg


def push_decode_body(
    path: str, body: Mapping[str, Any], names: Names, coordinates: Coordinates
) -> Body:
    """What D is asked in push mode: register with the P at these coordinates.

    `remote_request_id` is the id that P's HTTP server will make of the header;
    connectors that pair by id need it, ours pairs by `transfer_id`.
    """
    return {
        **body,
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": coordinates.engine_id,
            "remote_host": coordinates.kv_host,
            "remote_port": coordinates.kv_port,
            "tp_size": coordinates.tp_size,
            "pp_size": coordinates.pp_size,
            "remote_request_id": engine_request_id(path, names.request_id),
            "transfer_id": names.transfer_id,
            "attempt": names.attempt,
        },
    }


def pull_decode_body(
    body: Mapping[str, Any], prefill_params: Mapping[str, Any], transfer_id: str
) -> Body:
    """What D is asked in pull order: P's answer unread, with our id if P gave none."""
    named = prefill_params.get("transfer_id") or transfer_id
    return {**body, "kv_transfer_params": {**prefill_params, "transfer_id": named}}


def engine_request_id(path: str, request_id: str) -> str:
    """The id a vLLM server gives to a request with this X-Request-Id (first prompt)."""
    return f"chatcmpl-{request_id}" if path == CHAT else f"cmpl-{request_id}-0"


def params_of_answer(answer: object) -> Mapping[str, Any] | None:
    """P's `kv_transfer_params`, or None when the answer holds none."""
    params = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
    return params if isinstance(params, dict) and params else None


def coordinates_of_params(
    params: Mapping[str, Any], known: Coordinates | None
) -> Coordinates | None:
    """P's coordinates as its own answer states them; None when it does not.

    An address of P's own machine (`localhost`, a wildcard) says nothing about
    how D reaches P, so it never replaces a host that is known.
    """
    engine_id, host, port = (
        params.get(key) for key in ("remote_engine_id", "remote_host", "remote_port")
    )
    if not isinstance(engine_id, str) or not isinstance(host, str) or type(port) is not int:
        return None
    if known is not None and _is_local(host):
        host = known.kv_host
    try:
        return Coordinates(
            engine_id=engine_id,
            kv_host=host,
            kv_port=port,
            tp_size=_rank_count(params.get("tp_size"), known.tp_size if known else 1),
            pp_size=_rank_count(params.get("pp_size"), known.pp_size if known else 1),
        )
    except BadValue:
        return None


def _rank_count(value: object, otherwise: int) -> int:
    return value if type(value) is int else otherwise


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
