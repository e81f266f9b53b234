"""Names a transfer so that both legs of one request come to the same name.

Owns the form of the name. Knows vLLM's request ids as text only. Invariant: names
of different origin never collide (the first letter tells the origin), and two engine
requests of one HTTP request (several prompts, n > 1) never share a name.

    x<child>.<prompt>:<transfer_id>   the router gave `transfer_id` to both legs
    r:<request id without suffix>     derived: both legs carry the same X-Request-Id
    h:<sha256 of the above, in hex>   derived, where the request id is too long
    b:<request id>                    read-back: what D kept of the request of that id
"""

from __future__ import annotations

import hashlib
import re

from kvxfer.driver import TransferId

NAME_BYTES_MAX = 400

_SUFFIX = re.compile(r"-[0-9a-f]{8}\Z")
_CHILD = re.compile(r"\A(\d{1,6})_")
_PROMPT = re.compile(r"\A(?:\d{1,6}_)?cmpl-.*-(\d{1,6})\Z", re.DOTALL)
_NAME = re.compile(r"\A(?:x\d{1,6}\.\d{1,6}|r|h|b):.+\Z", re.DOTALL)


def base_request_id(request_id: str, *, randomized: bool) -> str:
    """The request id without the 8 random hex digits that vLLM appends.

    Pass randomized=False where VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set: nothing
    is appended there.
    """
    return _SUFFIX.sub("", request_id) if randomized else request_id


def derived_name(request_id: str, *, randomized: bool) -> TransferId:
    """Name a transfer by what both legs share when the router gave no transfer_id."""
    base = base_request_id(request_id, randomized=randomized)
    encoded = base.encode("utf-8", "surrogatepass")
    if len(encoded) > NAME_BYTES_MAX or not base.isprintable():
        return TransferId("h:" + hashlib.sha256(encoded).hexdigest())
    return TransferId("r:" + base)


def explicit_name(transfer_id: str, request_id: str, *, randomized: bool) -> TransferId:
    """Name a transfer by the router's transfer_id and the request's place in its HTTP request.

    A completions request with several prompts, or n > 1, becomes several engine
    requests under one transfer_id; vLLM puts both counters into the request id.
    """
    base = base_request_id(request_id, randomized=randomized)
    child = _CHILD.match(base)
    prompt = _PROMPT.match(base)
    child_index = int(child[1]) if child else 0
    prompt_index = int(prompt[1]) if prompt else 0
    return TransferId(f"x{child_index}.{prompt_index}:{transfer_id}")


def kept_name(request_id: str) -> TransferId:
    """Name the transfer back to P by the decode engine's own, whole request id."""
    encoded = request_id.encode("utf-8", "surrogatepass")
    if len(encoded) > NAME_BYTES_MAX or not request_id.isprintable():
        return TransferId("b:" + hashlib.sha256(encoded).hexdigest())
    return TransferId("b:" + request_id)


def is_transfer_name(value: object) -> bool:
    """True where `value` has the form of a name made here and a sane length."""
    if not isinstance(value, str) or _NAME.match(value) is None:
        return False
    return value.isprintable() and len(value.encode()) <= NAME_BYTES_MAX + 2
