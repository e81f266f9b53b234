"""Handshake: what brings a link up, and everything that must not (section 4)."""

from __future__ import annotations

from typing import Any

import cbor2

from vectorgen.words import (
    D0,
    LATER_D0,
    LATER_P0,
    P0,
    SHUT_DOWN,
    TIME,
    Plain,
    ack,
    case,
    close,
    cons,
    dial,
    event,
    fence,
    from_d,
    from_p,
    gone,
    grant,
    grant_message,
    granted,
    let_go,
    link_up,
    lost,
    lost_link,
    message,
    offer,
    peer,
    prod,
    queue,
    recv,
    register,
    send,
    unreachable,
    unsent,
    up,
)

SHARD: Plain = {
    "rank": 0,
    "areas": [{"base": 4096, "length": 256, "kind": "dram", "device": 0}],
    "groups": [
        {
            "name": "kv",
            "kind": 1,
            "tokens_per_block": 16,
            "physical_per_block": 1,
            "physical_blocks": 8,
            "heads_total": 1,
            "head_start": 0,
            "head_stop": 1,
            "layers": ["a"],
            "planes": [{"name": "kv", "area": 0, "offset": 0, "content_bytes": 2}],
            "stride_layer": 256,
            "stride_block": 32,
            "stride_head": 32,
            "stride_slot": 2,
            "null_block": None,
        }
    ],
    "ranks": [
        {"rank": 0, "holdings": [{"group": "kv", "head_start": 0, "head_stop": 1, "layers": ["a"]}]}
    ],
}
"""The descriptor of every peer of these files: one layer, one head, 8 blocks of 16 tokens."""


def shard(**changes: Any) -> str:
    return cbor2.dumps({**SHARD, **changes}).hex()


def group(**changes: Any) -> str:
    return shard(groups=[{**SHARD["groups"][0], **changes}])


def described(encoded: str | None = None, transport: str = "vector") -> Plain:
    whole = shard() if encoded is None else encoded
    return message("DESCRIBE", transport=transport, blob="", shard=whole)


HELLO = message(
    "HELLO",
    version_min=1,
    version_max=1,
    engine_id="eng-D",
    rank=0,
    incarnation=1000,
    role="CONSUMER",
    features=0,
    expected_engine_id="eng-P",
    expected_rank=0,
)
WELCOME = message(
    "WELCOME",
    version=1,
    engine_id="eng-P",
    rank=0,
    incarnation=1,
    role="PRODUCER",
    features=0,
)
OPEN = event("connection", link=1, dialled=None)
CALL = event("connection", link=1, dialled=peer("eng-P", 0))
BYE = message("BYE", reason="SHUTDOWN")
UNDECODABLE = event("undecodable", link=1)
ANSWER = message("DESCRIBE", transport="vector")

A = {"role": "PRODUCER"}
C = {"role": "CONSUMER", "engine_id": "eng-D", "incarnation": 1000}


def hello(**changes: Any) -> Plain:
    return recv({**HELLO, **changes})


def welcome(**changes: Any) -> Plain:
    return recv({**WELCOME, **changes})


def refuse(reason: str) -> Plain:
    return send(message("REFUSE", reason=reason))


def recv_refuse(reason: str) -> Plain:
    return recv(message("REFUSE", reason=reason, detail=""))


SAY_HELLO, SAY_WELCOME = (CALL, send(HELLO)), (hello(), send(WELCOME))
SAY_DESCRIBE = (welcome(), send(ANSWER))


