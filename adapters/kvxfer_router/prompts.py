"""What a prompt weighs, and by which names its beginnings are recognised.

Owns the reading of a request's prompt for the choice of engines. Refuses to know engines
and tokenizers: sizes are estimates. Invariant: two requests share their first k names only
if their prompts' first k blocks, and all else that an engine's prefix cache depends on, are
the same.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from kvxfer_router.legs import CHAT

BYTES_PER_TOKEN: Final = 4
"""Of text, roughly; also what one token id stands for."""

BLOCK_TOKENS: Final = 64
BLOCKS_MAX: Final = 512
"""Longer prompts share an engine by their first 32,768 tokens."""

REQUEST_TOKENS: Final = 256
"""What a request weighs besides its prompt: its answer, mostly."""


@attrs.frozen
class Prompt:
    """`blocks` names the prompt's beginnings: number k stands for its first k + 1 blocks."""

    size_tokens: int
    blocks: tuple[bytes, ...]

    @property
    def weight_tokens(self) -> int:
        """What an engine that serves it has to do."""
        return self.size_tokens + REQUEST_TOKENS


def prompt_of(path: str, body: Mapping[str, Any]) -> Prompt:
    """The prompt of a client's body, whatever its form; never raises."""
    prompt = body.get("messages") if path == CHAT else body.get("prompt")
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        named = _id_bytes(prompt[: BLOCKS_MAX * BLOCK_TOKENS])
        return Prompt(size_tokens=len(prompt), blocks=_names(named, body))
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "surrogatepass")
    else:
        text = b"".join(_parts(prompt))
    return Prompt(size_tokens=-(-len(text) // BYTES_PER_TOKEN), blocks=_names(text, body))


def _id_bytes(token_ids: list[Any]) -> bytes:
    """4 bytes for each; what is no list of token ids gets no name, D will refuse it."""
    try:
        return array("i", token_ids).tobytes()
    except (TypeError, OverflowError):
        return b""


def _parts(prompt: object) -> Iterator[bytes]:
    """Message by message, so that a conversation's next turn begins with its last one."""
    for part in prompt if isinstance(prompt, list) else [prompt]:
        yield json.dumps(part).encode()


def _names(text: bytes, body: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Chained digests of the full blocks. A prefix cache is per model, salt and tools, too."""
    seed = json.dumps([body.get(field) for field in ("model", "cache_salt", "tools")])
    digest = hashlib.blake2b(seed.encode(), digest_size=8).digest()
    names = []
    step = BLOCK_TOKENS * BYTES_PER_TOKEN
    for start in range(0, min(len(text) // step, BLOCKS_MAX) * step, step):
        digest = hashlib.blake2b(digest + text[start : start + step], digest_size=8).digest()
        names.append(digest)
    return tuple(names)


NO_PROMPT: Final = Prompt(size_tokens=0, blocks=())
