"""Codec: every key of every message missing, and of another kind; bounds on both sides (section 5).

The cases that codec.json began with were written by hand and stay as they are; these are made.
"""

from __future__ import annotations

from typing import Any

import cbor2

from vectorgen.words import Plain

HEADER = {0: "req-7", 1: 1, 2: 11, 3: 22}
PART = [0, 0, 0, 40]
ITEMS = ("producer_rank", "group", "token_start", "token_stop")
U64_MAX, U32_MAX, TOKEN_MAX = (1 << 64) - 1, (1 << 32) - 1, 1 << 40


def column(values: list[int], width: int = 4) -> cbor2.CBORTag:
    data = b"".join(v.to_bytes(width, "little") for v in values)
    return cbor2.CBORTag(70 if width == 4 else 71, data)


def table(group: int = 0, starts: tuple[int, ...] = (5,), lengths: tuple[int, ...] = (3,)) -> Any:
    return [group, 0, column(list(starts)), column(list(lengths))]


NAMES: dict[str, tuple[int, dict[int, tuple[str, Any]]]] = {
    "HELLO": (
        1,
        {
            16: ("version_min", 1),
            17: ("version_max", 1),
            18: ("engine_id", "eng-D"),
            19: ("rank", 3),
            20: ("incarnation", 11),
            21: ("role", 2),
            22: ("features", 0),
            23: ("expected_engine_id", "eng-P"),
            24: ("expected_rank", 0),
        },
    ),
    "WELCOME": (
        2,
        {
            16: ("version", 1),
            18: ("engine_id", "eng-P"),
            19: ("rank", 0),
            20: ("incarnation", 22),
            21: ("role", 1),
            22: ("features", 0),
        },
    ),
    "PROOF": (64, {16: ("mac", b"m" * 32)}),
    "REFUSE": (3, {16: ("reason", 20), 17: ("detail", "")}),
    "DESCRIBE": (4, {16: ("transport", "x"), 17: ("blob", b""), 18: ("shard", b"\xa0")}),
    "BYE": (5, {16: ("reason", 18)}),
    "GRANT": (
        16,
        {
            16: ("digest", b""),
            17: ("lease_ms", 30_000),
            18: ("parts", [PART]),
            19: ("tables", [table()]),
        },
    ),
    "RENEW": (18, {17: ("lease_ms", 30_000)}),
    "GONE": (19, {16: ("reason", 5)}),
    "CANCEL": (20, {16: ("reason", 1)}),
    "DONE": (32, {18: ("part", PART)}),
    "FAILED": (33, {16: ("reason", 11), 17: ("quiet", True), 18: ("part", PART)}),
    "NEVER_POSTED": (34, {16: ("reason", 8), 18: ("part", PART)}),
    "OFFER": (48, {18: ("parts", [PART]), 19: ("tables", [table()])}),
    "RELEASE": (49, {16: ("reason", 0), 17: ("landed", True)}),
    "DRAIN": (50, {16: ("reason", 27)}),
}
"""Every message with a field of its own: number, and a good value for each key."""

PASSED_OVER = (
    "1025-parts",
    "two-starts-one-length",
    "part-turned-round",
    "9-keys",
    "key-twice",
    "nonce-of-text",
    "key-of-bytes",
    "two-keys",
)
"""Bounds that the CDDL does not state."""

UNHEADED = ("HELLO", "WELCOME", "PROOF", "REFUSE", "DESCRIBE", "BYE", "DRAIN")


def body(name: str) -> dict[int, Any]:
    fields = {key: value for key, (_, value) in NAMES[name][1].items()}
    if name == "HELLO":
        return {0: b"kvxfer", **fields}
    return fields if name in UNHEADED else {**HEADER, **fields}


def raw(name: str, changes: dict[int, Any] | None = None, without: int | None = None) -> str:
    whole = {**body(name), **(changes or {})}
    whole.pop(without, None)  # type: ignore[arg-type]
    return cbor2.dumps([NAMES[name][0], whole]).hex()


def reject(name: str, data: str, note: str, rules: str, *flags: str) -> Plain:
    return {
        "id": name,
        "hex": data,
        "verdict": "reject",
        "flags": list(flags),
        "rules": [f"K-{rule}" for rule in rules.split()],
        "note": note,
    }


def missing() -> list[Plain]:
    """Each key of this version is required."""
    found = []
    for name, (_, fields) in NAMES.items():
        for key, (field, _) in fields.items():
            if (name, key) == ("RENEW", 17):
                continue  # The hand-written `missing-key`.
            label = f"{name}-without-{field}".lower().replace("_", "-")
            note = f"{name} without key {key}, {field}."
            found.append(reject(label, raw(name, without=key), note, "5.2.2", "schema"))
    return found


