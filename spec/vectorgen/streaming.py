"""Streaming: parts follow a prefill chunk by chunk (sections 6.4 and 6.14)."""

from __future__ import annotations

from typing import Any

from vectorgen import words
from vectorgen.words import (
    BLOCK,
    D0,
    D1,
    P0,
    TIME,
    Plain,
    ack,
    cancel,
    cancelled,
    claim,
    close,
    done,
    ended,
    expect,
    fence,
    gone,
    grant,
    granted,
    grow,
    key,
    landed,
    lend,
    let_go,
    lost,
    lost_link,
    never,
    offer,
    post,
    queue,
    recv_ack,
    recv_cancel,
    recv_cancelled,
    recv_offer,
    recv_release,
    register,
    released,
    renew,
    sent,
    sent_cancel,
    stop,
    tables,
    unsent,
    withdraw,
)

STREAM: dict[str, Any] = {"features": ["STREAMING", "PULL", "LAYER_RANGES"]}
FOREVER = 10_000_000
A, B, C = ([0, 0, n * BLOCK, (n + 1) * BLOCK] for n in range(3))
"""Three parts of one group, cut on a grid of 16 tokens."""
L0, L1 = [0, 0, BLOCK, 2 * BLOCK, 0, 2], [0, 0, BLOCK, 2 * BLOCK, 2, 4]
"""The second range of tokens, cut on a grid of 2 layers."""


