"""Words of which the cases are made: events, messages, effects, in the plain form of the files.

A case is `case(id, note, rules, *steps, role=..., reject=...)`. A step is a tuple: what comes
in, then every effect of it; a number in front sets the virtual time in milliseconds.

Who is who, unless a case says otherwise: the consumer is eng-D rank 0, life 1000; the producer
is eng-P rank 0, life 1; they are linked by link 1. `prod` cases are played to a producer,
`cons` cases to a consumer.
"""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]
Step = tuple[Any, ...]

D, P = 1000, 1
"""Lives of the consumer and of the producer."""
BLOCK = 16
"""Tokens of a part, and of a block."""


def peer(engine_id: str, rank: int = 0, incarnation: int | None = None) -> Plain:
    known: Plain = {"engine_id": engine_id, "rank": rank}
    return known if incarnation is None else {**known, "incarnation": incarnation}


D0, D1 = peer("eng-D", 0, 1000), peer("eng-D", 1, 1001)
E0 = peer("eng-E", 0, 2000)
P0, P1 = peer("eng-P", 0, 1), peer("eng-P", 1, 2)
LATER_D0, LATER_P0 = peer("eng-D", 0, 1007), peer("eng-P", 0, 7)


def key(life: Plain) -> Plain:
    """The peer over its lives."""
    return peer(life["engine_id"], life["rank"])


# --- cases ---


def case(
    name: str,
    note: str,
    rules: str,
    *steps: Step,
    reject: bool = False,
    flags: str = "",
    **settings: Any,
) -> Plain:
    """One vector. `rules` and `flags` are words apart by blanks."""
    rows, at_ms = [], 0
    for step in steps:
        if isinstance(step[0], int):
            at_ms, step = step[0], step[1:]
        rows.append({"at_ms": at_ms, "in": step[0], "out": list(step[1:])})
    return {
        "id": name,
        "note": note,
        "flags": flags.split(),
        "rules": [f"K-{rule}" for rule in rules.split()],
        "verdict": "reject" if reject else "accept",
        "settings": settings,
        "steps": rows,
    }


def prod(
    name: str, note: str, rules: str, *steps: Step, links: Any = ((1, D0),), **more: Any
) -> Plain:
    """A case for a producer that is linked already; `ranks` are those of the consuming engine."""
    ranks, features = more.pop("ranks", (0,)), more.get("features", [])
    ups = [
        (link_up(link, who, dialled=False, ranks=ranks, features=features),) for link, who in links
    ]
    return case(name, note, rules, *ups, *steps, role="PRODUCER", **more)


def cons(
    name: str, note: str, rules: str, *steps: Step, links: Any = ((1, P0),), **more: Any
) -> Plain:
    """A case for a consumer that is linked already."""
    me = {"engine_id": "eng-D", "incarnation": D}
    features = more.get("features", [])
    ups = [(link_up(link, who, dialled=True, features=features),) for link, who in links]
    return case(name, note, rules, *ups, *steps, role="CONSUMER", **{**me, **more})


# --- events ---


def event(kind: str, **fields: Any) -> Plain:
    return {"event": kind, **fields}


def link_up(
    link: int,
    who: Plain,
    *,
    dialled: bool,
    ranks: tuple[int, ...] = (0,),
    features: list[str] | None = None,
) -> Plain:
    """`features` are those of the other side; left out where it has none."""
    whole = event("link_up", link=link, peer=who, dialled=dialled, ranks=list(ranks))
    return {**whole, "features": features} if features else whole


def recv(message: Plain, link: int = 1) -> Plain:
    return event("message", link=link, message=message)


def notice(message: Plain, link: int = 1) -> Plain:
    return event("notification", link=link, message=message)


def lost_link(link: int = 1) -> Plain:
    return event("connection_lost", link=link)


TIME = event("time")
SHUT_DOWN = event("shut_down")
DRAIN = event("drain")


def part(n: int = 0, rank: int = 0) -> list[int]:
    """Part n of an edge: all its tokens of group n."""
    return [rank, n, 0, BLOCK]