def of_another_kind() -> list[Plain]:
    """Each key has one kind."""
    found = []
    for name, (_, fields) in NAMES.items():
        for key, (field, good) in fields.items():
            wrong = 1 if isinstance(good, bool) else True
            label = f"{name}-{field}-of-another-kind".lower().replace("_", "-")
            note = f"Key {key}, {field}, is {'a number' if wrong is not True else 'true'}."
            found.append(reject(label, raw(name, {key: wrong}), note, "5.2.2", "schema"))
    return found


def out_of_bounds() -> list[Plain]:
    """One above, or one below, what section 5 allows."""
    many = [[0, 0, t, t + 1] for t in range(1025)]
    rows: list[tuple[str, str, dict[int, Any], str, str]] = [
        ("HELLO", "version-above-65535", {17: 65536}, "Versions end at 65535.", "5.2.2"),
        ("HELLO", "rank-above-u32", {19: U32_MAX + 1}, "Ranks end at 2^32 - 1.", "5.2.2"),
        ("HELLO", "role-zero", {21: 0}, "No role at all.", "5.2.2"),
        ("HELLO", "engine-id-empty", {18: ""}, "An engine has a name.", "5.2.2"),
        ("HELLO", "engine-id-of-257-bytes", {18: "e" * 257}, "Names end at 256 bytes.", "5.2.2"),
        ("WELCOME", "incarnation-zero", {20: 0}, "An incarnation is never 0.", "5.2.2"),
        ("REFUSE", "detail-of-1025-bytes", {17: "d" * 1025}, "1024 bytes are enough.", "5.2.2"),
        ("DESCRIBE", "transport-empty", {16: ""}, "A transport has a name.", "5.2.2"),
        ("DESCRIBE", "transport-of-65-bytes", {16: "t" * 65}, "Names end at 64 bytes.", "5.2.2"),
        ("BYE", "reason-above-65535", {16: 65536}, "Reasons end at 65535.", "5.2.2"),
        ("GRANT", "lease-above-u32", {17: U32_MAX + 1}, "Durations end at 2^32 - 1.", "5.2.2"),
        ("GRANT", "lease-negative", {17: -1}, "No duration is negative.", "5.2.2 5.2.8"),
        ("GRANT", "1025-parts", {18: many}, "1024 parts at most.", "5.2.2"),
        ("GRANT", "group-64-in-a-table", {19: [table(64)]}, "Groups end at 63.", "5.2.2"),
        ("GRANT", "table-of-three-items", {19: [[0, 0, column([1])]]}, "Four items.", "5.2.2"),
        (
            "GRANT",
            "first-token-negative",
            {19: [[0, -1, column([1]), column([1])]]},
            "Tokens count from 0.",
            "5.2.2",
        ),
        ("GRANT", "two-starts-one-length", {19: [table(0, (1, 2), (1,))]}, "As many.", "6.2.1"),
        ("DONE", "part-turned-round", {18: [0, 0, 40, 0]}, "Start below stop.", "5.2.2"),
        ("DONE", "part-of-text", {18: "0:0:0:40"}, "An array.", "5.2.2"),
        ("DONE", "sender-zero", {2: 0}, "An incarnation is never 0.", "5.2.2 5.2.9"),
        ("DONE", "receiver-above-u64", {3: -1}, "An incarnation is positive.", "5.2.2 5.2.9"),
        ("OFFER", "token-count-above-2-to-the-40", {20: TOKEN_MAX + 1}, "Tokens end.", "5.2.2"),
        ("OFFER", "token-count-of-text", {20: "40"}, "A number of tokens.", "5.2.2"),
        ("HELLO", "nonce-of-33-bytes", {25: bytes(33)}, "Nonces end at 32 bytes.", "5.2.2"),
        ("HELLO", "nonce-of-text", {25: "n" * 32}, "A byte string.", "5.2.2"),
        ("HELLO", "key-without-a-name", {26: [""]}, "A key has an id.", "5.2.2"),
        ("HELLO", "key-of-65-bytes", {26: ["k" * 65]}, "Ids end at 64 bytes.", "5.2.2"),
        ("HELLO", "key-of-bytes", {26: [b"k"]}, "Ids are text.", "5.2.2"),
        ("HELLO", "keys-of-text", {26: "k"}, "An array.", "5.2.2"),
        ("HELLO", "9-keys", {26: [f"k{n}" for n in range(9)]}, "8 keys at most.", "5.2.2"),
        ("HELLO", "key-twice", {26: ["k", "k"]}, "Every key once.", "5.2.2"),
        ("WELCOME", "nonce-of-33-bytes", {25: bytes(33)}, "Nonces end at 32 bytes.", "5.2.2"),
        ("WELCOME", "key-of-65-bytes", {26: "k" * 65}, "Ids end at 64 bytes.", "5.2.2"),
        ("WELCOME", "two-keys", {26: ["a", "b"]}, "One key is chosen.", "5.2.2"),
        ("PROOF", "mac-of-31-bytes", {16: bytes(31)}, "The whole output.", "5.2.2"),
        ("PROOF", "mac-of-33-bytes", {16: bytes(33)}, "The output alone.", "5.2.2"),
        ("FAILED", "quiet-null", {17: None}, "true or false.", "5.2.2"),
    ]
    return [
        reject(
            f"{name}-{label}".lower().replace("_", "-"),
            raw(name, changes),
            note,
            rules,
            *(() if label in PASSED_OVER else ("schema",)),
        )
        for name, label, changes, note, rules in rows
    ]


