"""Completion: how parts end, and what a request and a source make of it (6.4 to 6.7, 6.10)."""

from __future__ import annotations

from vectorgen.words import (
    D0,
    D1,
    LATER_D0,
    LATER_P0,
    P0,
    P1,
    TIME,
    Plain,
    ack,
    cancel,
    cancelled,
    claim,
    close,
    cons,
    done,
    ended,
    failed,
    fence,
    fence_result,
    from_p,
    gone,
    grant,
    granted,
    landed,
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
    prod,
    queue,
    recv,
    recv_ack,
    recv_cancel,
    recv_cancelled,
    recv_failed,
    recv_gone,
    recv_never,
    register,
    renew,
    sent,
    sent_cancel,
    stop,
    unsent,
    wants,
    withdraw,
)

TWO_LINKS = {"links": ((1, P0), (2, P1))}
ONE = ((register(), granted()),)
PAIR = ((register(of=[wants(2)]), granted(parts=2)),)
"""Registered and granted, with one part and with two."""
SPLIT = ((register(of=[wants(1), wants(1, P1)]), granted(), granted(link=2, to=P1)),)
"""Two producers, one part each."""
END = (landed(), let_go())


def landed_cases() -> list[Plain]:
    """Consumer: transfers that land."""
    three = ((register(of=[wants(3)]), granted(parts=3)),)
    return [
        cons("one-part", "One part, done.", "6.4.6", *ONE, (done(), *END)),
        cons(
            "two-parts", "In the order of the grant.", "6.4.6", *PAIR, (done(0),), (done(1), *END)
        ),
        cons(
            "two-parts-reversed", "Any order will do.", "6.4.6", *PAIR, (done(1),), (done(0), *END)
        ),
        cons(
            "three-parts",
            "Done is when the last has come.",
            "6.4.6",
            *three,
            (done(2),),
            (done(0),),
            (done(1), *END),
        ),
        cons(
            "part-twice-before-the-end",
            "Twice is once.",
            "6.4.4 5.2.13",
            *PAIR,
            (done(0),),
            (done(0),),
            (done(1), *END),
        ),
        cons(
            "part-many-times",
            "A thousand times is once.",
            "6.4.4 5.2.13",
            *PAIR,
            *[(done(1),)] * 5,
            (done(0), *END),
        ),
        cons(
            "part-again-after-the-end",
            "The transfer lands once.",
            "6.4.4 5.2.12",
            *ONE,
            (done(), *END),
            (done(),),
            (done(),),
        ),
        cons(
            "two-producers",
            "Parts of both.",
            "6.4.6",
            *SPLIT,
            (done(),),
            (done(link=2, of=P1), *END),
            **TWO_LINKS,
        ),
        cons(
            "two-producers-reversed",
            "Parts of both, the other way round.",
            "6.4.6",
            *SPLIT,
            (done(link=2, of=P1),),
            (done(), *END),
            **TWO_LINKS,
        ),
        cons(
            "done-before-the-ack",
            "No order between transport and control connection.",
            "3.2.5",
            *ONE,
            (done(), *END),
            (recv_ack(),),
        ),
        cons(
            "gone-after-done",
            "It changes nothing any more.",
            "5.2.12 6.4.7",
            *ONE,
            (done(), *END),
            (recv_gone("OFFER_EXPIRED"),),
        ),
        cons(
            "failed-after-done",
            "The first end of a part counts.",
            "6.4.4",
            *PAIR,
            (done(0),),
            (recv_failed(0, quiet=False),),
            (done(1), *END),
        ),
        cons(
            "never-posted-after-done",
            "The first end of a part counts.",
            "6.4.4",
            *PAIR,
            (done(0),),
            (recv_never(0, reason="TRANSPORT_FAILED"),),
            (done(1), *END),
        ),
        cons(
            "cancelled-after-the-end",
            "The engine may let go late.",
            "6.4.7",
            *ONE,
            (done(), *END),
            (cancel(),),
        ),
        cons(
            "link-lost-after-the-end",
            "It is nobody's loss.",
            "6.11.1",
            *ONE,
            (done(), *END),
            (lost_link(), close()),
        ),
        cons(
            "done-of-the-next-attempt",
            "Each attempt counts its own parts.",
            "3.3.3",
            *ONE,
            (done(), *END),
            (register("d2"), granted(attempt=2)),
            (done(),),
            (done(attempt=2), landed("d2", 2), let_go("d2", 2)),
        ),
    ]