def tables(count: int) -> list[Plain]:
    """One block of each of `count` groups."""
    return [{"group": n, "first_token": 0, "starts": [4 + n], "lengths": [1]} for n in range(count)]


def wants(count: int = 1, who: Plain = P0) -> Plain:
    parts = [part(n, who["rank"]) for n in range(count)]
    return {"peer": key(who), "parts": parts, "tables": tables(count)}


def register(
    tag: str = "d1",
    tid: str = "t",
    *,
    of: list[Plain] | None = None,
    more: tuple[Plain, ...] = (),
    **fields: Any,
) -> Plain:
    """The engine wants `of` each producer; `more` are producers of which it wants nothing."""
    of = [wants()] if of is None else of
    producers = [want["peer"] for want in of] + [key(who) for who in more]
    whole = {"digest": "", "deadline_ms": 1_000_000, "producers": producers, "wants": of}
    return event("register", transfer_id=tid, tag=tag, **{**whole, **fields})


def decline(tid: str = "t", *producers: Plain) -> Plain:
    return event("decline", transfer_id=tid, producers=[key(p) for p in producers or (P0,)])


def cancel(tag: str = "d1", tid: str = "t") -> Plain:
    return event("cancel", transfer_id=tid, tag=tag)


def expect(tag: str = "p1", tid: str = "t") -> Plain:
    return event("expect", transfer_id=tid, tag=tag)


def offer(
    tag: str = "p1",
    tid: str = "t",
    *,
    tokens: int = BLOCK,
    digest: str = "",
    lease_ms: int = 30_000,
    **more: Any,
) -> Plain:
    fields = {"tokens": tokens, "digest": digest, "lease_ms": lease_ms, **more}
    return event("offer", transfer_id=tid, tag=tag, **fields)


def grow(
    tokens: int, *, sealed: bool = False, tag: str = "p1", tid: str = "t", **more: Any
) -> Plain:
    """More of an offer that was not sealed is final."""
    return event("grow", transfer_id=tid, tag=tag, tokens=tokens, sealed=sealed, **more)


def withdraw(tag: str = "p1", tid: str = "t") -> Plain:
    return event("withdraw", transfer_id=tid, tag=tag)


def op(
    n: int | list[int] = 0, tid: str = "t", attempt: int = 1, link: int = 1, rank: int = 0
) -> Plain:
    """`n`: the number of a part, or the part itself."""
    named = part(n, rank) if isinstance(n, int) else n
    return {"link": link, "transfer_id": tid, "attempt": attempt, "part": named}


def claim(n: int | list[int] = 0, **names: Any) -> Plain:
    return event("claim", op=op(n, **names))


def ended(n: int | list[int] = 0, end: str = "done", **names: Any) -> Plain:
    """`end`: done, quiet (failed and quiet) or unquiet (failed, not proven quiet)."""
    return event("op_ended", op=op(n, **names), end=end)


def not_posted(n: int | list[int] = 0, reason: str = "TRANSPORT_FAILED", **names: Any) -> Plain:
    return event("not_posted", op=op(n, **names), reason=reason)


def fence_result(who: Plain, proven: bool) -> Plain:
    return event("fence_result", peer=who, proven=proven)


def unreachable(who: Plain) -> Plain:
    return event("unreachable", peer=key(who))


# --- messages ---


def header(tid: str, attempt: int, sender: int, receiver: int) -> Plain:
    return {"transfer_id": tid, "attempt": attempt, "sender": sender, "receiver": receiver}


def message(kind: str, head: Plain | None = None, **fields: Any) -> Plain:
    return {"type": kind, **({"header": head} if head else {}), **fields}


def grant_message(
    tid: str = "t",
    attempt: int = 1,
    *,
    parts: int | list[list[int]] = 1,
    of: Plain = D0,
    to: Plain = P0,
    **fields: Any,
) -> Plain:
    listed = [part(n, to["rank"]) for n in range(parts)] if isinstance(parts, int) else parts
    whole = {
        "digest": "",
        "lease_ms": 30_000,
        "parts": listed,
        "tables": tables(len(listed)),
    }
    head = header(tid, attempt, of["incarnation"], to["incarnation"])
    return message("GRANT", head, **{**whole, **fields})


