"""Authentication: who gets a link, and who must not (section 4.6).

Proofs come as right or wrong; what makes them so is in seals.py.
"""

from __future__ import annotations

from typing import Any

from vectorgen.handshake import HELLO, WELCOME, described
from vectorgen.words import (
    D0,
    P0,
    TIME,
    Plain,
    case,
    close,
    event,
    grant_message,
    message,
    peer,
    recv,
    send,
    up,
)

NONCE = "a5" * 32
OPEN = event("connection", link=1, dialled=None)
CALL = event("connection", link=1, dialled=peer("eng-P", 0))
RIGHT, WRONG = event("proof", link=1, right=True), event("proof", link=1, right=False)
ANSWER = message("DESCRIBE", transport="vector")
PROOF = message("PROOF")
A: Plain = {"role": "PRODUCER", "keys": ["new", "old"], "require_key": True}
C: Plain = {**A, "role": "CONSUMER", "engine_id": "eng-D", "incarnation": 1000}


def hello(*key_ids: str, nonce: str = NONCE) -> Plain:
    return recv({**HELLO, "nonce": nonce, "key_ids": list(key_ids)} if key_ids else HELLO)


def welcome(key_id: str = "", nonce: str = NONCE) -> Plain:
    return recv({**WELCOME, "nonce": nonce, "key_id": key_id} if key_id else WELCOME)


def greet(key_id: str) -> tuple[Plain, Plain]:
    """What an acceptor answers to a HELLO with keys."""
    return send({**WELCOME, "key_id": key_id}), send(PROOF)


def refuse(reason: str) -> Plain:
    return send(message("REFUSE", reason=reason))


SAY_HELLO = (CALL, send({**HELLO, "key_ids": ["new", "old"]}))


def accepted() -> list[Plain]:
    return [
        case(
            "acceptor",
            "WELCOME, the own proof, the dialler's, and then the descriptions.",
            "4.6.2 4.6.6",
            (OPEN,),
            (hello("new"), *greet("new")),
            (RIGHT,),
            (recv(described()), send(ANSWER), up(1, D0)),
            **A,
        ),
        case(
            "dialler",
            "The acceptor's proof first, then the own one, then the descriptions.",
            "4.6.1 4.6.6",
            SAY_HELLO,
            (welcome("new"),),
            (RIGHT, send(PROOF), send(ANSWER)),
            (recv(described()), up(1, P0)),
            **C,
        ),
        case(
            "acceptor-prefers-its-first-key",
            "Both have both; one is chosen.",
            "4.6.2",
            (OPEN,),
            (hello("old", "new"), *greet("new")),
            (RIGHT,),
            (recv(described()), send(ANSWER), up(1, D0)),
            **A,
        ),
        case(
            "dialler-with-the-old-key",
            "In the middle of a rotation the old key is as good.",
            "4.6.2 4.6.13",
            (OPEN,),
            (hello("old"), *greet("old")),
            (RIGHT,),
            (recv(described()), send(ANSWER), up(1, D0)),
            **A,
        ),
        case(
            "acceptor-with-the-old-key",
            "The dialler takes any key that it named.",
            "4.6.4 4.6.13",
            SAY_HELLO,
            (welcome("old"),),
            (RIGHT, send(PROOF), send(ANSWER)),
            (recv(described()), up(1, P0)),
            **C,
        ),
        case(
            "nobody-has-a-key",
            "No key is named, and none is answered.",
            "4.6.2",
            (OPEN,),
            (hello(), send({**WELCOME})),
            (recv(described()), send(ANSWER), up(1, D0)),
            role="PRODUCER",
        ),
        case(
            "acceptor-without-keys",
            "It names none, whatever the dialler has.",
            "4.6.2",
            (OPEN,),
            (hello("new"), send(WELCOME)),
            (recv(described()), send(ANSWER), up(1, D0)),
            role="PRODUCER",
        ),
        case(
            "dialler-without-keys-where-none-is-required",
            "A side that has keys and does not require one.",
            "4.6.3",
            (OPEN,),
            (hello(), send(WELCOME)),
            (recv(described()), send(ANSWER), up(1, D0)),
            **{**A, "require_key": False},
        ),
        case(
            "acceptor-without-keys-where-none-is-required",
            "The same, seen by the dialler.",
            "4.6.3",
            SAY_HELLO,
            (welcome(), send(ANSWER)),
            (recv(described()), up(1, P0)),
            **{**C, "require_key": False},
        ),
    ]