def at_the_bounds() -> list[Plain]:
    """The bound itself is good."""

    def accept(name: str, label: str, changes: dict[int, Any], message: Plain, note: str) -> Plain:
        return {
            "id": f"{name.lower()}-{label}",
            "hex": raw(name, changes),
            "verdict": "accept",
            "canonical": True,
            "flags": [],
            "rules": ["K-5.2.2"],
            "note": note,
            "type": name,
            "message": message,
        }

    head = {"transfer_id": "req-7", "attempt": 1, "sender": 11, "receiver": 22}
    last = [U32_MAX, 63, TOKEN_MAX - 1, TOKEN_MAX]
    part = dict(zip(ITEMS, last))
    hello = dict(NAMES["HELLO"][1].values())
    many = [[0, 0, t, t + 1] for t in range(1024)]
    named = [dict(zip(ITEMS, p)) for p in many]
    widest = {16: 0, 17: 65535, 18: "e" * 256, 19: U32_MAX, 20: U64_MAX, 22: U64_MAX, 23: ""}
    grown = {NAMES["HELLO"][1][key][0]: value for key, value in widest.items()}
    eight = [f"{n}" * 64 for n in range(8)]
    welcome = dict(NAMES["WELCOME"][1].values())
    return [
        accept(
            "HELLO",
            "with-keys",
            {25: bytes(32), 26: eight},
            {**hello, "nonce": "00" * 32, "key_ids": eight},
            "The most keys with the longest ids.",
        ),
        accept(
            "WELCOME",
            "with-a-key",
            {25: bytes(range(32)), 26: "2026-11"},
            {**welcome, "nonce": bytes(range(32)).hex(), "key_id": "2026-11"},
            "The key that both sides prove.",
        ),
        accept("PROOF", "whole", {16: bytes(32)}, {"mac": "00" * 32}, "32 bytes."),
        accept("HELLO", "widest", widest, {**hello, **grown}, "Every field at its bound."),
        accept(
            "DONE",
            "last-part",
            {18: last},
            {"header": head, "part": part},
            "The last token of the last group of the last rank.",
        ),
        accept(
            "REFUSE",
            "longest-detail",
            {17: "d" * 1024},
            {"reason": 20, "detail": "d" * 1024},
            "1024 bytes.",
        ),
        accept(
            "DESCRIBE",
            "longest-name",
            {16: "t" * 64},
            {"transport": "t" * 64, "blob": "", "shard": "a0"},
            "64 bytes.",
        ),
        accept(
            "RENEW",
            "longest-lease",
            {17: U32_MAX},
            {"header": head, "lease_ms": U32_MAX},
            "2^32 - 1 ms.",
        ),
        accept("RENEW", "no-lease", {17: 0}, {"header": head, "lease_ms": 0}, "0 ms."),
        accept(
            "GRANT",
            "1024-parts",
            {16: bytes(64), 18: many, 19: []},
            {"header": head, "digest": "00" * 64, "lease_ms": 30_000, "parts": named, "tables": []},
            "The most parts, the longest digest, no table.",
        ),
        accept(
            "OFFER",
            "sealed",
            {20: TOKEN_MAX},
            {
                "header": head,
                "parts": [dict(zip(ITEMS, PART))],
                "tables": [{"group": 0, "first_token": 0, "starts": [5], "lengths": [3]}],
                "token_count": TOKEN_MAX,
            },
            "token_count is there because it is not 0.",
        ),
        accept(
            "GONE",
            "last-registered-reason",
            {16: 25},
            {"header": head, "reason": 25},
            "NEW_INCARNATION.",
        ),
    ]


def skipped() -> list[Plain]:
    """Types of a newer minor version, whatever they hold."""
    rows = [("type-0", 0, {}), ("type-6", 6, {16: 1}), ("type-65535", 65535, {"later": [1, 2]})]
    return [
        {
            "id": f"skip-{label}",
            "hex": cbor2.dumps([number, fields]).hex(),
            "verdict": "skip",
            "flags": [],
            "rules": ["K-5.2.4"],
            "note": f"Type {number} is not registered: the message is skipped.",
        }
        for label, number, fields in rows
    ]


def cases() -> list[Plain]:
    return missing() + of_another_kind() + out_of_bounds() + at_the_bounds() + skipped()
