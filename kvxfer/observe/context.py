"""The W3C trace context of a transfer, where nobody gave one.

Owns the derivation. Needs no library. Invariant: both sides of a transfer come to the
same text, since it follows from the transfer's name alone.
"""

from __future__ import annotations

import hashlib
import re

from kvxfer.core.ids import TransferId

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/, section 3.2: no id is all zeros."""


def is_traceparent(text: str) -> bool:
    """True where `text` has the form of version 00, which later versions keep as a prefix."""
    return _FORM.match(text) is not None


def derived_traceparent(transfer_id: TransferId) -> str:
    """A sampled context whose trace is the transfer. Its parent span is recorded by nobody."""
    digest = hashlib.sha256(b"kvxfer trace\0" + transfer_id.encode("utf-8", "surrogatepass"))
    ids = digest.hexdigest()
    return f"00-{ids[:32]}-{ids[32:48]}-01"


def traceparent_of(given: str, transfer_id: TransferId) -> str:
    """What the engine gave, if it is valid; else what follows from the name."""
    return given if is_traceparent(given) else derived_traceparent(transfer_id)