def accepted() -> list[Plain]:
    """Handshakes that end with a link."""
    acceptor_up = (recv(described()), send(ANSWER), up(1, D0))
    wide = {**HELLO, "version_min": 0, "version_max": 7}
    return [
        case(
            "acceptor",
            "The four messages, seen by the producer.",
            "4.1.3 4.2.2",
            (OPEN,),
            SAY_WELCOME,
            acceptor_up,
            **A,
        ),
        case(
            "dialler",
            "The four messages, seen by the consumer.",
            "4.1.1 4.2.1 4.2.4",
            SAY_HELLO,
            SAY_DESCRIBE,
            (recv(described()), up(1, P0)),
            **C,
        ),
        case(
            "newer-dialler",
            "A dialler of versions 0 to 7 is met at 1.",
            "4.2.2",
            (OPEN,),
            (recv(wide), send(WELCOME)),
            acceptor_up,
            **A,
        ),
        case(
            "any-engine",
            "An empty expected_engine_id stands for any engine.",
            "4.2.4",
            (OPEN,),
            (hello(expected_engine_id=""), send(WELCOME)),
            acceptor_up,
            **A,
        ),
        case(
            "dialler-of-both-roles",
            "A peer of both roles may dial.",
            "4.1.6 4.1.7",
            (OPEN,),
            (hello(role="BOTH"), send(WELCOME)),
            acceptor_up,
            **A,
        ),
        case(
            "acceptor-of-both-roles",
            "A peer of both roles says so, and accepts.",
            "4.1.6 4.1.7",
            (OPEN,),
            (hello(), send({**WELCOME, "role": "BOTH"})),
            acceptor_up,
            role="BOTH",
        ),
        case(
            "welcome-of-both-roles",
            "The dialler takes an acceptor of both roles.",
            "4.1.6 4.1.7",
            SAY_HELLO,
            (welcome(role="BOTH"), send(ANSWER)),
            (recv(described()), up(1, P0)),
            **C,
        ),
        case(
            "features-in-hello",
            "Unknown bits are ignored and not answered.",
            "4.2.7",
            (OPEN,),
            (hello(features=1 << 63), send({**WELCOME, "features": 0})),
            acceptor_up,
            **A,
        ),
        case(
            "features-in-welcome",
            "Unknown bits are ignored.",
            "4.2.7",
            SAY_HELLO,
            (welcome(features=1 << 62), send(ANSWER)),
            (recv(described()), up(1, P0)),
            **C,
        ),
        case(
            "own-features-in-hello",
            "STREAMING is bit 0, PULL bit 1.",
            "4.2.7 4.5.1",
            (CALL, send({**HELLO, "features": 3})),
            (welcome(features=2), send(ANSWER)),
            (recv(described()), up(1, P0)),
            features=["STREAMING", "PULL"],
            **C,
        ),
        case(
            "own-features-in-welcome",
            "Each side states its own.",
            "4.2.7 4.5.1",
            (OPEN,),
            (hello(features=15), send({**WELCOME, "features": 4})),
            acceptor_up,
            features=["DRAIN"],
            **A,
        ),
        case(
            "same-engine-name",
            "Names of engines need not differ, lives do.",
            "3.3.4 4.2.5",
            (OPEN,),
            (hello(engine_id="eng-P"), send(WELCOME)),
            (recv(described()), send(ANSWER), up(1, peer("eng-P", 0, 1000))),
            **A,
        ),
        case(
            "deadline-is-over-when-up",
            "The handshake deadline does not end a link that is up.",
            "4.4.3",
            (OPEN,),
            SAY_WELCOME,
            acceptor_up,
            (60_000, TIME),
            **A,
        ),
        case(
            "just-in-time",
            "The last message comes one millisecond before the deadline.",
            "4.4.3",
            (OPEN,),
            SAY_WELCOME,
            (9_999, recv(described()), send(ANSWER), up(1, D0)),
            **A,
        ),
        case(
            "extra-key-in-shard",
            "Unknown keys of a descriptor are skipped.",
            "7.1.1 11.1",
            (OPEN,),
            SAY_WELCOME,
            (recv(described(shard(later=[1, 2]))), send(ANSWER), up(1, D0)),
            **A,
        ),
        prod(
            "second-link-of-the-same-life",
            "The older link ends first, then the newer is up.",
            "3.2.3",
            (event("connection", link=2, dialled=None),),
            (recv(HELLO, 2), send(WELCOME, 2)),
            (recv(described(), 2), send(ANSWER, 2), close(1), up(2, D0)),
        ),
        prod(
            "link-of-another-life",
            "All that hangs on the older life ends.",
            "3.2.3 6.11.5",
            (grant(), ack()),
            (event("connection", link=2, dialled=None),),
            (recv({**HELLO, "incarnation": 1007}, 2), send(WELCOME, 2)),
            (recv(described(), 2), send(ANSWER, 2), close(1), up(2, LATER_D0)),
        ),
        prod(
            "links-of-two-engines",
            "A link to another peer disturbs nobody.",
            "3.2.3",
            (event("connection", link=2, dialled=None),),
            (recv({**HELLO, "engine_id": "eng-E", "incarnation": 2000}, 2), send(WELCOME, 2)),
            (recv(described(), 2), send(ANSWER, 2), up(2, peer("eng-E", 0, 2000))),
            (grant(), ack()),
        ),
    ]


