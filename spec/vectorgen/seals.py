"""Seals: proofs, keys, seals and tags by the formulas of section 4.6, written out once more here.

Nothing is taken from the library, so that the two have to agree.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import cbor2

from vectorgen.words import Plain

SECRET = bytes(range(32))
LONG_SECRET = bytes(range(100))
"""Longer than a block of SHA-256: HMAC takes its digest."""


def _hello(**changes: Any) -> bytes:
    fields = {
        0: b"kvxfer",
        16: 1,
        17: 1,
        18: "eng-D",
        19: 0,
        20: 1000,
        21: 2,
        22: 0,
        23: "eng-P",
        24: 0,
        25: b"\xd0" * 32,
        26: ["new", "old"],
    }
    fields.update({int(key[1:]): value for key, value in changes.items()})
    return cbor2.dumps([1, fields])


def _welcome(**changes: Any) -> bytes:
    fields = {16: 1, 18: "eng-P", 19: 0, 20: 1, 21: 1, 22: 0, 25: b"\xe1" * 32, 26: "new"}
    fields.update({int(key[1:]): value for key, value in changes.items()})
    return cbor2.dumps([2, fields])


HELLO, WELCOME = _hello(), _welcome()
GRANT = cbor2.dumps([16, {0: "t", 1: 1, 2: 1000, 3: 1, 16: b"", 17: 30_000, 18: [], 19: []}])
RENEW = cbor2.dumps([18, {0: "t", 1: 1, 2: 1000, 3: 1, 17: 30_000, 20: 1}])
DONE = cbor2.dumps([32, {0: "t", 1: 1, 2: 1, 3: 1000, 18: [0, 0, 0, 16]}])


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _key(label: str, secret: bytes, hello: bytes, welcome: bytes) -> bytes:
    halves = b"".join(len(half).to_bytes(4, "big") + half for half in (hello, welcome))
    transcript = hashlib.sha256(b"kvxfer-1 transcript" + halves).digest()
    return _mac(_mac(secret, b"kvxfer-1 session" + transcript), label.encode())


def _sealed(key: bytes, *messages: bytes, first: int = 0) -> list[bytes]:
    return [
        message + _mac(key, n.to_bytes(8, "big") + message)[:16]
        for n, message in enumerate(messages, first)
    ]


def _one(
    name: str,
    note: str,
    rules: str,
    frames: list[bytes],
    opened: list[bytes],
    *,
    sender: str = "dialler",
    secret: bytes = SECRET,
    hello: bytes = HELLO,
    welcome: bytes = WELCOME,
) -> Plain:
    """Accept where as many open as came."""
    halves = (secret, hello, welcome)
    return {
        "id": name,
        "note": note,
        "flags": [],
        "rules": [f"K-{rule}" for rule in rules.split()],
        "verdict": "accept" if len(frames) == len(opened) else "reject",
        "secret": secret.hex(),
        "hello": hello.hex(),
        "welcome": welcome.hex(),
        "dialler_proof": _key("dialler proof", *halves).hex(),
        "acceptor_proof": _key("acceptor proof", *halves).hex(),
        "from": sender,
        "frames": [frame.hex() for frame in frames],
        "opened": [message.hex() for message in opened],
    }


def cases() -> list[Plain]:
    base = (SECRET, HELLO, WELCOME)
    dialler, acceptor = _key("dialler seal", *base), _key("acceptor seal", *base)
    notice = _key("notice", *base)
    three = _sealed(dialler, GRANT, RENEW, RENEW)
    tagged = DONE + _mac(notice, DONE)[:16]
    newer, other = _hello(_40="later"), _hello(_25=b"\xd1" * 32)
    return [
        *_accepted(three, acceptor, tagged, newer),
        _one("sent-again", "The same frame at the next place.", "4.6.10", three[:1] * 2, [GRANT]),
        _one("turned-round", "Two frames in the other order.", "4.6.10", three[1::-1], []),
        _one("left-out", "One of three is missing.", "4.6.10", three[::2], [GRANT]),
        _one("changed", "One bit of the message.", "4.6.10", [_flipped(three[0], 3)], []),
        _one("changed-seal", "One bit of the seal.", "4.6.10", [_flipped(three[0], -1)], []),
        _one("without-a-seal", "The message alone.", "4.6.10 4.6.9", [GRANT], []),
        _one("empty", "Nothing at all in it.", "4.6.10", [b""], []),
        _one("shorter-than-a-seal", "15 bytes.", "4.6.10", [three[0][-15:]], []),
        _one(
            "own-frame-comes-back",
            "What the acceptor sealed, sent to it.",
            "4.6.10",
            _sealed(acceptor, GRANT),
            [],
        ),
        _one(
            "frame-of-another-link",
            "The dialler drew another nonce there.",
            "4.6.10 4.6.1",
            _sealed(_key("dialler seal", SECRET, other, WELCOME), GRANT),
            [],
        ),
        _one(
            "key-of-the-same-name",
            "Another secret behind the same id.",
            "4.6.10",
            _sealed(_key("dialler seal", LONG_SECRET, HELLO, WELCOME), GRANT),
            [],
        ),
        _one(
            "changed-on-the-way",
            "The acceptor got a HELLO without the newer key.",
            "4.6.10",
            _sealed(_key("dialler seal", SECRET, newer, WELCOME), GRANT),
            [],
        ),
        _one("notice-without-a-tag", "DONE alone.", "4.6.12", [DONE], [], sender="notice"),
        _one(
            "notice-of-another-link",
            "Its tag is good there.",
            "4.6.12",
            [DONE + _mac(_key("notice", SECRET, other, WELCOME), DONE)[:16]],
            [],
            sender="notice",
        ),
        _one(
            "notice-sealed-like-a-message",
            "By the acceptor's seal.",
            "4.6.12",
            _sealed(acceptor, DONE),
            [],
            sender="notice",
        ),
        _one(
            "message-tagged-like-a-notice",
            "By the key of notifications.",
            "4.6.10",
            [GRANT + _mac(notice, GRANT)[:16]],
            [],
        ),
        _one(
            "notice-changed",
            "Another part of the same attempt.",
            "4.6.12",
            [_flipped(tagged, -17)],
            [],
            sender="notice",
        ),
    ]


def _accepted(three: list[bytes], acceptor: bytes, tagged: bytes, newer: bytes) -> list[Plain]:
    return [
        _one("dialler", "Three messages in a row.", "4.6.9", three, [GRANT, RENEW, RENEW]),
        _one(
            "acceptor",
            "The other direction has a key of its own.",
            "4.6.9",
            _sealed(acceptor, RENEW),
            [RENEW],
            sender="acceptor",
        ),
        _one("notice", "DONE with its tag.", "4.6.11", [tagged], [DONE], sender="notice"),
        _one(
            "notices-have-no-order",
            "The same one twice; what it says is harmless twice.",
            "4.6.11",
            [tagged, tagged],
            [DONE, DONE],
            sender="notice",
        ),
        _one(
            "keys-of-newer-versions-count",
            "A key that this version does not know is in HELLO.",
            "4.6.9",
            _sealed(_key("dialler seal", SECRET, newer, WELCOME), GRANT),
            [GRANT],
            hello=newer,
        ),
        _one(
            "long-secret",
            "100 bytes.",
            "4.6.9 4.6.13",
            _sealed(_key("dialler seal", LONG_SECRET, HELLO, WELCOME), GRANT),
            [GRANT],
            secret=LONG_SECRET,
        ),
    ]


def _flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)
