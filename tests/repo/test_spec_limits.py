"""Numbers that the text states, against those that the library has; and what may never change."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kvxfer.core.ids import Reason
from kvxfer.core.messages import MessageType
from kvxfer.limits import Limits, Timings
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.wire.cbor import DEPTH_MAX, PLAIN_ITEMS_MAX, items_max
from kvxfer.wire.schema import BY_TYPE, REQUIRED

ROOT = Path(__file__).resolve().parents[2]
SPEC = (ROOT / "spec" / "kvxfer-1.md").read_text(encoding="utf-8")
LIMITS, TIMINGS = Limits(), Timings()


def sentence(rule: str) -> str:
    found = re.search(rf"^- \[{re.escape(rule)}\] (.+)$", SPEC, re.MULTILINE)
    assert found, rule
    return found.group(1)


def test_bounds_that_the_text_names_are_the_defaults() -> None:
    assert f"({LIMITS.message_bytes_max})" in sentence("K-5.1.2")
    assert f"{LIMITS.hello_bytes_max} bytes for the first" in sentence("K-5.1.2")
    assert f"{DEPTH_MAX} levels" in sentence("K-5.1.9")
    assert f"{items_max(LIMITS)} items" in sentence("K-5.1.9")
    assert f"{LIMITS.blocks_per_grant_max}" in sentence("K-6.2.3")
    assert f"at most {PLAIN_ITEMS_MAX} items" in SPEC.replace("\n", " ")
    assert f"| parts | array of part, at most {LIMITS.parts_per_edge_max} |" in SPEC
    assert f"| tables | array of runs, at most {LIMITS.groups_max}" in SPEC
    assert f"bytes(..{LIMITS.blob_bytes_max})" in SPEC
    assert f"group below {LIMITS.groups_max}" in SPEC


def test_times_that_the_text_names_are_the_defaults() -> None:
    silence_s = TIMINGS.renew_ms * TIMINGS.renew_misses_max // 1000
    assert f"{TIMINGS.handshake_ms // 1000} s is the default" in sentence("K-4.4.3")
    assert f"every {TIMINGS.renew_ms // 1000} s" in sentence("K-6.9.3")
    assert f"{silence_s} s for RENEW" in sentence("K-6.9.6")
    assert f"{TIMINGS.drain_ms // 1000} s for CANCEL" in sentence("K-6.9.6")
    assert f"{TIMINGS.grant_lease_ms // 1000} s or more" in sentence("K-6.9.1")
    assert f"{TIMINGS.lease_margin_ms // 1000} s is the default" in sentence("K-6.13.4")
    for rule in ("K-6.8.1", "K-6.8.2"):
        assert f"{TIMINGS.tombstone_ms // 60_000} minutes" in sentence(rule)


PUBLISHED_TYPES = {
    "HELLO": 1,
    "WELCOME": 2,
    "REFUSE": 3,
    "DESCRIBE": 4,
    "BYE": 5,
    "GRANT": 16,
    "GRANT_ACK": 17,
    "RENEW": 18,
    "GONE": 19,
    "CANCEL": 20,
    "CANCELLED": 21,
    "DONE": 32,
    "FAILED": 33,
    "NEVER_POSTED": 34,
    "OFFER": 48,
    "RELEASE": 49,
    "DRAIN": 50,
}
PUBLISHED_REASONS = (
    "NONE",
    "CANCELLED_BY_CONSUMER",
    "PRODUCER_ABORTED",
    "OFFER_EXPIRED",
    "GRANT_EXPIRED",
    "UNKNOWN_TRANSFER",
    "STALE_ATTEMPT",
    "DIGEST_MISMATCH",
    "TOKENS_MISSING",
    "LAYOUT_REFUSED",
    "OUT_OF_BOUNDS",
    "TRANSPORT_FAILED",
    "DEADLINE",
    "PEER_LOST",
    "PEER_SILENT",
    "UNREACHABLE",
    "ALREADY_IN_USE",
    "TABLE_FULL",
    "SHUTDOWN",
    "PROTOCOL_ERROR",
    "VERSION_MISMATCH",
    "WRONG_PEER",
    "TRANSPORT_MISMATCH",
    "ROLE_MISMATCH",
    "PARTS_MISMATCH",
    "NEW_INCARNATION",
)
"""Lists that may grow behind their end and in no other way."""


def test_numbers_that_were_published_stay_what_they_are() -> None:
    assert {name: int(MessageType[name]) for name in PUBLISHED_TYPES} == PUBLISHED_TYPES
    assert [int(Reason[name]) for name in PUBLISHED_REASONS] == list(range(26))
    new = {int(m) for m in MessageType} - set(PUBLISHED_TYPES.values())
    assert all(number > 50 for number in new)


REQUIRED_KEYS = {
    1: {16, 17, 18, 19, 20, 21, 22, 23, 24},
    2: {16, 18, 19, 20, 21, 22},
    3: {16, 17},
    4: {16, 17, 18},
    5: {16},
    16: {16, 17, 18, 19},
    17: set(),
    18: {17},
    19: {16},
    20: {16},
    21: set(),
    32: {18},
    33: {16, 17, 18},
    34: {16, 18},
}
"""Of version 1.0, besides the header: a key that comes later has a value for its absence."""


@pytest.mark.parametrize("number", REQUIRED_KEYS)
def test_no_key_was_made_required_later(number: int) -> None:
    fields = BY_TYPE[number].fields
    required = {f.key for f in fields if f.default is REQUIRED}
    assert required == REQUIRED_KEYS[number]


def test_no_flag_and_no_status_is_a_field_of_a_message() -> None:
    names = {f.name for layout in BY_TYPE.values() for f in layout.fields}
    assert not names & {"caps", "capabilities", "status", "flags"}
    spoken = {name.lower() for name in (*Status.__members__, *Caps.__members__)}
    assert not names & spoken


RUNS_CODE = {"pickle", "shelve", "dill", "cloudpickle", "joblib", "yaml"}


def test_nothing_of_the_library_can_run_what_a_peer_sends() -> None:
    """No module of ours imports a decoder that can run code, or calls one that does."""
    found = []
    for top in ("kvxfer", "transports", "adapters"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: set[str] = set()
                if isinstance(node, ast.Import):
                    names = {name.name.split(".")[0] for name in node.names} & RUNS_CODE
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = {node.module.split(".")[0]} & RUNS_CODE
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    # To write with it, for a digest, runs nothing.
                    called = f"{node.value.id}.{node.attr}"
                    names = {called} & {"marshal.load", "marshal.loads"}
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    names = {node.func.id} & {"eval", "exec", "compile", "__import__"}
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert found == []