def refused_by_acceptor() -> list[Plain]:
    """What a producer must not take."""

    def one(name: str, note: str, rules: str, first: Plain, reason: str, **more: Any) -> Plain:
        return case(
            name,
            note,
            rules,
            (OPEN,),
            (first, refuse(reason), close()),
            reject=True,
            **{**A, **more},
        )

    def second(name: str, note: str, rules: str, first: Plain, *out: Plain) -> Plain:
        return case(
            name, note, rules, (OPEN,), SAY_WELCOME, (first, *out, close()), reject=True, **A
        )

    return [
        one(
            "version-too-new",
            "The dialler speaks 2 to 9.",
            "4.2.2",
            hello(version_min=2, version_max=9),
            "VERSION_MISMATCH",
        ),
        one(
            "version-too-old",
            "The dialler speaks 0 alone.",
            "4.2.2",
            hello(version_min=0, version_max=0),
            "VERSION_MISMATCH",
        ),
        one(
            "version-range-empty",
            "From 3 down to 1: no version at all.",
            "4.2.2",
            hello(version_min=3, version_max=1),
            "VERSION_MISMATCH",
        ),
        one(
            "wrong-engine",
            "The dialler means another engine.",
            "4.2.5",
            hello(expected_engine_id="eng-X"),
            "WRONG_PEER",
        ),
        one(
            "engine-prefix",
            "A prefix of a name is another name.",
            "4.2.5 3.3.2",
            hello(expected_engine_id="eng-"),
            "WRONG_PEER",
        ),
        one(
            "wrong-rank",
            "The dialler means another rank.",
            "4.2.5",
            hello(expected_rank=1),
            "WRONG_PEER",
        ),
        one(
            "any-engine-wrong-rank",
            "Any engine, but not any rank.",
            "4.2.4 4.2.5",
            hello(expected_engine_id="", expected_rank=7),
            "WRONG_PEER",
        ),
        one(
            "dialled-itself",
            "The incarnation is the acceptor's own.",
            "4.2.5",
            hello(incarnation=1),
            "WRONG_PEER",
        ),
        one(
            "producer-dials",
            "A producer alone does not dial.",
            "4.1.6",
            hello(role="PRODUCER"),
            "ROLE_MISMATCH",
        ),
        one(
            "consumer-is-dialled",
            "A consumer alone does not accept.",
            "4.1.6",
            hello(),
            "ROLE_MISMATCH",
            role="CONSUMER",
        ),
        one(
            "grant-first",
            "A transfer before any handshake.",
            "4.1.4",
            recv(grant_message()),
            "PROTOCOL_ERROR",
        ),
        one(
            "cancel-first",
            "A CANCEL before any handshake.",
            "4.1.4",
            recv(from_d("CANCEL", "t", 1, reason="NONE")),
            "PROTOCOL_ERROR",
        ),
        one(
            "undecodable-first",
            "Bytes that are no message.",
            "4.4.2 5.2.1",
            UNDECODABLE,
            "PROTOCOL_ERROR",
        ),
        case(
            "describe-first",
            "Phase 2 is not looked at before phase 1.",
            "4.1.2 4.1.5",
            (OPEN,),
            (recv(described()), close()),
            reject=True,
            **A,
        ),
        case(
            "welcome-first",
            "The acceptor is not welcomed.",
            "4.1.5",
            (OPEN,),
            (welcome(), close()),
            reject=True,
            **A,
        ),
        case(
            "bye-first",
            "A stranger that leaves keeps no place.",
            "4.4.3 5.8.1",
            (OPEN,),
            (recv(BYE), close()),
            reject=True,
            **A,
        ),
        case(
            "silent-caller",
            "Nothing comes for 10 s.",
            "4.4.3",
            (OPEN,),
            (10_000, TIME, close()),
            reject=True,
            **A,
        ),
        case(
            "silent-after-welcome",
            "DESCRIBE does not come.",
            "4.4.3",
            (OPEN,),
            SAY_WELCOME,
            (9_999, TIME),
            (10_000, TIME, close()),
            reject=True,
            **A,
        ),
        second("second-hello", "HELLO where DESCRIBE is due.", "4.1.5", hello()),
        second("welcome-for-describe", "WELCOME where DESCRIBE is due.", "4.1.5", welcome()),
        second(
            "grant-for-describe",
            "A transfer before the link is up.",
            "4.1.4",
            recv(grant_message()),
            refuse("PROTOCOL_ERROR"),
        ),
        second(
            "undecodable-for-describe",
            "Bytes that are no message.",
            "4.4.2",
            UNDECODABLE,
            refuse("PROTOCOL_ERROR"),
        ),
        second(
            "other-transport",
            "The transports have different names.",
            "4.3.1",
            recv(described(transport="pigeon")),
            refuse("TRANSPORT_MISMATCH"),
        ),
        second(
            "shard-not-cbor",
            "The descriptor is not CBOR.",
            "4.3.3 4.3.4",
            recv(described("ff")),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-not-a-map",
            "The descriptor is a number.",
            "4.3.3 4.3.4",
            recv(described("07")),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-of-another-rank",
            "HELLO says rank 0, the descriptor 1.",
            "4.3.5",
            recv(described(shard(rank=1, ranks=[{**SHARD["ranks"][0], "rank": 1}]))),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-outside-its-area",
            "The blocks reach behind the area.",
            "4.3.4 7.3.5",
            recv(described(group(physical_blocks=9, stride_layer=288))),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-not-in-the-rank-map",
            "The rank map lacks the sender.",
            "7.3.7",
            recv(described(shard(ranks=[]))),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-of-other-heads",
            "The two models differ in their heads.",
            "7.4.1",
            recv(described(shard(groups=[{**SHARD["groups"][0], "heads_total": 2}]))),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-of-other-content",
            "A slot has 4 bytes here, 2 there.",
            "7.4.1",
            recv(
                described(
                    group(
                        planes=[{"name": "kv", "area": 0, "offset": 0, "content_bytes": 4}],
                        physical_blocks=4,
                        stride_slot=4,
                        stride_head=64,
                        stride_block=64,
                    )
                )
            ),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-wants-a-layer-that-nobody-holds",
            "A taker without a giver.",
            "7.4.3",
            recv(
                described(
                    shard(
                        groups=[{**SHARD["groups"][0], "layers": ["z"]}],
                        ranks=[
                            {
                                "rank": 0,
                                "holdings": [
                                    {
                                        "group": "kv",
                                        "head_start": 0,
                                        "head_stop": 1,
                                        "layers": ["z"],
                                    }
                                ],
                            }
                        ],
                    )
                )
            ),
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "shard-of-an-unknown-kind",
            "Group kinds are registered numbers.",
            "11.4",
            recv(described(group(kind=9))),
            refuse("LAYOUT_REFUSED"),
        ),
    ]


