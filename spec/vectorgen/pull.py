"""Pull: the consumer reads, the producer lends (section 6.13)."""

from __future__ import annotations

from typing import Any

from vectorgen import words
from vectorgen.words import (
    D0,
    D1,
    P0,
    P1,
    SHUT_DOWN,
    TIME,
    Plain,
    ack,
    cancel,
    claim,
    close,
    ended,
    expect,
    fence,
    fence_result,
    from_p,
    gone,
    grant,
    granted,
    landed,
    lend,
    let_go,
    link_up,
    lost,
    lost_link,
    never,
    not_posted,
    notice,
    offer,
    part,
    post,
    queue,
    recv,
    recv_ack,
    recv_cancel,
    recv_failed,
    recv_gone,
    recv_never,
    recv_offer,
    recv_release,
    register,
    released,
    renew,
    renewed,
    sent,
    sent_cancel,
    stop,
    tables,
    unsent,
    wants,
    withdraw,
)

PULL: dict[str, Any] = {"features": ["PULL"]}
FOREVER = 10_000_000
ASK = {"initiator": "CONSUMER", "tables": []}
"""What a GRANT that asks to read says: no block of the consumer."""


def cons(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.cons(name, note, rules, *steps, flags="timing", **{**PULL, **more})


def prod(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.prod(name, note, rules, *steps, flags="timing", **{**PULL, **more})


def asked(count: int = 1, lease_ms: int = 30_000) -> tuple[tuple, ...]:
    """Registered, granted, acknowledged: the consumer waits for an OFFER."""
    first = register(of=[wants(count)], initiator="CONSUMER", deadline_ms=FOREVER)
    return ((first, granted(parts=count, **ASK)), (recv_ack(lease_ms=lease_ms),))


def reading(lease_ms: int = 30_000) -> tuple[tuple, ...]:
    """One part, and its read is posted."""
    return (*asked(lease_ms=lease_ms), (recv_offer(part()), queue()), (claim(), post()))


END = (landed(), released(True), let_go())
LEFT = lost("CANCELLED_BY_CONSUMER")


def read() -> list[Plain]:
    """Consumer: what counts as read."""
    two_links = {"links": ((1, P0), (2, P1))}
    both = register(of=[wants(1), wants(1, P1)], initiator="CONSUMER", deadline_ms=FOREVER)
    renewing = (2_000, TIME, renewed(serial=1))
    return [
        cons(
            "read", "Offered, read, released.", "6.13.1 6.13.9 6.4.6", *reading(), (ended(), *END)
        ),
        cons(
            "two-parts-in-one-offer",
            "Released when both are read.",
            "6.13.9",
            *asked(2),
            (recv_offer(part(0), part(1)), queue(0), queue(1)),
            (claim(0), post(0)),
            (claim(1), post(1)),
            (ended(1),),
            (ended(0), *END),
        ),
        cons(
            "two-offers",
            "Each names what is new.",
            "6.13.8",
            *asked(2),
            (recv_offer(part(1)), queue(1)),
            (claim(1), post(1)),
            (ended(1),),
            (recv_offer(part(0)), queue(0)),
            (claim(0), post(0)),
            (ended(0), *END),
        ),
        cons(
            "two-producers",
            "One RELEASE to each.",
            "6.13.9",
            (both, granted(**ASK), granted(link=2, to=P1, **ASK)),
            (recv_ack(lease_ms=30_000),),
            (recv_ack(link=2, of=P1, lease_ms=30_000),),
            (recv_offer(part()), queue()),
            (claim(), post()),
            (ended(), released(True)),
            (recv_offer(part(rank=1), link=2, of=P1), queue(link=2, rank=1)),
            (claim(link=2, rank=1), post(link=2, rank=1)),
            (ended(link=2, rank=1), landed(), released(True, link=2, to=P1), let_go()),
            **two_links,
        ),
        cons(
            "nothing-to-read",
            "A GRANT without parts is one of push.",
            "6.13.18 6.8.6",
            (register(of=[wants(0)], initiator="CONSUMER"), granted(parts=0), landed(), let_go()),
        ),
        cons(
            "read-just-in-time",
            "The lease of 3 s, less the margin of 1 s.",
            "6.13.4 6.13.5",
            *reading(3_000),
            (1_999, ended(), *END),
        ),
        cons(
            "renewed-lease",
            "It runs from the RENEW that was answered.",
            "6.13.4 6.9.11",
            *reading(3_500),
            renewing,
            (2_100, recv_ack(serial=1, lease_ms=3_500)),
            (4_000, TIME, renewed(serial=2)),
            (4_499, ended(), *END),
        ),
        cons(
            "serials-go-up",
            "One for each RENEW that was answered.",
            "6.9.11",
            *asked(),
            renewing,
            (2_001, recv_ack(serial=1, lease_ms=30_000)),
            (4_000, TIME, renewed(serial=2)),
            (4_001, recv_ack(serial=2, lease_ms=30_000)),
            (6_000, TIME, renewed(serial=3)),
        ),
        cons(
            "serial-is-repeated",
            "A RENEW behind an unanswered one has its serial.",
            "6.9.11",
            *asked(),
            renewing,
            (4_000, TIME, renewed(serial=1)),
            (4_001, recv_ack(serial=1, lease_ms=30_000)),
            (6_000, TIME, renewed(serial=2)),
        ),
        cons(
            "a-push-beside-a-pull",
            "The initiator is chosen for each attempt.",
            "4.5.2",
            *reading(),
            (register("d2", "u"), granted("u")),
            (words.done(tid="u"), landed("d2", tid="u"), let_go("d2", tid="u")),
            (ended(), *END),
        ),
    ]


def not_read() -> list[Plain]:
    """Consumer: what must not count, and what must not be posted."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    over = lost("GRANT_EXPIRED")
    fault = (lost("PROTOCOL_ERROR"), released(False), let_go())
    renewing = (2_000, TIME, renewed(serial=1))
    unquiet = (ended(end="unquiet"), close(), fence(P0), lost("TRANSPORT_FAILED"))
    cut = (lost_link(), close(), lost("PEER_LOST"))
    return [
        no(
            "read-too-late",
            "The blocks may hold somebody else's prompt by then.",
            "6.13.5 6.13.6",
            *reading(3_000),
            (2_000, TIME, renewed(serial=1)),
            (2_000, ended(), over, released(False), let_go()),
        ),
        no(
            "read-far-too-late",
            "However well it ended.",
            "6.13.6",
            *reading(3_000),
            renewing,
            (3_000, ended(), over, released(False), let_go()),
        ),
        no(
            "answer-that-was-long-on-its-way",
            "The lease runs from the GRANT.",
            "6.13.4",
            (register(initiator="CONSUMER", deadline_ms=FOREVER), granted(**ASK)),
            (1_500, recv_ack(lease_ms=3_000)),
            (1_600, recv_offer(part()), queue()),
            (1_700, claim(), post()),
            (2_000, TIME, renewed(serial=1)),
            (2_001, ended(), over, released(False), let_go()),
        ),
        no(
            "answer-to-a-repeated-renewal",
            "The lease runs from the first with that serial.",
            "6.13.4",
            *reading(3_500),
            renewing,
            (4_000, TIME, renewed(serial=1)),
            (4_001, recv_ack(serial=1, lease_ms=3_500)),
            (4_500, ended(), over, released(False), let_go()),
        ),
        no(
            "answer-with-another-serial",
            "It lengthens nothing.",
            "6.13.4 6.9.12",
            *reading(3_000),
            (1_000, recv_ack(serial=7, lease_ms=30_000)),
            renewing,
            (2_001, ended(), over, released(False), let_go()),
        ),
        no(
            "answered-twice",
            "The second answer lengthens nothing.",
            "6.13.4",
            *reading(3_000),
            (1_900, recv_ack(lease_ms=30_000)),
            renewing,
            (2_001, ended(), over, released(False), let_go()),
        ),
        no(
            "posted-too-late",
            "Checked at the moment of posting.",
            "6.13.7",
            *asked(lease_ms=3_000),
            (1_000, recv_offer(part()), queue()),
            (2_000, TIME, renewed(serial=1)),
            (2_000, claim(), over, released(False), let_go()),
        ),
        no(
            "posted-after-a-cancel",
            "Checked at the moment of posting.",
            "6.13.7 6.13.9",
            *asked(),
            (recv_offer(part()), queue()),
            (cancel(), LEFT, released(False), let_go()),
            (claim(),),
        ),
        no(
            "cancelled-while-reading",
            "RELEASE comes when the read has ended, and no CANCEL.",
            "6.13.9 6.13.14",
            *reading(),
            (cancel(), LEFT, stop()),
            (ended(end="quiet"), released(False), let_go()),
        ),
        no(
            "cancelled-while-reading-and-read",
            "It is released as not landed.",
            "6.13.9 6.4.7",
            *reading(),
            (cancel(), LEFT, stop()),
            (ended(), released(False), let_go()),
        ),
        no(
            "cancelled-before-the-offer",
            "Nothing was begun: released at once.",
            "6.13.9",
            *asked(),
            (cancel(), LEFT, released(False), let_go()),
        ),
        no(
            "offer-after-the-release",
            "Nothing is read.",
            "5.2.12 6.13.8",
            *asked(),
            (cancel(), LEFT, released(False), let_go()),
            (recv_offer(part()),),
        ),
        no(
            "part-offered-twice",
            "It is read once.",
            "6.13.8 5.2.13",
            *reading(),
            (recv_offer(part()),),
            (ended(), *END),
        ),
        no(
            "part-that-nobody-asked-for",
            "A fault, not progress.",
            "6.4.5 6.13.8",
            *asked(),
            (recv_offer(part(7)), lost("PARTS_MISMATCH"), released(False), let_go()),
        ),
        no(
            "wrong-part-before-a-right-one",
            "Nothing more of the OFFER is read.",
            "6.4.5 6.13.8",
            *asked(),
            (
                recv_offer(part(7), part(0)),
                lost("PARTS_MISMATCH"),
                released(False),
                let_go(),
            ),
        ),
        no(
            "link-breaks-before-the-grant",
            "It is dialled again, with a pause.",
            "6.11.2",
            (
                register(of=[wants(1), wants(1, P1)], initiator="CONSUMER", deadline_ms=FOREVER),
                words.dial(P1),
            ),
            (10, lost_link(), close()),
            (1_010, TIME, words.dial(P0)),
            (1_011, words.unreachable(P0), lost("UNREACHABLE"), let_go()),
        ),
        no(
            "read-not-proven-quiet-and-a-slow-fence",
            "It waits for the fence, however long that takes.",
            "6.13.14 6.10.5",
            *reading(),
            unquiet,
            (60_000, TIME),
            (60_001, fence_result(P0, True), let_go()),
        ),
        no(
            "offer-of-another-attempt",
            "Nothing is read.",
            "5.2.12 6.13.8",
            *asked(),
            (recv_offer(part(), attempt=2),),
        ),
        no(
            "withdrawn-while-reading",
            "The request fails; RELEASE when the read has ended.",
            "6.13.11",
            *reading(),
            (recv_gone("PRODUCER_ABORTED"), lost("PRODUCER_ABORTED"), stop()),
            (ended(), released(False), let_go()),
        ),
        no(
            "gone-before-the-offer",
            "Nothing was read.",
            "6.13.11",
            *asked(),
            (recv_gone("OFFER_EXPIRED"), lost("OFFER_EXPIRED"), released(False), let_go()),
        ),
        no(
            "read-failed-quietly",
            "The request fails.",
            "6.4.8 6.13.9",
            *reading(),
            (ended(end="quiet"), lost("TRANSPORT_FAILED"), released(False), let_go()),
        ),
        no(
            "one-of-two-reads-failed",
            "The other one ends first.",
            "6.13.9 6.13.14",
            *asked(2),
            (recv_offer(part(0), part(1)), queue(0), queue(1)),
            (claim(0), post(0)),
            (claim(1), post(1)),
            (ended(0, "quiet"), lost("TRANSPORT_FAILED"), stop(1)),
            (ended(1), released(False), let_go()),
        ),
        no(
            "read-that-could-not-be-posted",
            "The request fails.",
            "6.4.8",
            *reading(),
            (not_posted(), lost("TRANSPORT_FAILED"), released(False), let_go()),
        ),
        no(
            "never-offered",
            "The producer has not got the tokens.",
            "6.14.4",
            *asked(),
            (
                recv_never(reason="TOKENS_MISSING"),
                lost("TOKENS_MISSING"),
                released(False),
                let_go(),
            ),
        ),
        no(
            "read-not-proven-quiet",
            "Only an own fence frees the blocks.",
            "6.13.14",
            *reading(),
            unquiet,
            (fence_result(P0, True), let_go()),
        ),
        no(
            "read-not-proven-quiet-and-not-fenced",
            "Quarantine, and another try.",
            "6.13.14 6.10.5",
            *reading(),
            unquiet,
            (1, fence_result(P0, False)),
            (1_001, TIME, fence(P0)),
            (1_002, fence_result(P0, True), let_go()),
        ),
        no(
            "gone-is-no-proof-of-an-own-read",
            "The producer knows nothing of it.",
            "6.13.14",
            *reading(),
            unquiet,
            (link_up(2, P0, dialled=True, features=["PULL"]),),
            (recv_gone("UNKNOWN_TRANSFER", link=2),),
            (fence_result(P0, True), let_go()),
        ),
        no(
            "link-lost-while-reading",
            "The read is fenced, and has to end.",
            "6.11.1 6.13.14",
            *reading(),
            (*cut, stop(), fence(P0)),
            (fence_result(P0, True),),
            (ended(end="quiet"), let_go()),
        ),
        no(
            "link-lost-before-the-offer",
            "Nothing reads, nobody writes.",
            "6.11.1",
            *asked(),
            (*cut, let_go()),
        ),
        no(
            "read-that-never-ends",
            "Bounded: then the link ends and the peer is fenced.",
            "6.13.15",
            *reading(),
            (cancel(), LEFT, stop()),
            (29_999, TIME),
            (30_000, TIME, close(), fence(P0)),
            (
                30_001,
                fence_result(P0, True),
            ),
            (30_002, ended(end="quiet"), let_go()),
        ),
        no(
            "silent-producer",
            "As in push.",
            "6.9.6 6.9.7",
            *reading(),
            *[(2_000 * n, TIME, renewed(serial=1)) for n in range(1, 5)],
            (10_000, TIME, close(), lost("PEER_SILENT"), stop(), fence(P0)),
            (10_001, ended(end="quiet"), let_go()),
        ),
        no(
            "deadline-while-reading",
            "The read goes on until it has ended.",
            "6.9.8 6.13.14",
            (register(initiator="CONSUMER", deadline_ms=1_000), granted(**ASK)),
            (recv_ack(lease_ms=30_000),),
            (recv_offer(part()), queue()),
            (claim(), post()),
            (1_000, TIME, lost("DEADLINE"), stop()),
            (1_001, ended(), released(False), let_go()),
        ),
        no(
            "done-from-the-producer",
            "Whoever reads knows himself what has landed.",
            "6.13.16",
            *asked(),
            (words.done(), *fault),
        ),
        no(
            "failed-from-the-producer",
            "The same for FAILED.",
            "6.13.16",
            *asked(),
            (recv_failed(quiet=True), *fault),
        ),
        no(
            "cancelled-from-the-producer",
            "It proves nothing of an own read.",
            "6.13.16",
            *reading(),
            (recv(from_p("CANCELLED", "t", 1)), lost("PROTOCOL_ERROR"), stop()),
            (ended(end="quiet"), released(False), let_go()),
        ),
        no(
            "offer-in-push",
            "Nobody reads there.",
            "6.13.16",
            (register(), granted()),
            (recv_offer(part()), lost("PROTOCOL_ERROR"), sent_cancel()),
        ),
        no(
            "pull-without-the-bit",
            "Not every producer can be read.",
            "4.5.1 4.5.4",
            (register(initiator="CONSUMER"), lost("UNSUPPORTED"), let_go()),
            features=[],
        ),
        no(
            "offer-without-the-bit",
            "It ends the link.",
            "4.5.4",
            (register(), granted()),
            (recv_offer(part()), close(), lost("PROTOCOL_ERROR"), fence(P0)),
            features=[],
        ),
        no(
            "done-while-reading",
            "A notice is no progress in pull.",
            "6.13.16",
            *reading(),
            (notice(from_p("DONE", "t", 1, part=part())), lost("PROTOCOL_ERROR"), stop()),
            (ended(), released(False), let_go()),
        ),
        no(
            "shut-down-while-reading",
            "The read has to end.",
            "6.12.1 6.13.9",
            *reading(),
            (SHUT_DOWN, lost("SHUTDOWN"), stop()),
            (ended(end="quiet"), released(False), let_go()),
        ),
    ]


def lent() -> list[Plain]:
    """Producer: loans that end well."""
    two = {"links": ((1, D0), (2, D1)), "ranks": (0, 1)}
    ask = grant(**ASK)
    held = offer(tables=tables(1))
    return [
        prod(
            "lent-grant-first",
            "Acknowledged, then offered when it is final.",
            "6.13.2",
            (ask, ack(lease_ms=30_000)),
            (held, lend(part())),
            (recv_release(True), sent()),
        ),
        prod(
            "lent-offer-first",
            "Acknowledged before it is offered.",
            "6.13.2",
            (held,),
            (ask, ack(lease_ms=30_000), lend(part())),
            (recv_release(True), sent()),
        ),
        prod(
            "lent-two-parts",
            "One OFFER names both.",
            "6.13.2",
            (held,),
            (grant(parts=2, **ASK), ack(), lend(part(0), part(1))),
            (recv_release(True), sent()),
        ),
        prod(
            "lent-to-two-ranks",
            "Sent when both have released.",
            "6.13.13",
            (held,),
            (ask, ack(), lend(part())),
            (grant(of=D1, link=2, **ASK), ack(link=2, to=D1), lend(part(), link=2, to=D1)),
            (recv_release(True),),
            (recv_release(True, link=2, of=D1), sent()),
            **two,
        ),
        prod(
            "one-rank-reads-one-is-written",
            "Each attempt has its own initiator.",
            "6.13.13",
            (held,),
            (ask, ack(), lend(part())),
            (grant(of=D1, link=2), ack(link=2, to=D1), queue(link=2)),
            (claim(link=2), post(link=2)),
            (ended(link=2),),
            (recv_release(True), sent()),
            **two,
        ),
        prod(
            "lent-and-renewed",
            "Every answer says how long it is held.",
            "6.9.12",
            (held,),
            (ask, ack(lease_ms=30_000), lend(part())),
            (20_000, renew(serial=1), ack(serial=1, lease_ms=30_000)),
            (40_000, renew(serial=2, lease_ms=10_000), ack(serial=2, lease_ms=10_000)),
            (40_001, recv_release(True), sent()),
        ),
        prod(
            "lent-and-granted-again",
            "Answered as the first, offered once.",
            "6.1.6 6.13.2",
            (held,),
            (ask, ack(lease_ms=30_000), lend(part())),
            (100, ask, ack(lease_ms=29_900)),
            (recv_release(True), sent()),
        ),
        prod(
            "released-over-a-new-link",
            "The same life may come back to say it.",
            "6.13.3",
            (held,),
            (ask, ack(), lend(part())),
            (lost_link(), close()),
            (link_up(2, D0, dialled=False, features=["PULL"]),),
            (recv_release(True, link=2), sent()),
        ),
        prod(
            "nothing-is-read",
            "A GRANT without parts is served as in push.",
            "6.13.18",
            (held,),
            (grant(parts=0), ack(), sent()),
        ),
    ]


def not_lent() -> list[Plain]:
    """Producer: loans that end otherwise, and what must not end them."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return prod(name, note, rules, *steps, reject=True, **more)

    ask = grant(**ASK)
    held = offer(tables=tables(1))
    on_loan = ((held,), (ask, ack(lease_ms=30_000), lend(part())))
    return [
        no(
            "released-unread",
            "The consumer has stopped.",
            "6.13.13",
            *on_loan,
            (recv_release(False), unsent("CANCELLED_BY_CONSUMER")),
        ),
        no(
            "released-before-the-offer",
            "The offer that comes has nobody.",
            "6.3.9",
            (expect(),),
            (ask, ack()),
            (recv_release(False),),
            (held, unsent("CANCELLED_BY_CONSUMER")),
        ),
        no(
            "landed-without-an-offer",
            "What was not offered cannot have been read.",
            "6.13.13",
            (expect(),),
            (ask, ack()),
            (recv_release(True),),
            (held, unsent("CANCELLED_BY_CONSUMER")),
        ),
        no(
            "withdrawn-while-lent",
            "The blocks stay until RELEASE.",
            "6.13.3 6.13.10",
            *on_loan,
            (withdraw(), gone("PRODUCER_ABORTED")),
            (10_000, TIME),
            (10_001, recv_release(False), unsent("PRODUCER_ABORTED")),
        ),
        no(
            "withdrawn-while-lent-and-silent",
            "Or until the end of the lease.",
            "6.13.3",
            *on_loan,
            (1_000, withdraw(), gone("PRODUCER_ABORTED")),
            (29_999, TIME),
            (30_000, TIME, unsent("PRODUCER_ABORTED")),
        ),
        no(
            "recalled-and-renewed",
            "What is called back is not lengthened.",
            "6.13.12",
            *on_loan,
            (1_000, withdraw(), gone("PRODUCER_ABORTED")),
            (20_000, renew(serial=1), gone("PRODUCER_ABORTED")),
            (30_000, TIME, unsent("PRODUCER_ABORTED")),
        ),
        no(
            "lease-over-while-lent",
            "By the producer's own clock.",
            "6.13.3 6.13.10",
            *on_loan,
            (29_999, TIME),
            (30_000, TIME, gone("GRANT_EXPIRED"), unsent("GRANT_EXPIRED")),
        ),
        no(
            "released-too-late",
            "The source has ended already.",
            "6.13.3 5.2.12",
            *on_loan,
            (30_000, TIME, gone("GRANT_EXPIRED"), unsent("GRANT_EXPIRED")),
            (30_001, recv_release(True)),
        ),
        no(
            "link-lost-while-lent",
            "It may be reading still.",
            "6.13.3",
            *on_loan,
            (1_000, lost_link(), close()),
            (29_999, TIME),
            (30_000, TIME, unsent("PEER_LOST")),
        ),
        no(
            "link-lost-before-it-was-lent",
            "Nothing can have been read.",
            "6.3.9",
            (expect(),),
            (ask, ack()),
            (lost_link(), close()),
            (held, unsent("PEER_LOST")),
        ),
        no(
            "grant-expires-before-the-offer",
            "As in push.",
            "6.13.10 6.9.1",
            (ask, ack()),
            (30_000, TIME, gone("GRANT_EXPIRED")),
        ),
        no(
            "newer-attempt-while-lent",
            "The older one is called back, and keeps its pin.",
            "6.1.9 6.13.3 6.13.10",
            *on_loan,
            (
                grant(attempt=2, **ASK),
                gone("STALE_ATTEMPT"),
                ack(attempt=2),
                lend(part(), attempt=2),
            ),
            (recv_release(True, attempt=2),),
            (recv_release(False), sent()),
        ),
        no(
            "other-digest",
            "Refused as in push.",
            "6.3.2 6.3.5",
            (offer(digest="aa", tables=tables(1)),),
            (grant(digest="bb", **ASK), ack(), never(0, "DIGEST_MISMATCH")),
        ),
        no(
            "tokens-missing",
            "Refused as in push.",
            "6.3.4",
            (offer(tokens=15, tables=tables(1)),),
            (ask, ack(), never(0, "TOKENS_MISSING")),
        ),
        no(
            "cancel-of-a-loan",
            "CANCEL ends what is written, never what is read.",
            "6.13.17",
            *on_loan,
            (recv_cancel(), close()),
            (30_000, TIME, unsent("PROTOCOL_ERROR")),
        ),
        no(
            "release-of-a-push",
            "RELEASE ends what is read, never what is written.",
            "6.13.17",
            (offer(),),
            (grant(), ack(), queue()),
            (recv_release(True), close(), unsent("PROTOCOL_ERROR")),
        ),
        no(
            "release-of-nothing",
            "Nothing is known of it, nothing is said.",
            "5.2.12",
            (recv_release(True, "x"),),
        ),
        no(
            "asked-without-the-bit",
            "Refused with UNSUPPORTED.",
            "4.5.4",
            (ask, gone("UNSUPPORTED")),
            features=[],
        ),
        no(
            "release-without-the-bit",
            "It ends the link.",
            "4.5.4",
            (recv_release(True), close()),
            features=[],
        ),
        no(
            "offer-to-a-producer",
            "OFFER goes to the consumer.",
            "5.2.11",
            (recv(words.from_d("OFFER", "t", 1, parts=[part()], tables=[])), close()),
        ),
        no(
            "shut-down-while-lent",
            "Loans end by RELEASE or by their lease.",
            "6.12.4 6.13.3",
            *on_loan,
            (SHUT_DOWN, gone("SHUTDOWN")),
            (29_999, TIME),
            (30_000, TIME, unsent("SHUTDOWN")),
        ),
    ]


def cases() -> list[Plain]:
    return read() + not_read() + lent() + not_lent()