def cons(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.cons(name, note, rules, *steps, **{**STREAM, **more})


def prod(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.prod(name, note, rules, *steps, **{**STREAM, **more})


def moved(*parts: list[int]) -> tuple[tuple, ...]:
    """Claimed, posted, done; the last of a transfer says more than that."""
    return tuple(step for p in parts for step in ((claim(p), post(p)), (ended(p),)))


def begun() -> list[Plain]:
    """Producer: parts that move while the prefill runs."""
    two = grant(parts=[A, B])
    three = grant(parts=[A, B, C])
    last = (claim(B), post(B))
    return [
        prod(
            "chunk-by-chunk",
            "Each part as soon as its tokens are final.",
            "6.14.2 6.14.3",
            (offer(tokens=0, sealed=False),),
            (two, ack()),
            (grow(16), queue(A)),
            *moved(A),
            (grow(32, sealed=True), queue(B)),
            last,
            (ended(B), sent()),
        ),
        prod(
            "grant-in-mid-stream",
            "What is final already is begun at once.",
            "6.14.2",
            (offer(tokens=16, sealed=False),),
            (two, ack(), queue(A)),
            (grow(32, sealed=True), queue(B)),
        ),
        prod(
            "grant-after-the-seal",
            "All of it.",
            "6.14.2",
            (offer(tokens=16, sealed=False),),
            (grow(32, sealed=True),),
            (two, ack(), queue(A), queue(B)),
        ),
        prod(
            "two-chunks-at-once",
            "A statement may pass over several parts.",
            "6.14.2",
            (offer(tokens=0, sealed=False),),
            (three, ack()),
            (grow(48, sealed=True), queue(A), queue(B), queue(C)),
        ),
        prod(
            "chunk-inside-a-part",
            "A part waits for its last token.",
            "6.14.2",
            (offer(tokens=0, sealed=False),),
            (two, ack()),
            (grow(15),),
            (grow(31), queue(A)),
            (grow(32, sealed=True), queue(B)),
        ),
        prod(
            "all-parts-before-the-seal",
            "The seal is no matter of the wire.",
            "6.3.8",
            (offer(tokens=0, sealed=False),),
            (two, ack()),
            (grow(32), queue(A), queue(B)),
            *moved(A),
            last,
            (ended(B), sent()),
            (grow(40, sealed=True),),
        ),
        prod(
            "layers-ahead",
            "The last tokens go layer by layer.",
            "6.14.2 6.4.10",
            (offer(tokens=16, sealed=False),),
            (grant(parts=[A, L0, L1]), ack(), queue(A)),
            (grow(16, tokens_ahead=32, layers_final=1),),
            (grow(16, tokens_ahead=32, layers_final=2), queue(L0)),
            (grow(16, tokens_ahead=32, layers_final=3),),
            (grow(32, sealed=True), queue(L1)),
        ),
        prod(
            "layers-without-a-cut",
            "A whole part waits for all layers.",
            "6.14.2",
            (offer(tokens=16, sealed=False),),
            (two, ack(), queue(A)),
            (grow(16, tokens_ahead=32, layers_final=4),),
            (grow(32, sealed=True), queue(B)),
        ),
        prod(
            "lent-chunk-by-chunk",
            "One OFFER for what is new.",
            "6.14.3 6.13.2",
            (offer(tokens=0, sealed=False),),
            (grant(parts=[A, B], initiator="CONSUMER", tables=[]), ack()),
            (grow(16, tables=tables(1)), lend(A)),
            (grow(32, sealed=True, tables=tables(1)), lend(B)),
            (recv_release(True), sent()),
        ),
        prod(
            "two-ranks-in-a-stream",
            "Each gets its parts.",
            "6.14.3",
            (offer(tokens=0, sealed=False),),
            (two, ack()),
            (grant(parts=[A], of=D1, link=2), ack(link=2, to=D1)),
            (grow(16), queue(A), queue(A, link=2)),
            links=((1, D0), (2, D1)),
            ranks=(0, 1),
        ),
        prod(
            "stream-longer-than-a-lease",
            "The lease of an offer runs from its seal.",
            "6.14.5",
            (offer(tokens=0, sealed=False),),
            (
                60_000,
                grow(16),
            ),
            (90_000, two, ack(), queue(A)),
            (100_000, renew(), ack()),
            (110_000, grow(32, sealed=True), queue(B)),
            flags="timing",
        ),
        prod(
            "expected-then-streamed",
            "Announced first.",
            "6.14.2",
            (expect(),),
            (two, ack()),
            (offer(tokens=16, sealed=False), queue(A)),
        ),
    ]


def broken_off() -> list[Plain]:
    """Producer: streams that end before they are whole, and statements that change nothing."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return prod(name, note, rules, *steps, reject=True, **more)

    two = grant(parts=[A, B])
    half = ((offer(tokens=16, sealed=False),), (two, ack(), queue(A)))
    flying = (*half, (claim(A), post(A)))
    missing = never(0, "TOKENS_MISSING", part=B)
    return [
        no(
            "sealed-too-short",
            "What is missing is told, what is begun goes on.",
            "6.14.4",
            *half,
            (grow(20, sealed=True), missing),
            (claim(A), post(A)),
            (ended(A), unsent("TOKENS_MISSING")),
        ),
        no(
            "sealed-too-short-before-the-grant",
            "The pair is refused.",
            "6.3.4 6.3.5",
            (offer(tokens=16, sealed=False),),
            (grow(20, sealed=True),),
            (two, ack(), never(0, "TOKENS_MISSING", part=A), missing),
        ),
        no(
            "sealed-too-short-while-lent",
            "The same in pull.",
            "6.14.4",
            (offer(tokens=16, sealed=False, tables=tables(1)),),
            (grant(parts=[A, B], initiator="CONSUMER", tables=[]), ack(), lend(A)),
            (grow(16, sealed=True, tables=tables(1)), missing),
        ),
        no(
            "withdrawn-in-mid-stream",
            "What is posted drains.",
            "6.14.6 6.3.10",
            *flying,
            (withdraw(), stop(A)),
            (ended(A), gone("PRODUCER_ABORTED"), unsent("PRODUCER_ABORTED")),
        ),
        no(
            "cancelled-in-mid-stream",
            "Nothing more is begun.",
            "6.6.2 6.3.9",
            *flying,
            (recv_cancel(), stop(A), ack()),
            (grow(32, sealed=True),),
            (ended(A), cancelled(), unsent("CANCELLED_BY_CONSUMER")),
        ),
        no(
            "link-lost-in-mid-stream",
            "Nothing more is begun.",
            "6.11.3",
            *flying,
            (lost_link(), close(), stop(A), fence(D0)),
            (grow(32, sealed=True),),
            (ended(A, "unquiet"), unsent("PEER_LOST")),
        ),
        no(
            "part-failed-in-mid-stream",
            "The rest of the prefill is for nobody.",
            "6.7.3",
            *flying,
            (
                ended(A, "quiet"),
                words.send(
                    words.message(
                        "FAILED",
                        words.header("t", 1, 1, 1000),
                        part=A,
                        quiet=True,
                        reason="TRANSPORT_FAILED",
                    )
                ),
            ),
            (grow(32, sealed=True), queue(B)),
            (claim(B), post(B)),
            (ended(B), unsent("TRANSPORT_FAILED")),
        ),
        no(
            "fewer-tokens-than-before",
            "What was final stays final.",
            "6.14.1",
            *half,
            (grow(8),),
            (grow(32, sealed=True), queue(B)),
        ),
        no(
            "statement-after-the-end",
            "An offer that has ended is not revived.",
            "6.14.7",
            (offer(tokens=16, sealed=False),),
            (withdraw(), unsent("PRODUCER_ABORTED")),
            (grow(32, sealed=True),),
            (two, gone("PRODUCER_ABORTED")),
        ),
        no(
            "statement-after-the-seal",
            "Sealed is sealed.",
            "6.14.7",
            (offer(tokens=16),),
            (grow(32),),
            (two, ack(), never(0, "TOKENS_MISSING", part=A), missing),
        ),
        no(
            "statement-of-another-tag",
            "It is about another request.",
            "6.14.7",
            *half,
            (grow(32, sealed=True, tag="p2"),),
            (grow(32, sealed=True), queue(B)),
        ),
        no(
            "seal-and-nobody-comes",
            "The lease of the offer runs from the seal.",
            "6.14.5 6.9.9",
            (offer(tokens=0, sealed=False),),
            (
                40_000,
                grow(32, sealed=True),
            ),
            (69_999, TIME),
            (70_000, TIME, unsent("OFFER_EXPIRED")),
            flags="timing",
        ),
        no(
            "left-before-the-first-chunk",
            "The stream is over before it begins.",
            "6.3.9",
            (expect(),),
            (two, ack()),
            (recv_cancel(), cancelled()),
            (offer(tokens=0, sealed=False), unsent("CANCELLED_BY_CONSUMER")),
            (grow(32),),
        ),
        no(
            "grant-expires-in-mid-stream",
            "Parts that wait are not begun.",
            "6.9.5",
            *half,
            (claim(A), post(A)),
            (ended(A),),
            (30_000, TIME, gone("GRANT_EXPIRED"), unsent("GRANT_EXPIRED")),
            flags="timing",
        ),
    ]


def streamed() -> list[Plain]:
    """Consumer: the set of parts is known from the grant; no message says how many there are."""

    def want(*parts: list[int]) -> list[Plain]:
        return [{"peer": key(P0), "parts": list(parts), "tables": tables(1)}]

    def got(p: list[int]) -> Plain:
        return done(part=p)

    def start(*parts: list[int], **ask: Any) -> tuple:
        first = register(of=want(*parts), deadline_ms=FOREVER, **ask)
        more = {"initiator": "CONSUMER", "tables": []} if ask else {"tables": tables(1)}
        return (first, granted(parts=list(parts), **more))

    end = (landed(), let_go())
    mismatch = (lost("PARTS_MISMATCH"), sent_cancel())

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    return [
        cons(
            "parts-of-a-grid",
            "Landed with the last of them.",
            "6.4.6 6.4.9",
            start(A, B, C),
            (got(A),),
            (got(B),),
            (got(C), *end),
        ),
        cons(
            "parts-of-a-grid-reversed",
            "In any order.",
            "6.4.6 6.4.9",
            start(A, B, C),
            (got(C),),
            (got(A),),
            (got(B), *end),
        ),
        cons(
            "parts-by-layers",
            "Pieces of one range of tokens.",
            "6.4.6 6.4.10",
            start(A, L0, L1),
            (got(L1),),
            (got(A),),
            (got(L0), *end),
        ),
        cons(
            "parts-of-a-grid-read",
            "Released when the last is read.",
            "6.13.9 6.13.8",
            start(A, B, initiator="CONSUMER"),
            (recv_ack(lease_ms=30_000),),
            (recv_offer(A), queue(A)),
            (claim(A), post(A)),
            (ended(A),),
            (recv_offer(B), queue(B)),
            (claim(B), post(B)),
            (ended(B), landed(), released(True), let_go()),
        ),
        no(
            "last-part-lost",
            "A stream whose end is lost is not whole.",
            "6.4.6",
            start(A, B, C),
            (got(A),),
            (got(B),),
            (cancel(), lost("CANCELLED_BY_CONSUMER"), sent_cancel()),
            (recv_cancelled(), let_go()),
        ),
        no(
            "last-part-missing",
            "The producer's seal was too short.",
            "6.14.4 6.4.8",
            start(A, B),
            (got(A),),
            (
                words.recv(words.from_p("NEVER_POSTED", "t", 1, reason="TOKENS_MISSING", part=B)),
                lost("TOKENS_MISSING"),
                sent_cancel(),
                let_go(),
            ),
        ),
        no(
            "part-of-another-grid",
            "Tokens [0, 32) were never granted as one part.",
            "6.4.5",
            start(A, B),
            (got([0, 0, 0, 32]), *mismatch),
            (recv_cancelled(), let_go()),
        ),
        no(
            "whole-part-for-a-piece",
            "A part without layers is another one.",
            "6.4.5",
            start(A, L0, L1),
            (got(B), *mismatch),
            (recv_cancelled(), let_go()),
        ),
        no(
            "piece-for-a-whole-part",
            "A part with layers is another one.",
            "6.4.5",
            start(A, B),
            (got(L0), *mismatch),
            (recv_cancelled(), let_go()),
        ),
        no(
            "piece-of-other-layers",
            "All six items count.",
            "6.4.5",
            start(A, L0, L1),
            (got([0, 0, 16, 32, 0, 4]), *mismatch),
            (recv_cancelled(), let_go()),
        ),
        no(
            "piece-twice",
            "Twice is once.",
            "6.4.4",
            start(L0, L1),
            (got(L0),),
            (got(L0),),
            (got(L1), *end),
        ),
    ]


def cases() -> list[Plain]:
    return begun() + broken_off() + streamed()