def refused_by_dialler() -> list[Plain]:
    """What a consumer must not take, and what becomes of those who wait for the link."""
    start = ((register(), dial()), SAY_HELLO)

    def one(name: str, note: str, rules: str, first: Plain, reason: str, *out: Plain) -> Plain:
        end = (lost(reason), let_go())
        return case(name, note, rules, *start, (first, *out, close(), *end), reject=True, **C)

    def second(name: str, note: str, rules: str, first: Plain, reason: str, *out: Plain) -> Plain:
        end = (lost(reason), let_go())
        return case(
            name, note, rules, *start, SAY_DESCRIBE, (first, *out, close(), *end), reject=True, **C
        )

    mismatch = refuse("VERSION_MISMATCH")
    wrong = refuse("WRONG_PEER")
    return [
        one(
            "welcome-version-0",
            "A version below the dialler's range.",
            "4.2.3 4.4.4",
            welcome(version=0),
            "VERSION_MISMATCH",
            mismatch,
        ),
        one(
            "welcome-version-2",
            "A version above the dialler's range.",
            "4.2.3 4.4.4",
            welcome(version=2),
            "VERSION_MISMATCH",
            mismatch,
        ),
        one(
            "welcome-of-another-engine",
            "Somebody else answers.",
            "4.2.6 4.4.4",
            welcome(engine_id="eng-Q"),
            "WRONG_PEER",
            wrong,
        ),
        one(
            "welcome-of-another-rank",
            "Another rank answers.",
            "4.2.6 4.4.4",
            welcome(rank=1),
            "WRONG_PEER",
            wrong,
        ),
        one(
            "welcome-of-a-consumer",
            "The acceptor cannot produce.",
            "4.1.6 4.4.4",
            welcome(role="CONSUMER"),
            "ROLE_MISMATCH",
            refuse("ROLE_MISMATCH"),
        ),
        one(
            "refused-by-acceptor",
            "The reason reaches those who wait.",
            "4.4.4",
            recv_refuse("WRONG_PEER"),
            "WRONG_PEER",
        ),
        one(
            "refused-for-an-unregistered-reason",
            "Any reason ends the handshake.",
            "5.2.6",
            recv(message("REFUSE", reason=4000, detail="")),
            "UNREGISTERED",
        ),
        one(
            "ack-for-welcome",
            "A transfer message before the link is up.",
            "4.1.4",
            recv(from_p("GRANT_ACK", "t", 1)),
            "PROTOCOL_ERROR",
            refuse("PROTOCOL_ERROR"),
        ),
        one(
            "undecodable-for-welcome",
            "Bytes that are no message.",
            "4.4.2",
            UNDECODABLE,
            "PROTOCOL_ERROR",
            refuse("PROTOCOL_ERROR"),
        ),
        case(
            "silent-acceptor",
            "WELCOME does not come within 10 s.",
            "4.4.3 4.4.4",
            *start,
            (10_000, TIME, close(), lost("UNREACHABLE"), let_go()),
            reject=True,
            **C,
        ),
        case(
            "lost-before-welcome",
            "The connection breaks.",
            "4.4.4",
            *start,
            (lost_link(), close(), lost("PEER_LOST"), let_go()),
            reject=True,
            **C,
        ),
        case(
            "cannot-be-dialled",
            "No connection at all.",
            "4.4.4",
            (register(), dial()),
            (unreachable(P0), lost("UNREACHABLE"), let_go()),
            reject=True,
            **C,
        ),
        second(
            "describe-of-another-transport",
            "The transports differ.",
            "4.3.1 4.4.4",
            recv(described(transport="pigeon")),
            "TRANSPORT_MISMATCH",
            refuse("TRANSPORT_MISMATCH"),
        ),
        second(
            "describe-lacks-my-layer",
            "A layer of the consumer is nowhere.",
            "7.4.3 4.3.4",
            recv(
                described(
                    shard(
                        groups=[{**SHARD["groups"][0], "layers": ["z"]}],
                        ranks=[
                            {
                                "rank": 0,
                                "holdings": [
                                    {
                                        "group": "kv",
                                        "head_start": 0,
                                        "head_stop": 1,
                                        "layers": ["z"],
                                    }
                                ],
                            }
                        ],
                    )
                )
            ),
            "LAYOUT_REFUSED",
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "describe-of-another-rank",
            "WELCOME says rank 0, the descriptor 1.",
            "4.3.5",
            recv(described(shard(rank=1, ranks=[{**SHARD["ranks"][0], "rank": 1}]))),
            "LAYOUT_REFUSED",
            refuse("LAYOUT_REFUSED"),
        ),
        second(
            "refused-after-describe",
            "The acceptor cannot use the description.",
            "4.4.4",
            recv_refuse("LAYOUT_REFUSED"),
            "LAYOUT_REFUSED",
        ),
        second("bye-for-describe", "The acceptor leaves.", "4.4.4 5.8.1", recv(BYE), "SHUTDOWN"),
        case(
            "silent-before-describe",
            "The other DESCRIBE does not come.",
            "4.4.3 4.4.4",
            *start,
            SAY_DESCRIBE,
            (10_000, TIME, close(), lost("UNREACHABLE"), let_go()),
            reject=True,
            **C,
        ),
        case(
            "lost-before-describe",
            "The connection breaks.",
            "4.4.4",
            *start,
            SAY_DESCRIBE,
            (lost_link(), close(), lost("PEER_LOST"), let_go()),
            reject=True,
            **C,
        ),
    ]