def refused_by_acceptor() -> list[Plain]:
    def one(name: str, note: str, rules: str, first: Plain, reason: str, **more: Any) -> Plain:
        step = (first, refuse(reason), close())
        return case(name, note, rules, (OPEN,), step, reject=True, **{**A, **more})

    def second(name: str, note: str, rules: str, *step: Any) -> Plain:
        greeting = (hello("new"), *greet("new"))
        return case(name, note, rules, (OPEN,), greeting, step, reject=True, **A)

    return [
        one("no-key", "A key is required.", "4.6.3", hello(), "UNAUTHENTICATED"),
        one("unknown-key", "Not one is known.", "4.6.2", hello("x", "y"), "UNAUTHENTICATED"),
        one(
            "retired-key",
            "After a rotation the old key is unknown.",
            "4.6.2",
            hello("old"),
            "UNAUTHENTICATED",
            keys=["new"],
        ),
        one(
            "unknown-key-where-none-is-required",
            "Two sides with keys make no link without one.",
            "4.6.14 4.6.2",
            hello("x"),
            "UNAUTHENTICATED",
            require_key=False,
        ),
        one(
            "no-nonce-in-hello",
            "A key is named.",
            "4.6.5",
            hello("new", nonce=""),
            "PROTOCOL_ERROR",
        ),
        one(
            "short-nonce-in-hello",
            "31 bytes.",
            "4.6.5",
            hello("new", nonce="a5" * 31),
            "PROTOCOL_ERROR",
        ),
        second(
            "wrong-proof-of-the-dialler",
            "Wrong key, other link, other HELLO: the proof is wrong.",
            "4.6.8",
            WRONG,
            refuse("AUTHENTICATION_FAILED"),
            close(),
        ),
        second(
            "describe-instead-of-proof",
            "Nothing is described to it.",
            "4.6.7",
            recv(described()),
            close(),
        ),
        second(
            "grant-instead-of-proof",
            "No transfer either.",
            "4.6.7",
            recv(grant_message()),
            refuse("PROTOCOL_ERROR"),
            close(),
        ),
        second(
            "hello-again-instead-of-proof", "The order is broken.", "4.6.7", hello("new"), close()
        ),
        second(
            "bye-instead-of-proof",
            "It leaves.",
            "4.6.7",
            recv(message("BYE", reason="SHUTDOWN")),
            close(),
        ),
        case(
            "proof-that-never-comes",
            "The deadline holds for it, too.",
            "4.6.6 4.4.3",
            (OPEN,),
            (hello("new"), *greet("new")),
            (10_000, TIME, close()),
            reject=True,
            **A,
        ),
        case(
            "proof-without-a-key",
            "None was agreed.",
            "4.6.7",
            (OPEN,),
            (hello(), send(WELCOME)),
            (RIGHT, close()),
            reject=True,
            role="PRODUCER",
        ),
        case(
            "proof-first",
            "Before HELLO.",
            "4.6.7",
            (OPEN,),
            (RIGHT, close()),
            reject=True,
            **A,
        ),
        case(
            "proof-twice",
            "One is enough.",
            "4.6.7",
            (OPEN,),
            (hello("new"), *greet("new")),
            (RIGHT,),
            (RIGHT, close()),
            reject=True,
            **A,
        ),
    ]


def refused_by_dialler() -> list[Plain]:
    def one(name: str, note: str, rules: str, first: Plain, reason: str) -> Plain:
        step = (first, refuse(reason), close())
        return case(name, note, rules, SAY_HELLO, step, reject=True, **C)

    def second(name: str, note: str, rules: str, *step: Any) -> Plain:
        return case(name, note, rules, SAY_HELLO, (welcome("new"),), step, reject=True, **C)

    return [
        one("no-key-in-welcome", "It is required.", "4.6.3", welcome(), "UNAUTHENTICATED"),
        one("other-key-in-welcome", "Not named.", "4.6.4", welcome("x"), "UNAUTHENTICATED"),
        one("no-nonce-in-welcome", "Key named.", "4.6.5", welcome("new", ""), "PROTOCOL_ERROR"),
        second(
            "wrong-proof-of-the-acceptor",
            "The own proof is not shown to it.",
            "4.6.8 4.6.6",
            WRONG,
            refuse("AUTHENTICATION_FAILED"),
            close(),
        ),
        second(
            "describe-before-its-proof",
            "An acceptor that skips its proof.",
            "4.6.7",
            recv(described()),
            close(),
        ),
        second(
            "welcome-again-instead-of-proof",
            "Not even without a key.",
            "4.6.7 4.6.3",
            welcome("new"),
            close(),
        ),
    ]


def cases() -> list[Plain]:
    return accepted() + refused_by_acceptor() + refused_by_dialler()
