"""Digest of a prompt, so that a wrong pair of legs is refused instead of served.

Owns its definition. Invariant: it depends on the token ids and their number, on
nothing else; two engines with different byte order or vLLM version agree. It does
not cover images, adapters or the cache salt of a request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def prompt_digest(token_ids: Sequence[int] | None) -> bytes:
    """SHA-256 over the number of tokens (uint64) and the token ids (uint32), little-endian.

    Empty where the prompt has no token ids (embeddings were given): it is then not checked.
    """
    if not token_ids:
        return b""
    column = np.asarray(token_ids, dtype=np.int64).astype("<u4")
    digest = hashlib.sha256(len(column).to_bytes(8, "little"))
    digest.update(column.tobytes())
    return digest.digest()
