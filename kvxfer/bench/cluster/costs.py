"""What one engine pair costs, as measured: steps, requests, descriptors, bytes.

Owns the record, its file form and the formulas. Knows no event. Invariant: every figure
of a file names where it comes from (`source`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import attrs

from kvxfer.errors import BadValue

KNOWN: Final = ("h200-default", "h200-block128", "h200-crosslayer", "aws-fit")
_POSITIVE: Final = (
    "chunk_tokens",
    "decode_base_ms",
    "kv_token_bytes",
    "block_tokens",
    "block_pieces",
    "joint_blocks",
    "wire_bytes_per_s",
    "prefill_polls",
)


@attrs.frozen(kw_only=True)
class Costs:
    """Of one model on one kind of machine. Milliseconds, unless the name says otherwise."""

    name: str
    source: str
    # A step of P over n tokens with s tokens before them: base + n * token + n * (s + n/2) * pair.
    prefill_base_ms: float
    prefill_token_us: float
    prefill_pair_ns: float
    chunk_tokens: int
    # A step of D with n running requests.
    decode_base_ms: float
    decode_request_us: float
    idle_poll_ms: float
    """How often an engine without work looks for arrivals and ends."""
    request_ms: float
    """From a request's arrival at an engine until its scheduler knows it."""
    request_token_us: float
    """The same for each prompt token: HTTP, JSON, tokens."""
    answer_ms: float
    """From the end of a prefill until the router has P's answer."""
    first_token_ms: float
    """From a token's end at D until the client has it."""
    kv_token_bytes: int
    block_tokens: int
    block_pieces: int
    """Descriptors of a block whose neighbours are elsewhere."""
    joint_blocks: float
    """Mean number of blocks in a row on both sides."""
    post_base_us: float
    post_piece_us: float
    """Posting one descriptor, in the thread that posts."""
    wire_bytes_per_s: float
    prefill_polls: float = 1.0
    """How often in a step P's engine looks at its transfers, the step's end included."""
    poll_pieces: int = 0
    """Where the library only moves while it is polled: descriptors a poll. 0: by itself."""

    def __attrs_post_init__(self) -> None:
        positive = ("decode_base_ms", "kv_token_bytes", "block_tokens", "block_pieces")
        for name in (
            *positive,
            "joint_blocks",
            "wire_bytes_per_s",
            "chunk_tokens",
            "prefill_polls",
        ):
            if not getattr(self, name) > 0:
                raise BadValue(name, getattr(self, name), "above 0")
        for field in attrs.fields(Costs):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 0:
                raise BadValue(field.name, value, "0 or more")

    def prefill_s(self, tokens: int, before: int) -> float:
        pairs = tokens * (before + tokens / 2)
        ms = self.prefill_base_ms + tokens * self.prefill_token_us / 1e3
        return (ms + pairs * self.prefill_pair_ns / 1e6) / 1e3

    def decode_s(self, running: int) -> float:
        return (self.decode_base_ms + running * self.decode_request_us / 1e3) / 1e3

    def handling_s(self, tokens: int) -> float:
        return (self.request_ms + tokens * self.request_token_us / 1e3) / 1e3

    def pieces(self, tokens: int) -> int:
        """Descriptors of so many tokens."""
        blocks = -(-tokens // self.block_tokens)
        return max(1, round(blocks * self.block_pieces / self.joint_blocks)) if tokens else 0

    def post_s(self, pieces: int) -> float:
        return (self.post_base_us + pieces * self.post_piece_us) / 1e6

    def wire_s(self, tokens: int) -> float:
        return tokens * self.kv_token_bytes / self.wire_bytes_per_s

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Costs:
        """Raises BadValue naming the first field that is unknown, missing or out of its bound."""
        known = {field.name: field for field in attrs.fields(cls)}
        for name in plain:
            if name not in known:
                raise BadValue("costs", name, f"one of {', '.join(known)}")
        for name, field in known.items():
            if name not in plain and field.default is attrs.NOTHING:
                raise BadValue("costs", sorted(plain), f"with {name}")
            want = str if name in ("name", "source") else int | float
            if name in plain and (
                not isinstance(plain[name], want) or isinstance(plain[name], bool)
            ):
                raise BadValue(name, plain[name], "text" if want is str else "a number")
        return cls(**plain)


def load_costs(name: str) -> Costs:
    """One of `KNOWN`, or the path of a file of the same form. Raises BadValue."""
    if name in KNOWN:
        text = (resources.files(__package__) / "figures" / f"{name}.json").read_text("utf-8")
    else:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadValue("costs", name, f"{', '.join(KNOWN)} or a file ({error})") from None
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise BadValue("costs", name, f"a JSON object ({error})") from None
    if not isinstance(plain, dict):
        raise BadValue("costs", name, "a JSON object")
    return Costs.from_plain(plain)