def fail_cases() -> list[Plain]:
    """Consumer: parts that end otherwise."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: object) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    failed_ = lost("TRANSPORT_FAILED")
    drained = (recv_cancelled(), let_go())
    return [
        no(
            "failed-quiet",
            "The only part has failed, quietly: nothing to wait for.",
            "6.4.6 6.10.2",
            *ONE,
            (recv_failed(quiet=True), failed_, sent_cancel(), let_go()),
        ),
        no(
            "failed-unquiet",
            "The blocks wait for a positive fact.",
            "6.7.5 6.10.1",
            *ONE,
            (recv_failed(quiet=False), failed_, sent_cancel()),
        ),
        no(
            "failed-unquiet-then-cancelled",
            "The word of the producer is a fact.",
            "6.6.7 6.10.2",
            *ONE,
            (recv_failed(quiet=False), failed_, sent_cancel()),
            drained,
        ),
        no(
            "never-posted",
            "Not one byte was handed over.",
            "6.7.1 6.10.2",
            *ONE,
            (recv_never(reason="OUT_OF_BOUNDS"), lost("OUT_OF_BOUNDS"), sent_cancel(), let_go()),
        ),
        no(
            "one-of-two-failed",
            "The other may still be in flight.",
            "6.4.8 6.10.1",
            *PAIR,
            (recv_failed(0, quiet=True), failed_, sent_cancel()),
            (done(1), let_go()),
        ),
        no(
            "done-then-failed",
            "One part done is no transfer landed.",
            "6.4.6",
            *PAIR,
            (done(0),),
            (recv_failed(1, quiet=True), failed_, sent_cancel(), let_go()),
        ),
        no(
            "done-then-never-posted",
            "One part done is no transfer landed.",
            "6.4.6",
            *PAIR,
            (done(0),),
            (recv_never(1, reason="TRANSPORT_FAILED"), failed_, sent_cancel(), let_go()),
        ),
        no(
            "failed-then-done",
            "Failure is final.",
            "6.4.4 6.4.7",
            *ONE,
            (recv_failed(quiet=False), failed_, sent_cancel()),
            (done(),),
            drained,
        ),
        no(
            "never-posted-then-done",
            "Failure is final.",
            "6.4.4 6.4.7",
            *PAIR,
            (recv_never(0, reason="TRANSPORT_FAILED"), failed_, sent_cancel()),
            (done(0),),
            (done(1), let_go()),
        ),
        no(
            "failed-for-an-unregistered-reason",
            "Any reason fails.",
            "5.2.6",
            *ONE,
            (
                recv_failed(quiet=True, reason="UNREGISTERED"),
                lost("UNREGISTERED"),
                sent_cancel(),
                let_go(),
            ),
        ),
        no(
            "one-producer-failed",
            "The other one is cancelled.",
            "6.4.8",
            *SPLIT,
            (recv_failed(quiet=True), failed_, sent_cancel(), sent_cancel(link=2, to=P1)),
            (recv_cancelled(link=2, of=P1), let_go()),
            **TWO_LINKS,
        ),
        no(
            "one-producer-failed-one-done",
            "Nothing is left to cancel at the other.",
            "6.4.6",
            *SPLIT,
            (done(link=2, of=P1),),
            (recv_failed(quiet=True), failed_, sent_cancel(), let_go()),
            **TWO_LINKS,
        ),
        no(
            "cancelled-unasked",
            "The producer has let go of a request that waits.",
            "6.6.7",
            *ONE,
            (recv_cancelled(), lost("PRODUCER_ABORTED"), let_go()),
        ),
        no(
            "gone-after-one-of-two",
            "The set is not complete.",
            "6.4.6 6.6.7",
            *PAIR,
            (done(0),),
            (recv_gone("PRODUCER_ABORTED"), lost("PRODUCER_ABORTED"), let_go()),
        ),
        no(
            "ack-proves-nothing",
            "GRANT_ACK is no end.",
            "6.7.7",
            *ONE,
            (recv_failed(quiet=False), failed_, sent_cancel()),
            (recv_ack(),),
            (recv_ack(),),
        ),
    ]


def foreign_cases() -> list[Plain]:
    """Consumer: notices that name something else."""

    def wrong(name: str, note: str, *first: Plain) -> Plain:
        cancels = (lost("PARTS_MISMATCH"), sent_cancel())
        return cons(
            name, note, "6.4.5", *ONE, (*first, *cancels), (recv_cancelled(), let_go()), reject=True
        )

    def late(name: str, note: str, rules: str, first: Plain, **more: object) -> Plain:
        return cons(name, note, rules, *ONE, (first,), (done(), *END), reject=True, **more)

    return [
        wrong("part-of-another-group", "Group 1 was not granted.", done(part=[0, 1, 0, 16])),
        wrong(
            "part-of-another-rank", "Rank 1 was not granted on this edge.", done(part=[1, 0, 0, 16])
        ),
        wrong("part-starts-later", "One token less is another part.", done(part=[0, 0, 1, 16])),
        wrong("part-ends-sooner", "One token less is another part.", done(part=[0, 0, 0, 15])),
        wrong("part-ends-later", "One token more is another part.", done(part=[0, 0, 0, 17])),
        wrong(
            "failed-part-of-another-group",
            "An unknown part is a fault however it ended.",
            recv(from_p("FAILED", "t", 1, reason="NONE", quiet=True, part=[0, 9, 0, 16])),
        ),
        wrong(
            "never-posted-part-of-another-group",
            "The same for NEVER_POSTED.",
            recv(from_p("NEVER_POSTED", "t", 1, reason="NONE", part=[0, 9, 0, 16])),
        ),
        cons(
            "part-of-the-other-producer",
            "Each producer ends its own parts only.",
            "6.4.5",
            *SPLIT,
            (
                notice(from_p("DONE", "t", 1, P1, part=part(0, 0)), 2),
                lost("PARTS_MISMATCH"),
                sent_cancel(),
                sent_cancel(link=2, to=P1),
            ),
            (recv_cancelled(),),
            (recv_cancelled(link=2, of=P1), let_go()),
            reject=True,
            **TWO_LINKS,
        ),
        late("done-of-another-attempt", "Attempt 2 does not exist.", "5.2.12", done(attempt=2)),
        late("done-of-another-transfer", "Nothing is known of it.", "5.2.12", done(tid="u")),
        late("done-of-a-longer-name", "A prefix does not match.", "3.3.2", done(tid="t-1")),
        late(
            "done-from-an-older-life",
            "Its sender is not at the other end.",
            "5.2.10",
            done(of={**P0, "incarnation": 9}),
        ),
        late(
            "done-for-an-older-life",
            "It is meant for another life of this consumer.",
            "5.2.10",
            notice(
                {
                    **from_p("DONE", "t", 1, part=part()),
                    "header": {"transfer_id": "t", "attempt": 1, "sender": 1, "receiver": 999},
                }
            ),
        ),
        late(
            "done-from-a-producer-without-an-edge",
            "It was granted nothing.",
            "5.2.12",
            done(link=2, of=P1),
            **TWO_LINKS,
        ),
        cons(
            "done-before-the-grant",
            "Nothing was granted yet.",
            "5.2.12",
            (
                register(
                    of=[wants(1), wants(1, P1)],
                ),
                {"effect": "dial", "peer": {"engine_id": "eng-P", "rank": 1}},
            ),
            (done(),),
            (link_up(2, P1, dialled=True), granted(), granted(link=2, to=P1)),
            (done(link=2, of=P1),),
            (done(), *END),
            reject=True,
        ),
    ]


def let_go_cases() -> list[Plain]:
    """Consumer: when blocks may return to the engine."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: object) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    left = (cancel(), lost("CANCELLED_BY_CONSUMER"), sent_cancel())
    broken = (lost_link(), close(), lost("PEER_LOST"), fence(P0))
    return [
        no(
            "cancelled-then-drained",
            "The blocks wait for CANCELLED.",
            "6.6.1 6.10.1",
            *ONE,
            left,
            (recv_ack(),),
            (recv_cancelled(), let_go()),
        ),
        no(
            "cancelled-then-gone",
            "GONE is as good.",
            "6.6.7",
            *ONE,
            left,
            (recv_gone("UNKNOWN_TRANSFER"), let_go()),
        ),
        no(
            "cancelled-then-all-done",
            "All parts ended: nobody writes any more.",
            "6.4.7 6.10.2",
            *PAIR,
            left,
            (done(0),),
            (done(1), let_go()),
        ),
        no(
            "cancelled-then-one-of-two-done",
            "One part is still out.",
            "6.10.2",
            *PAIR,
            left,
            (done(0),),
            (recv_failed(1, quiet=False),),
        ),
        no(
            "cancelled-twice",
            "The second changes nothing.",
            "6.4.7",
            *ONE,
            left,
            (cancel(),),
            (recv_cancelled(), let_go()),
        ),
        no(
            "cancelled-at-two-producers",
            "Both have to let go.",
            "6.10.1 6.6.1",
            *SPLIT,
            (cancel(), lost("CANCELLED_BY_CONSUMER"), sent_cancel(), sent_cancel(link=2, to=P1)),
            (recv_cancelled(),),
            (recv_cancelled(link=2, of=P1), let_go()),
            **TWO_LINKS,
        ),
        no(
            "cancelled-answer-of-another-attempt",
            "It proves nothing of this one.",
            "5.2.12",
            *ONE,
            left,
            (recv_cancelled(attempt=2),),
            (recv_cancelled(), let_go()),
        ),
        no(
            "cancelled-answer-of-another-life",
            "It proves nothing of this one.",
            "5.2.10 3.3.4",
            *ONE,
            left,
            (recv_cancelled(of={**P0, "incarnation": 9}),),
        ),
        no(
            "link-lost",
            "The request fails at once, the blocks wait.",
            "6.11.1 6.10.1",
            *ONE,
            broken,
        ),
        no(
            "link-lost-and-fenced",
            "A fence is a fact.",
            "6.10.2",
            *ONE,
            broken,
            (fence_result(P0, True), let_go()),
        ),
        no(
            "link-lost-and-not-fenced",
            "Quarantine.",
            "6.10.5",
            *ONE,
            broken,
            (fence_result(P0, False),),
        ),
        no(
            "fence-of-another-life",
            "It proves nothing of this one.",
            "3.3.4",
            *ONE,
            broken,
            (fence_result(LATER_P0, True),),
            (fence_result(P0, True), let_go()),
        ),
        no(
            "fence-of-another-producer",
            "It proves nothing of this one.",
            "6.10.2",
            *SPLIT,
            (lost_link(1), close(1), lost("PEER_LOST"), fence(P0), sent_cancel(link=2, to=P1)),
            (fence_result(P0, True),),
            (recv_cancelled(link=2, of=P1), let_go()),
            **TWO_LINKS,
        ),
        no(
            "back-again-and-drained",
            "CANCEL over the new link; CANCELLED is a fact.",
            "6.11.4 6.10.6",
            *ONE,
            broken,
            (fence_result(P0, False),),
            (link_up(2, P0, dialled=True), sent_cancel(link=2)),
            (recv_cancelled(link=2), let_go()),
        ),
        no(
            "back-again-but-unproven",
            "GRANT_ACK is no proof.",
            "6.7.7 6.11.4",
            *ONE,
            broken,
            (fence_result(P0, False),),
            (link_up(2, P0, dialled=True), sent_cancel(link=2)),
            (recv_ack(link=2),),
        ),
        no(
            "another-life-comes-back",
            "A new life does not prove that the old one is quiet.",
            "6.11.5 3.3.4",
            *ONE,
            broken,
            (link_up(2, LATER_P0, dialled=True),),
            (recv_cancelled(link=2, of=LATER_P0),),
            (fence_result(P0, True), let_go()),
        ),
        no(
            "another-life-comes-and-goes",
            "Its link is not that of the older life.",
            "6.11.5 3.3.4",
            *ONE,
            broken,
            (link_up(2, LATER_P0, dialled=True),),
            (lost_link(2), close(2)),
            (fence_result(P0, True), let_go()),
        ),
        no(
            "quarantine-does-not-stop-the-next",
            "Another transfer of the same peer lands.",
            "6.10.4",
            *ONE,
            broken,
            (fence_result(P0, False),),
            (link_up(2, P0, dialled=True), sent_cancel(link=2)),
            (register("d2", "u"), granted("u", link=2)),
            (done(tid="u", link=2), landed("d2", tid="u"), let_go("d2", tid="u")),
        ),
        no(
            "quarantined-number-stays-taken",
            "The same name goes on with the next attempt.",
            "6.8.1 3.3.3",
            *ONE,
            broken,
            (fence_result(P0, False),),
            (link_up(2, P0, dialled=True), sent_cancel(link=2)),
            (register("d2"), granted(attempt=2, link=2)),
        ),
        no(
            "unquiet-and-the-link-ends",
            "The producer ends the link; the consumer fences.",
            "6.7.4 6.7.5",
            *ONE,
            (recv_failed(quiet=False), lost("TRANSPORT_FAILED"), sent_cancel()),
            (lost_link(), close(), fence(P0)),
            (fence_result(P0, True), let_go()),
        ),
        no(
            "done-over-a-link-that-has-ended",
            "It may be dropped; the fence decides.",
            "6.11.6",
            *ONE,
            broken,
            (done(),),
            (fence_result(P0, True), let_go()),
        ),
        no(
            "deadline",
            "The request fails, the writer goes on until it is quiet.",
            "6.9.8 6.10.1",
            (register(deadline_ms=1500), granted()),
            (1500, TIME, lost("DEADLINE"), sent_cancel()),
            (recv_cancelled(), let_go()),
        ),
        no(
            "deadline-then-all-done",
            "Late is lost.",
            "6.4.7",
            (register(deadline_ms=1500), granted()),
            (1500, TIME, lost("DEADLINE"), sent_cancel()),
            (done(), let_go()),
        ),
    ]