def from_d(kind: str, tid: str, attempt: int, of: Plain = D0, **fields: Any) -> Plain:
    return message(kind, header(tid, attempt, of["incarnation"], P), **fields)


def from_p(kind: str, tid: str, attempt: int, of: Plain = P0, **fields: Any) -> Plain:
    return message(kind, header(tid, attempt, of["incarnation"], D), **fields)


# What a producer takes in and sends. `of` is the consumer.


def grant(tid: str = "t", attempt: int = 1, *, link: int = 1, **fields: Any) -> Plain:
    return recv(grant_message(tid, attempt, **fields), link)


def renew(
    tid: str = "t",
    attempt: int = 1,
    *,
    link: int = 1,
    of: Plain = D0,
    lease_ms: int = 30_000,
    **fields: Any,
) -> Plain:
    return recv(from_d("RENEW", tid, attempt, of, lease_ms=lease_ms, **fields), link)


def recv_cancel(tid: str = "t", attempt: int = 1, *, link: int = 1, of: Plain = D0) -> Plain:
    return recv(from_d("CANCEL", tid, attempt, of, reason="CANCELLED_BY_CONSUMER"), link)


def _answer(kind: str, tid: str, attempt: int, link: int, to: Plain, **fields: Any) -> Plain:
    return send(message(kind, header(tid, attempt, P, to["incarnation"]), **fields), link)


def ack(tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = D0, **fields: Any) -> Plain:
    return _answer("GRANT_ACK", tid, attempt, link, to, **fields)


def gone(reason: str, tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = D0) -> Plain:
    return _answer("GONE", tid, attempt, link, to, reason=reason)


def cancelled(tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = D0) -> Plain:
    return _answer("CANCELLED", tid, attempt, link, to)


def failed(
    n: int, quiet: bool, tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = D0
) -> Plain:
    fields = {"reason": "TRANSPORT_FAILED", "quiet": quiet, "part": part(n)}
    return _answer("FAILED", tid, attempt, link, to, **fields)


def never(
    n: int,
    reason: str,
    tid: str = "t",
    attempt: int = 1,
    *,
    link: int = 1,
    to: Plain = D0,
    **more: Any,
) -> Plain:
    fields = {"reason": reason, "part": part(n), **more}
    return _answer("NEVER_POSTED", tid, attempt, link, to, **fields)


def lend(
    *parts: list[int], tid: str = "t", attempt: int = 1, link: int = 1, to: Plain = D0
) -> Plain:
    """OFFER of a producer, in pull."""
    return _answer("OFFER", tid, attempt, link, to, parts=list(parts), tables=tables(1))


def recv_release(
    landed: bool, tid: str = "t", attempt: int = 1, *, link: int = 1, of: Plain = D0
) -> Plain:
    reason = "NONE" if landed else "CANCELLED_BY_CONSUMER"
    return recv(from_d("RELEASE", tid, attempt, of, landed=landed, reason=reason), link)


# What a consumer sends and takes in. `to` and `of` are the producer.


def granted(
    tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = P0, **fields: Any
) -> Plain:
    return send(grant_message(tid, attempt, to=to, **fields), link)


def _asked(kind: str, tid: str, attempt: int, link: int, to: Plain, **fields: Any) -> Plain:
    return send(message(kind, header(tid, attempt, D, to["incarnation"]), **fields), link)


def renewed(
    tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = P0, **fields: Any
) -> Plain:
    return _asked("RENEW", tid, attempt, link, to, **fields)


def sent_cancel(tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = P0) -> Plain:
    return _asked("CANCEL", tid, attempt, link, to)


def done_message(
    n: int = 0, tid: str = "t", attempt: int = 1, of: Plain = P0, **fields: Any
) -> Plain:
    whole = {"part": part(n, of["rank"]), **fields}
    return from_p("DONE", tid, attempt, of, **whole)