def refused_when_up() -> list[Plain]:
    """Handshake messages that come to a link that is up, and its other ends."""

    def one(name: str, note: str, rules: str, first: Plain, *out: Plain) -> Plain:
        return prod(
            name, note, rules, (grant(), ack()), (first, *out, close()), (TIME,), reject=True
        )

    return [
        one("hello-when-up", "A second HELLO ends the link.", "4.1.5", hello()),
        one("welcome-when-up", "WELCOME ends the link.", "4.1.5", welcome()),
        one("describe-when-up", "A second DESCRIBE ends the link.", "4.1.5", recv(described())),
        one("refuse-when-up", "REFUSE ends the link.", "4.1.5", recv_refuse("NONE")),
        one("bye-when-up", "BYE ends the link.", "5.8.1", recv(BYE)),
        one(
            "undecodable-when-up",
            "The peer is told why.",
            "4.4.2 10.5",
            UNDECODABLE,
            refuse("PROTOCOL_ERROR"),
        ),
        one(
            "ack-to-a-producer",
            "GRANT_ACK goes to the consumer.",
            "5.2.11",
            recv(from_d("GRANT_ACK", "t", 1)),
        ),
        one(
            "done-to-a-producer",
            "DONE goes to the consumer.",
            "5.2.11",
            recv(from_d("DONE", "t", 1, part=[0, 0, 0, 16])),
        ),
        one(
            "gone-to-a-producer",
            "GONE goes to the consumer.",
            "5.2.11",
            recv(from_d("GONE", "t", 1, reason="NONE")),
        ),
        cons(
            "grant-to-a-consumer",
            "GRANT goes to the producer.",
            "5.2.11 6.11.1",
            (register(), granted()),
            (recv(grant_message(of=P0, to=D0)), close(), lost("PROTOCOL_ERROR"), fence(P0)),
            reject=True,
        ),
        cons(
            "renew-to-a-consumer",
            "RENEW goes to the producer.",
            "5.2.11",
            (recv(from_p("RENEW", "t", 1, lease_ms=1)), close()),
            reject=True,
        ),
        cons(
            "cancel-to-a-consumer",
            "CANCEL goes to the producer.",
            "5.2.11",
            (recv(from_p("CANCEL", "t", 1, reason="NONE")), close()),
            reject=True,
        ),
        prod(
            "message-after-the-end",
            "A link that has ended takes nothing in.",
            "6.11.6",
            (lost_link(), close()),
            (grant(),),
            reject=True,
        ),
        prod(
            "grant-while-shutting-down",
            "What comes is refused.",
            "6.12.3",
            (SHUT_DOWN,),
            (grant(), gone("SHUTDOWN")),
            reject=True,
        ),
        prod(
            "offer-while-shutting-down",
            "The engine's own offer is refused too.",
            "6.12.1",
            (SHUT_DOWN,),
            (offer(), unsent("SHUTDOWN")),
            reject=True,
        ),
        cons(
            "link-of-another-life-of-the-producer",
            "It proves nothing of the older life.",
            "6.11.5 3.3.4",
            (register(), granted()),
            (link_up(2, LATER_P0, dialled=True), close(1), lost("NEW_INCARNATION"), fence(P0)),
            reject=True,
        ),
        prod(
            "link-lost-while-queued",
            "What was queued is not posted.",
            "6.11.3",
            (grant(), ack()),
            (offer(), queue()),
            (lost_link(), close(), unsent("PEER_LOST")),
            (
                event(
                    "claim", op={"link": 1, "transfer_id": "t", "attempt": 1, "part": [0, 0, 0, 16]}
                ),
            ),
            reject=True,
        ),
    ]


def cases() -> list[Plain]:
    return accepted() + refused_by_acceptor() + refused_by_dialler() + refused_when_up()