def producer_cases() -> list[Plain]:
    """Producer: how operations end, and what is told of them."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: object) -> Plain:
        return prod(name, note, rules, *steps, reject=True, **more)

    one = ((offer(),), (grant(), ack(), queue()), (claim(), post()))
    pair = ((offer(),), (grant(parts=2), ack(), queue(0), queue(1)))
    both = (*pair, (claim(0), post(0)), (claim(1), post(1)))
    left = unsent("CANCELLED_BY_CONSUMER")
    bad = unsent("TRANSPORT_FAILED")
    return [
        prod("sent", "One operation, done.", "6.3.8", *one, (ended(), sent())),
        prod(
            "sent-in-two-operations",
            "When both are done.",
            "6.3.8",
            *both,
            (ended(1),),
            (ended(0), sent()),
        ),
        prod(
            "ended-twice", "An operation ends once.", "8.3.1", *one, (ended(), sent()), (ended(),)
        ),
        no(
            "failed-and-quiet",
            "Told, and the source ends.",
            "6.7.2 6.7.3",
            *one,
            (ended(end="quiet"), failed(0, quiet=True), bad),
        ),
        no(
            "failed-not-quiet",
            "Told, then the link ends and the peer is shut out.",
            "6.7.2 6.7.4",
            *one,
            (ended(end="unquiet"), failed(0, quiet=False), close(), fence(D0), bad),
        ),
        no(
            "could-not-be-posted",
            "NEVER_POSTED, not FAILED.",
            "6.7.1",
            *one,
            (not_posted(), never(0, "TRANSPORT_FAILED"), bad),
        ),
        no(
            "blocks-out-of-bounds",
            "The reason is told.",
            "6.2.6",
            *one,
            (
                not_posted(reason="OUT_OF_BOUNDS"),
                never(0, "OUT_OF_BOUNDS"),
                unsent("OUT_OF_BOUNDS"),
            ),
        ),
        no(
            "one-of-two-failed-at-the-producer",
            "The source is held until the other has ended.",
            "6.3.10 6.7.3",
            *both,
            (ended(0, "quiet"), failed(0, quiet=True)),
            (ended(1), bad),
        ),
        no(
            "one-of-two-not-posted",
            "The other one goes on.",
            "6.4.3",
            *both,
            (not_posted(0), never(0, "TRANSPORT_FAILED")),
            (ended(1), bad),
        ),
        no(
            "cancelled-in-flight",
            "Acknowledged at once, confirmed when it has ended.",
            "6.6.4 6.6.3",
            *one,
            (recv_cancel(), stop(), ack()),
            (ended(), cancelled(), left),
        ),
        no(
            "cancelled-in-flight-and-failed",
            "The failure is told as well.",
            "6.6.4 6.7.3",
            *one,
            (recv_cancel(), stop(), ack()),
            (ended(end="quiet"), failed(0, quiet=True), cancelled(), left),
        ),
        no(
            "cancelled-twice-in-flight",
            "Answered as the first.",
            "5.2.13 6.6.4",
            *one,
            (recv_cancel(), stop(), ack()),
            (recv_cancel(), ack()),
            (ended(), cancelled(), left),
            (recv_cancel(), cancelled()),
        ),
        no(
            "cancelled-half-posted",
            "What is not posted is dropped, what is posted drains.",
            "6.6.2 6.6.4",
            *pair,
            (claim(0), post(0)),
            (recv_cancel(), stop(0), ack()),
            (claim(1),),
            (ended(0), cancelled(), left),
        ),
        no(
            "cancelled-and-unproven",
            "Never CANCELLED of what is not proven quiet.",
            "6.7.6 6.7.7",
            *one,
            (recv_cancel(), stop(), ack()),
            (ended(end="unquiet"), failed(0, quiet=False), close(), fence(D0), left),
            (link_up(2, D0, dialled=False),),
            (recv_cancel(link=2), ack(link=2)),
        ),
        no(
            "unproven-and-renewed",
            "A renewal of it is not answered at all.",
            "6.7.6 6.7.7",
            *one,
            (ended(end="unquiet"), failed(0, quiet=False), close(), fence(D0), bad),
            (link_up(2, D0, dialled=False),),
            (renew(link=2),),
        ),
        no(
            "unproven-and-granted-again",
            "The same attempt gets no GONE.",
            "6.7.6",
            *one,
            (ended(end="unquiet"), failed(0, quiet=False), close(), fence(D0), bad),
            (link_up(2, D0, dialled=False),),
            (grant(link=2),),
        ),
        no(
            "unproven-and-another-life",
            "The next life of the consumer starts without that memory.",
            "6.7.6 6.8.3 6.8.4",
            *one,
            (ended(end="unquiet"), failed(0, quiet=False), close(), fence(D0), bad),
            (link_up(2, LATER_D0, dialled=False),),
            (
                grant(of=LATER_D0, link=2),
                gone("TRANSPORT_FAILED", link=2, to=LATER_D0),
            ),
        ),
        no(
            "renewed-while-it-drains",
            "Acknowledged; what has to end in time is not given more of it.",
            "6.9.4 6.9.10",
            *one,
            (recv_cancel(), stop(), ack()),
            (20_000, renew(), ack()),
            (30_000, TIME, close(), fence(D0)),
            (30_001, ended(end="unquiet"), left),
        ),
        no(
            "unproven-and-the-next-attempt",
            "The next attempt is another matter.",
            "6.7.6 6.8.3",
            *one,
            (ended(end="unquiet"), failed(0, quiet=False), close(), fence(D0), bad),
            (link_up(2, D0, dialled=False),),
            (grant(attempt=2, link=2), ack(attempt=2, link=2)),
        ),
        no(
            "withdrawn-in-flight",
            "The pin stays until the operation has ended.",
            "6.3.10 6.6.6",
            *one,
            (withdraw(), stop()),
            (
                ended(end="quiet"),
                failed(0, quiet=True),
                gone("PRODUCER_ABORTED"),
                unsent("PRODUCER_ABORTED"),
            ),
        ),
        no(
            "withdrawn-in-flight-and-done",
            "All parts are done, so it is sent.",
            "6.3.8 6.6.6",
            *one,
            (withdraw(), stop()),
            (ended(), gone("PRODUCER_ABORTED"), sent()),
        ),
        no(
            "link-lost-in-flight",
            "The transport ends what is in flight.",
            "6.11.3 6.3.10",
            *one,
            (lost_link(), close(), stop(), fence(D0)),
            (ended(end="unquiet"), unsent("PEER_LOST")),
        ),
        no(
            "link-lost-and-done-all-the-same",
            "Its bytes are all there.",
            "6.11.3 6.3.8",
            *one,
            (lost_link(), close(), stop(), fence(D0)),
            (ended(), sent()),
        ),
        no(
            "one-rank-fails-the-other-drains",
            "Its blocks are read until both have ended.",
            "6.3.9 6.3.10",
            (offer(),),
            (grant(), ack(), queue()),
            (grant(of=D1, link=2), ack(link=2, to=D1), queue(link=2)),
            (claim(), post()),
            (claim(link=2), post(link=2)),
            (ended(end="quiet"), failed(0, quiet=True), stop(link=2)),
            (ended(link=2), gone("TRANSPORT_FAILED", link=2, to=D1), bad),
            links=((1, D0), (2, D1)),
            ranks=(0, 1),
        ),
    ]


def cases() -> list[Plain]:
    return landed_cases() + fail_cases() + foreign_cases() + let_go_cases() + producer_cases()