def done(
    n: int = 0, tid: str = "t", attempt: int = 1, *, link: int = 1, of: Plain = P0, **fields: Any
) -> Plain:
    return notice(done_message(n, tid, attempt, of, **fields), link)


def recv_failed(
    n: int = 0,
    *,
    quiet: bool,
    tid: str = "t",
    attempt: int = 1,
    link: int = 1,
    of: Plain = P0,
    reason: str = "TRANSPORT_FAILED",
) -> Plain:
    fields = {"reason": reason, "quiet": quiet, "part": part(n, of["rank"])}
    return recv(from_p("FAILED", tid, attempt, of, **fields), link)


def recv_never(
    n: int = 0, *, reason: str, tid: str = "t", attempt: int = 1, link: int = 1, of: Plain = P0
) -> Plain:
    return recv(
        from_p("NEVER_POSTED", tid, attempt, of, reason=reason, part=part(n, of["rank"])), link
    )


def recv_gone(
    reason: str, tid: str = "t", attempt: int = 1, *, link: int = 1, of: Plain = P0
) -> Plain:
    return recv(from_p("GONE", tid, attempt, of, reason=reason), link)


def recv_ack(
    tid: str = "t", attempt: int = 1, *, link: int = 1, of: Plain = P0, **fields: Any
) -> Plain:
    return recv(from_p("GRANT_ACK", tid, attempt, of, **fields), link)


def recv_cancelled(tid: str = "t", attempt: int = 1, *, link: int = 1, of: Plain = P0) -> Plain:
    return recv(from_p("CANCELLED", tid, attempt, of), link)


def recv_offer(
    *parts: list[int], tid: str = "t", attempt: int = 1, link: int = 1, of: Plain = P0
) -> Plain:
    fields = {"parts": list(parts), "tables": tables(1)}
    return recv(from_p("OFFER", tid, attempt, of, **fields), link)


def released(
    landed: bool, tid: str = "t", attempt: int = 1, *, link: int = 1, to: Plain = P0
) -> Plain:
    return _asked("RELEASE", tid, attempt, link, to, landed=landed)


# --- effects ---


def effect(kind: str, **fields: Any) -> Plain:
    return {"effect": kind, **fields}


def send(message: Plain, link: int = 1) -> Plain:
    return effect("send", link=link, message=message)


def dial(who: Plain = P0) -> Plain:
    return effect("dial", peer=key(who))


def close(link: int = 1) -> Plain:
    return effect("close", link=link)


def up(link: int, who: Plain) -> Plain:
    return effect("up", link=link, peer=who)


def fence(who: Plain) -> Plain:
    return effect("fence", peer=who)


def queue(n: int | list[int] = 0, **names: Any) -> Plain:
    return effect("queue", op=op(n, **names))


def post(n: int | list[int] = 0, **names: Any) -> Plain:
    return effect("post", op=op(n, **names))


def stop(n: int | list[int] = 0, **names: Any) -> Plain:
    return effect("stop", op=op(n, **names))


def landed(tag: str = "d1", attempt: int = 1, tid: str = "t") -> Plain:
    return effect("landed", transfer_id=tid, tag=tag, attempt=attempt)


def lost(reason: str, tag: str = "d1", attempt: int = 1, tid: str = "t") -> Plain:
    return effect("lost", transfer_id=tid, tag=tag, attempt=attempt, reason=reason)


def let_go(tag: str = "d1", attempt: int = 1, tid: str = "t") -> Plain:
    return effect("let_go", transfer_id=tid, tag=tag, attempt=attempt)


def sent(tag: str = "p1", tid: str = "t") -> Plain:
    return effect("sent", transfer_id=tid, tag=tag)


DRAINED = effect("drained")


def unsent(reason: str, tag: str = "p1", tid: str = "t") -> Plain:
    return effect("unsent", transfer_id=tid, tag=tag, reason=reason)
