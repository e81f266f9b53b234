"""Drain: a peer that is to go finishes what it has begun (section 6.15)."""

from __future__ import annotations

from typing import Any

from vectorgen import words
from vectorgen.words import (
    D0,
    D1,
    DRAIN,
    DRAINED,
    P0,
    P1,
    Plain,
    ack,
    cancel,
    claim,
    close,
    decline,
    dial,
    done,
    ended,
    expect,
    gone,
    grant,
    granted,
    grow,
    landed,
    lend,
    let_go,
    link_up,
    lost,
    lost_link,
    message,
    offer,
    part,
    post,
    queue,
    recv,
    recv_cancelled,
    recv_gone,
    recv_release,
    register,
    send,
    sent,
    sent_cancel,
    tables,
    unsent,
    wants,
)

BIT: dict[str, Any] = {"features": ["DRAIN", "PULL", "STREAMING"]}
MESSAGE = message("DRAIN", reason="DRAINING")
SAY = send(MESSAGE)


def cons(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.cons(name, note, rules, *steps, **{**BIT, **more})


def prod(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
    return words.prod(name, note, rules, *steps, **{**BIT, **more})


def draining() -> list[Plain]:
    """The peer that goes."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return prod(name, note, rules, *steps, reject=True, **more)

    two = {"links": ((1, D0), (2, D1)), "ranks": (0, 1)}
    refused = (lost("DRAINING", "d1", 0), let_go("d1", 0))
    return [
        prod(
            "nothing-to-do", "Said on the link, and done.", "6.15.1 6.15.6", (DRAIN, SAY, DRAINED)
        ),
        prod(
            "said-once", "A second wish changes nothing.", "6.15.1", (DRAIN, SAY, DRAINED), (DRAIN,)
        ),
        prod(
            "said-on-every-link",
            "To everyone whom it serves.",
            "6.15.1",
            (DRAIN, SAY, send(MESSAGE, 2), DRAINED),
            **two,
        ),
        prod(
            "said-on-a-later-link",
            "First thing on it.",
            "6.15.1",
            (DRAIN, SAY, DRAINED),
            (link_up(2, D1, dialled=False, features=["DRAIN"]), send(MESSAGE, 2)),
        ),
        prod(
            "not-said-without-the-bit",
            "The other side would not know it.",
            "4.5.5 11.3",
            (DRAIN, DRAINED),
            features=[],
        ),
        prod(
            "held-attempt-goes-on",
            "Parked before, served now.",
            "6.15.2",
            (expect(),),
            (grant(), ack()),
            (DRAIN, SAY),
            (offer(), queue()),
            (claim(), post()),
            (ended(), sent(), DRAINED),
        ),
        prod(
            "posted-attempt-goes-on",
            "And the tables are empty behind it.",
            "6.15.2 6.15.6",
            (offer(),),
            (grant(), ack(), queue()),
            (claim(), post()),
            (DRAIN, SAY),
            (ended(), sent(), DRAINED),
        ),
        prod(
            "loan-goes-on",
            "Until RELEASE.",
            "6.15.2",
            (offer(tables=tables(1)),),
            (grant(initiator="CONSUMER", tables=[]), ack(), lend(part())),
            (DRAIN, SAY),
            (recv_release(True), sent(), DRAINED),
        ),
        prod(
            "stream-goes-on",
            "What was granted is served to its end.",
            "6.15.2",
            (offer(tokens=0, sealed=False),),
            (grant(), ack()),
            (DRAIN, SAY),
            (grow(16, sealed=True), queue()),
            (claim(), post()),
            (ended(), sent(), DRAINED),
        ),
        prod(
            "empty-grant-is-taken",
            "It asks for nothing.",
            "6.15.2",
            (offer(),),
            (grant(), ack(), queue()),
            (claim(), post()),
            (DRAIN, SAY, send(MESSAGE, 2)),
            (ended(),),
            (grant(parts=0, of=D1, link=2), ack(link=2, to=D1), sent(), DRAINED),
            **two,
        ),
        no(
            "new-grant",
            "Refused with DRAINING.",
            "6.15.2",
            (DRAIN, SAY, DRAINED),
            (grant(), gone("DRAINING")),
        ),
        no(
            "new-grant-for-a-held-offer",
            "Nobody new is taken.",
            "6.15.2 6.15.3",
            (expect(),),
            (DRAIN, SAY),
            (grant(), gone("DRAINING")),
            (offer(), unsent("DRAINING"), DRAINED),
        ),
        no(
            "offer-that-nobody-came-to",
            "It ends at once.",
            "6.15.3",
            (offer(),),
            (DRAIN, SAY, unsent("DRAINING"), DRAINED),
        ),
        no(
            "stream-that-nobody-came-to",
            "It ends at once.",
            "6.15.3",
            (offer(tokens=0, sealed=False),),
            (DRAIN, SAY, unsent("DRAINING"), DRAINED),
        ),
        no(
            "higher-attempt",
            "It is a new one.",
            "6.15.2",
            (expect(),),
            (grant(), ack()),
            (DRAIN, SAY),
            (grant(attempt=2), gone("DRAINING", attempt=2)),
        ),
        cons(
            "own-registration",
            "The engine of the peer that goes is refused.",
            "6.15.4",
            (DRAIN, DRAINED),
            (register(), *refused),
            reject=True,
        ),
        cons(
            "own-registration-that-waits",
            "It goes on.",
            "6.15.4",
            (register(), granted()),
            (DRAIN,),
            (done(), landed(), let_go(), DRAINED),
        ),
        cons(
            "own-decline",
            "Saying that nothing is needed is still possible.",
            "6.15.4",
            (DRAIN, DRAINED),
            (decline(), granted(parts=0)),
        ),
    ]


def left_behind() -> list[Plain]:
    """The consumer that is told."""

    def no(name: str, note: str, rules: str, *steps: tuple, **more: Any) -> Plain:
        return cons(name, note, rules, *steps, reject=True, **more)

    two = {"links": ((1, P0), (2, P1))}
    both = [wants(1), wants(1, P1)]
    gone_away = (lost("DRAINING", "d2", 0, "u"), let_go("d2", 0, "u"))
    return [
        cons(
            "granted-goes-on",
            "DRAIN ends nothing that was granted.",
            "6.15.5",
            (register(), granted()),
            (recv(MESSAGE),),
            (done(), landed(), let_go()),
        ),
        cons("told-twice", "Twice is once.", "6.15.5 5.2.13", (recv(MESSAGE),), (recv(MESSAGE),)),
        cons(
            "another-producer-serves",
            "DRAIN is about its sender only.",
            "6.15.5",
            (recv(MESSAGE, 2),),
            (register(), granted()),
            (done(), landed(), let_go()),
            **two,
        ),
        cons(
            "next-life-serves",
            "A new link knows nothing of it.",
            "6.15.5",
            (recv(MESSAGE),),
            (lost_link(), close()),
            (link_up(2, words.LATER_P0, dialled=True, features=["DRAIN"]),),
            (register(), granted(link=2, to=words.LATER_P0)),
        ),
        cons(
            "decline-is-sent",
            "It releases what the producer still holds.",
            "6.15.2 6.8.5",
            (recv(MESSAGE),),
            (decline(), granted(parts=0)),
        ),
        no(
            "not-granted-yet",
            "It fails at once instead of waiting for a refusal.",
            "6.15.5",
            (register(of=both), dial(P1)),
            (recv(MESSAGE), lost("DRAINING"), let_go()),
        ),
        no(
            "registered-after-drain",
            "Refused at once, nothing leaves.",
            "6.15.5",
            (recv(MESSAGE),),
            (register("d2", "u"), *gone_away),
        ),
        no(
            "one-of-two-producers-drains",
            "All of them are needed.",
            "6.15.5 6.1.1",
            (recv(MESSAGE, 2),),
            (register("d2", "u", of=both), *gone_away),
            **two,
        ),
        cons(
            "drain-behind-the-grant",
            "Both were granted before: both go on.",
            "6.15.5",
            (register(of=both), dial(P1)),
            (link_up(2, P1, dialled=True, features=["DRAIN"]), granted(), granted(link=2, to=P1)),
            (recv(MESSAGE, 2),),
            (done(),),
            (done(link=2, of=P1), landed(), let_go()),
        ),
        no(
            "grant-crosses-drain",
            "GONE with DRAINING ends the writer.",
            "6.15.2 6.6.7",
            (register(), granted()),
            (recv(MESSAGE),),
            (recv_gone("DRAINING"), lost("DRAINING"), let_go()),
        ),
        no(
            "cancelled-while-draining",
            "As ever.",
            "6.6.1",
            (register(), granted()),
            (recv(MESSAGE),),
            (cancel(), lost("CANCELLED_BY_CONSUMER"), sent_cancel()),
            (recv_cancelled(), let_go()),
        ),
        prod(
            "drain-from-a-consumer",
            "Only a producer says it.",
            "5.20.1",
            (recv(MESSAGE), close()),
            reject=True,
        ),
    ]


def cases() -> list[Plain]:
    return draining() + left_behind()
