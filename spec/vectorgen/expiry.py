"""Expiry: leases, renewals, silence, deadlines, retries, in virtual time (6.8 to 6.11).

The times are those of the file's `settings`; all cases carry the flag `timing`, since a peer
may be built with other ones.
"""

from __future__ import annotations

from typing import Any

from vectorgen import words
from vectorgen.words import (
    D0,
    D1,
    P0,
    P1,
    TIME,
    Plain,
    ack,
    cancel,
    claim,
    close,
    dial,
    done,
    ended,
    expect,
    fence,
    fence_result,
    gone,
    grant,
    granted,
    landed,
    let_go,
    link_up,
    lost,
    lost_link,
    offer,
    post,
    queue,
    recv_ack,
    recv_cancel,
    recv_cancelled,
    recv_gone,
    register,
    renew,
    renewed,
    sent,
    sent_cancel,
    stop,
    unsent,
    wants,
    withdraw,
)

FOREVER = 10_000_000
WAITING = ((register(deadline_ms=FOREVER), granted()),)
LEFT = (cancel(), lost("CANCELLED_BY_CONSUMER"), sent_cancel())
BROKEN = (lost_link(), close(), lost("PEER_LOST"), fence(P0))


def cons(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.cons(name, note, rules, *steps, flags="timing", **more)


def prod(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.prod(name, note, rules, *steps, flags="timing", **more)


def lease_cases() -> list[Plain]:
    """Producer: how long an attempt is held."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return prod(name, note, rules, *steps, reject=True, **more)

    flying = ((offer(),), (grant(), ack(), queue()), (claim(), post()))
    return [
        no(
            "grant-expires",
            "30 s after the GRANT, not before.",
            "6.9.1 6.9.5",
            (grant(), ack()),
            (29_999, TIME),
            (30_000, TIME, gone("GRANT_EXPIRED")),
        ),
        no(
            "shorter-lease",
            "The consumer asked for 5 s.",
            "6.9.1",
            (grant(lease_ms=5000), ack()),
            (4_999, TIME),
            (5_000, TIME, gone("GRANT_EXPIRED")),
        ),
        no(
            "lease-is-bounded",
            "A peer that asks for an hour gets the bound.",
            "6.9.1",
            (grant(lease_ms=3_600_000), ack()),
            (29_999, TIME),
            (30_000, TIME, gone("GRANT_EXPIRED")),
        ),
        no(
            "lease-of-nothing",
            "A lease of 0 ms is over at once.",
            "6.9.1",
            (grant(lease_ms=0), ack()),
            (0, TIME, gone("GRANT_EXPIRED")),
        ),
        prod(
            "renewal-lengthens",
            "Counted from the RENEW.",
            "6.9.1 6.9.4",
            (grant(), ack()),
            (20_000, renew(), ack()),
            (49_999, TIME),
            (50_000, TIME, gone("GRANT_EXPIRED")),
        ),
        prod(
            "renewal-never-shortens",
            "A RENEW of 1 s leaves the 30 s as they are.",
            "6.9.2",
            (grant(), ack()),
            (1_000, renew(lease_ms=1_000), ack()),
            (29_999, TIME),
            (30_000, TIME, gone("GRANT_EXPIRED")),
        ),
        prod(
            "renewals-keep-it",
            "A queue of ten minutes, renewed every 20 s.",
            "6.9.1",
            (grant(), ack()),
            *[(20_000 * n, renew(), ack()) for n in range(1, 31)],
            (600_001, offer(), queue()),
        ),
        no(
            "renewed-too-late",
            "The attempt is gone.",
            "6.9.4",
            (grant(), ack()),
            (30_000, TIME, gone("GRANT_EXPIRED")),
            (30_001, renew(), gone("UNKNOWN_TRANSFER")),
        ),
        no(
            "granted-again-after-expiry",
            "An attempt that has expired does not come back.",
            "6.1.7",
            (grant(), ack()),
            (30_000, TIME, gone("GRANT_EXPIRED")),
            (30_001, grant(), gone("STALE_ATTEMPT")),
        ),
        no(
            "expired-during-the-prefill",
            "The offer has nobody any more.",
            "6.3.9 6.9.5",
            (expect(),),
            (grant(), ack()),
            (30_000, TIME, gone("GRANT_EXPIRED")),
            (31_000, offer(), unsent("GRANT_EXPIRED")),
        ),
        no(
            "expired-while-queued",
            "Nothing of it is posted.",
            "6.9.5 6.5.3",
            (offer(lease_ms=100_000),),
            (grant(), ack(), queue()),
            (30_000, TIME, gone("GRANT_EXPIRED"), unsent("GRANT_EXPIRED")),
            (claim(),),
        ),
        no(
            "expired-in-flight",
            "No unpinning by a timer: the link ends, the transport ends it.",
            "6.9.5 6.3.10",
            *flying,
            (30_000, TIME, stop(), close(), fence(D0)),
            (30_500, ended(end="unquiet"), unsent("GRANT_EXPIRED")),
        ),
        prod(
            "in-flight-and-renewed",
            "A renewed attempt in flight is left alone.",
            "6.9.1",
            *flying,
            (20_000, renew(), ack()),
            (40_000, renew(), ack()),
            (45_000, ended(), sent()),
        ),
        no(
            "cancelled-operation-that-never-ends",
            "Bounded: then the transport ends it.",
            "6.9.10 6.6.4",
            *flying,
            (1_000, recv_cancel(), stop(), ack()),
            (30_999, TIME),
            (31_000, TIME, close(), fence(D0)),
            (31_500, ended(end="unquiet"), unsent("CANCELLED_BY_CONSUMER")),
        ),
        no(
            "withdrawn-operation-that-never-ends",
            "The same for the engine's own withdrawal.",
            "6.9.10 6.3.10",
            *flying,
            (1_000, withdraw(), stop()),
            (30_999, TIME),
            (31_000, TIME, close(), fence(D0)),
            (31_500, ended(end="unquiet"), unsent("PRODUCER_ABORTED")),
        ),
    ]


def offer_cases() -> list[Plain]:
    """Producer: how long an offer waits."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return prod(name, note, rules, *steps, reject=True, **more)

    two = {"links": ((1, D0), (2, D1)), "ranks": (0, 1)}
    return [
        no(
            "offer-expires",
            "Nobody came.",
            "6.9.9",
            (offer(),),
            (29_999, TIME),
            (30_000, TIME, unsent("OFFER_EXPIRED")),
        ),
        no(
            "offer-expires-by-its-own-lease",
            "The engine gave it 2 s.",
            "6.9.9",
            (offer(lease_ms=2_000),),
            (1_999, TIME),
            (2_000, TIME, unsent("OFFER_EXPIRED")),
        ),
        no(
            "late-grant-of-an-expired-offer",
            "The reason is told.",
            "6.8.3",
            (offer(),),
            (30_000, TIME, unsent("OFFER_EXPIRED")),
            (40_000, grant(), gone("OFFER_EXPIRED")),
        ),
        prod(
            "late-grant-that-is-not-remembered",
            "After ten minutes nothing is known of it.",
            "6.8.2",
            (offer(),),
            (30_000, TIME, unsent("OFFER_EXPIRED")),
            (630_000, grant(), ack()),
        ),
        no(
            "one-of-two-ranks-did-not-come",
            "The one that came is told.",
            "6.9.9 6.6.6",
            (offer(),),
            (grant(), ack(), queue()),
            (29_000, renew(), ack()),
            (30_000, TIME, gone("OFFER_EXPIRED"), unsent("OFFER_EXPIRED")),
            (claim(),),
            **two,
        ),
        no(
            "one-of-two-ranks-did-not-come-while-posted",
            "Posted operations keep the pin.",
            "6.9.9 6.3.10",
            (offer(),),
            (grant(), ack(), queue()),
            (claim(), post()),
            (29_000, renew(), ack()),
            (30_000, TIME, stop()),
            (31_000, ended(), gone("OFFER_EXPIRED"), unsent("OFFER_EXPIRED")),
            **two,
        ),
        prod(
            "all-came-in-time",
            "The lease of the offer has no more to say.",
            "6.9.9",
            (offer(),),
            (29_999, grant(), ack(), queue()),
            (claim(), post()),
            (45_000, renew(), ack()),
            (50_000, ended(), sent()),
        ),
        no(
            "expected-and-nothing-else",
            "An announcement alone does not expire.",
            "6.9.9",
            (expect(),),
            (500_000, TIME),
            (withdraw(),),
            (grant(), gone("PRODUCER_ABORTED")),
        ),
        prod(
            "grant-before-an-offer-with-a-short-lease",
            "It was there already.",
            "6.9.9",
            (grant(), ack()),
            (1_000, offer(lease_ms=1), queue()),
            (2_000, claim(), post()),
            (3_000, ended(), sent()),
        ),
    ]


def renewal_cases() -> list[Plain]:
    """Consumer: renewing, and finding a producer silent."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    answered = [
        (2_000 * n, TIME, renewed()) if m == 0 else (2_000 * n + 1, recv_ack())
        for n in range(1, 31)
        for m in (0, 1)
    ]
    unanswered = [(2_000 * n, TIME, renewed()) for n in range(1, 5)]
    silent = (10_000, TIME, close(), lost("PEER_SILENT"), fence(P0))
    return [
        cons(
            "renews",
            "Every 2 s while it waits.",
            "6.9.3",
            *WAITING,
            (1, recv_ack()),
            (1_999, TIME),
            (2_000, TIME, renewed()),
            (2_001, recv_ack()),
            (4_000, TIME, renewed()),
        ),
        cons(
            "renews-for-a-minute",
            "A producer that answers is never silent.",
            "6.9.3 6.9.6",
            *WAITING,
            *answered,
            (60_002, done(), landed(), let_go()),
        ),
        cons(
            "no-renewal-after-the-end",
            "What has landed needs no lease.",
            "6.9.3",
            *WAITING,
            (1_000, done(), landed(), let_go()),
            (60_000, TIME),
        ),
        cons(
            "empty-grant-needs-no-renewal",
            "Its writer is quiet at once.",
            "6.8.6",
            (register(of=[wants(0)]), granted(parts=0), landed(), let_go()),
            (60_000, TIME),
        ),
        no(
            "silent",
            "Nothing came for 10 s after it was asked.",
            "6.9.6 6.9.7",
            *WAITING,
            *unanswered,
            silent,
        ),
        no(
            "silent-and-fenced",
            "Silence is no proof, the fence is.",
            "6.9.7 6.10.3",
            *WAITING,
            *unanswered,
            silent,
            (10_001, fence_result(P0, True), let_go()),
        ),
        no(
            "silent-and-not-fenced",
            "Quarantine, and a try every second.",
            "6.9.7 6.10.5",
            *WAITING,
            *unanswered,
            silent,
            (10_001, fence_result(P0, False)),
            (11_001, TIME, dial(), fence(P0)),
            (11_002, fence_result(P0, True), let_go()),
        ),
        cons(
            "silence-ends-with-any-message",
            "An answer of another transfer counts too.",
            "6.9.6",
            (register(deadline_ms=FOREVER), granted()),
            *unanswered,
            (9_000, recv_gone("NONE", "u")),
            (10_000, TIME, renewed()),
        ),
        no(
            "silent-after-cancel",
            "5 s for the answer to a CANCEL.",
            "6.9.6 6.9.7",
            *WAITING,
            LEFT,
            (2_000, TIME, sent_cancel()),
            (4_000, TIME, sent_cancel()),
            (6_000, TIME, close(), fence(P0)),
            (6_001, fence_result(P0, True), let_go()),
        ),
        no(
            "cancel-is-repeated",
            "Until an answer ends it.",
            "6.6.1",
            *WAITING,
            LEFT,
            (1, recv_ack()),
            (2_000, TIME, sent_cancel()),
            (2_001, recv_ack()),
            (4_000, TIME, sent_cancel()),
            (4_001, recv_ack()),
            (6_000, TIME, sent_cancel()),
            (6_001, recv_cancelled(), let_go()),
            (60_000, TIME),
        ),
        no(
            "one-of-two-silent",
            "The other one is cancelled.",
            "6.9.7 6.4.8",
            (
                register(of=[wants(1), wants(1, P1)], deadline_ms=FOREVER),
                granted(),
                granted(link=2, to=P1),
            ),
            *[
                step
                for n in range(1, 5)
                for step in (
                    (2_000 * n, TIME, renewed(), renewed(link=2, to=P1)),
                    (2_000 * n + 1, recv_ack(link=2, of=P1)),
                )
            ],
            (
                10_000,
                TIME,
                close(1),
                lost("PEER_SILENT"),
                fence(P0),
                sent_cancel(link=2, to=P1),
            ),
            (10_001, recv_cancelled(link=2, of=P1)),
            (10_002, fence_result(P0, True), let_go()),
            links=((1, P0), (2, P1)),
        ),
    ]


def deadline_cases() -> list[Plain]:
    """Consumer: deadlines, quarantine, dialling again."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    short = (register(deadline_ms=1_000), granted())
    retry = (dial(), fence(P0))
    return [
        no(
            "deadline-while-granted",
            "The request fails, the blocks wait.",
            "6.9.8 6.10.3",
            short,
            (999, TIME),
            (1_000, TIME, lost("DEADLINE"), sent_cancel()),
            (1_001, recv_cancelled(), let_go()),
        ),
        no(
            "deadline-while-dialling",
            "No address has left: the blocks return at once.",
            "6.9.8 6.10.2",
            (register(deadline_ms=1_000), dial()),
            (1_000, TIME, lost("DEADLINE"), let_go()),
            links=(),
        ),
        no(
            "deadline-at-the-last-part",
            "One of two is not enough.",
            "6.9.8 6.4.6",
            (register(of=[wants(2)], deadline_ms=1_000), granted(parts=2)),
            (999, done(0)),
            (1_000, TIME, lost("DEADLINE"), sent_cancel()),
            (1_001, done(1), let_go()),
        ),
        cons(
            "landed-just-in-time",
            "One millisecond before.",
            "6.9.8",
            short,
            (999, done(), landed(), let_go()),
            (1_000, TIME),
        ),
        no(
            "deadline-after-a-cancel",
            "A request ends once.",
            "6.4.7",
            short,
            (500, cancel(), lost("CANCELLED_BY_CONSUMER"), sent_cancel()),
            (1_000, TIME),
            (1_001, recv_cancelled(), let_go()),
        ),
        no(
            "fence-is-retried",
            "Every second, for as long as it takes.",
            "6.10.5 8.4.2",
            *WAITING,
            (1_000, *BROKEN),
            (1_001, fence_result(P0, False)),
            (2_001, TIME, *retry),
            (2_002, fence_result(P0, False)),
            (3_002, TIME, fence(P0)),
            (3_003, fence_result(P0, False)),
            (4_003, TIME, fence(P0)),
            (4_004, fence_result(P0, True), let_go()),
        ),
        no(
            "fence-takes-its-time",
            "No renewal, no second fence while the first is open.",
            "6.10.5",
            *WAITING,
            (1_000, *BROKEN),
            (60_000, TIME),
            (60_001, fence_result(P0, True), let_go()),
        ),
        no(
            "quarantine-outlives-every-timer",
            "An hour without proof is no proof.",
            "6.10.3 6.10.5",
            *WAITING,
            (1_000, *BROKEN),
            (1_001, fence_result(P0, False)),
            (2_001, TIME, *retry),
            (3_600_000, TIME),
            (3_600_001, fence_result(P0, True), let_go()),
        ),
        no(
            "retry-leaves-the-new-link-alone",
            "A later try is about links that have ended.",
            "6.10.4 6.10.6",
            *WAITING,
            (1_000, *BROKEN),
            (1_001, fence_result(P0, False)),
            (2_001, TIME, *retry),
            (2_002, link_up(2, P0, dialled=True), sent_cancel(link=2)),
            (2_003, fence_result(P0, False)),
            (2_004, recv_ack(link=2)),
            (3_003, TIME, fence(P0), sent_cancel(link=2)),
            (3_004, recv_cancelled(link=2), let_go()),
        ),
        no(
            "attempt-number-is-remembered",
            "Ten minutes later it still counts.",
            "6.8.1",
            *WAITING,
            (1, done(), landed(), let_go()),
            (599_000, register("d2"), granted(attempt=2)),
        ),
        no(
            "dialled-again-with-a-pause",
            "A peer that loses each link is not dialled at its speed.",
            "6.11.2",
            (register(of=[wants(1), wants(1, P1)], deadline_ms=FOREVER), dial(P1)),
            (10, lost_link(), close()),
            (1_009, TIME),
            (1_010, TIME, dial(P0)),
        ),
    ]


def cases() -> list[Plain]:
    return lease_cases() + offer_cases() + renewal_cases() + deadline_cases()
