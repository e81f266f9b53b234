"""Cases on rules 7 and 8 with an end that is killed, stopped, or comes back."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from kvxfer.conformance.case import NonStrictError, NotSupportedError, case, expect
from kvxfer.conformance.rig import Region, Rig, pattern
from kvxfer.status import Status, is_never_posted
from kvxfer.transport.caps import Caps

_SIZE: Final = 1 << 20
_KNOWN_S: Final = 1.0
"""Within this time after its death a transport that can tell has told."""
_CALL_S: Final = 2.0
"""No post and no other peer's transfer may take as long, on however slow a machine."""


def _told(rig: Rig, peer: int, source: Region, target: Region) -> bool:
    """Whether a's table says in any way that the peer is gone: a refusal, or a failed end."""
    status, _ = rig.a.post(peer, [source.base], [target.base], [64])
    if status not in (Status.OK, Status.NO_RESOURCE):
        return True
    rig.a.poll()
    return any(end not in (Status.OK,) for seen in rig.a.ends.values() for end in seen)


def _all_end(rig: Rig, peer: int) -> None:
    """Every request of a ends; where the network cannot tell, at the latest after a fence."""
    if rig.reaches(lambda: not rig.a.in_flight):
        return
    rig.a.call("fence_peer", peer)
    rig.until(lambda: not rig.a.in_flight, "all requests end once the peer is fenced")
    raise NonStrictError("requests end only once the peer is fenced: the renewal has to find it")


def _judge_ends(rig: Rig, after: int, text: str) -> None:
    late = [end for request in rig.a.requests[after:] for end in rig.a.ends[request]]
    expect(Status.OK not in late, f"{text}: ended OK although nobody is there")
    again = [request for request, seen in rig.a.ends.items() if len(seen) > 1]
    expect(not again, f"{text}: requests that ended more than once: {again}")


@case(
    "T7.6",
    "a peer is killed while nothing is posted: the caller gets to know",
    failures="C",
    far=True,
)
def killed_idle(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    peer = rig.connect()[0]
    expect(rig.finish(rig.a, rig.a.write(peer, source, target)) == Status.OK, "the first write")
    rig.kill_b()
    started = time.monotonic()
    if not rig.reaches(lambda: _told(rig, peer, source, target)):
        _judge_ends(rig, 1, "posted after the kill")
        raise NonStrictError("never told within the deadline: the renewal has to find it")
    known_s = time.monotonic() - started
    rig.measure("known_after_s", known_s)
    _all_end(rig, peer)
    _judge_ends(rig, 1, "posted after the kill")
    if known_s > _KNOWN_S:
        raise NonStrictError(f"told after {known_s:.2f} s")


@case(
    "T7.7", "a peer is killed with posts in flight: each of them ends once", failures="C", far=True
)
def killed_in_flight(rig: Rig) -> None:
    source, target = rig.a.region(16 * _SIZE), rig.b.region(16 * _SIZE)
    peer = rig.connect()[0]
    expect(rig.finish(rig.a, rig.a.write(peer, source, target)) == Status.OK, "the first write")
    for _ in range(8):
        rig.a.write(peer, source, target, b"in flight")
    rig.kill_b()
    started = time.monotonic()
    _all_end(rig, peer)
    rig.measure("all_ended_after_s", time.monotonic() - started)
    again = [request for request, seen in rig.a.ends.items() if len(seen) != 1]
    expect(not again, f"requests that did not end exactly once: {again}")


@case(
    "T7.8", "after a peer was killed a post is refused or fails, never OK", failures="C", far=True
)
def killed_before(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    peer = rig.connect()[0]
    rig.kill_b()
    started = time.monotonic()
    status, _ = rig.a.post(peer, [source.base], [target.base], [_SIZE], b"to nobody")
    took_s = time.monotonic() - started
    rig.measure("post_s", took_s)
    expect(took_s < _CALL_S, f"the post took {took_s:.2f} s: nothing blocks (rule 2)")
    if status == Status.OK:
        _all_end(rig, peer)
        _judge_ends(rig, 0, "posted after the kill")


def _stopped_posts(rig: Rig, peer: int, source: Region, target: Region) -> list[int]:
    """Posts to an end that is stopped; each call returns at once."""
    requests = []
    for number in range(4):
        started = time.monotonic()
        status, request = rig.a.post(
            peer, [source.base], [target.base], [source.length], b"stopped %d" % number
        )
        took_s = time.monotonic() - started
        rig.measure("post_s", took_s)
        expect(took_s < _CALL_S, f"a post took {took_s:.2f} s: nothing blocks (rule 2)")
        expect(status in (Status.OK, Status.NO_RESOURCE), f"post to a stopped peer: {status.name}")
        if status == Status.OK:
            requests.append(request)
    return requests


@case(
    "T7.9",
    "a stopped peer blocks no call, and what was posted ends once it goes on",
    failures="K",
    far=True,
)
def stopped(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    expect(rig.finish(rig.a, rig.a.write(peer, source, target)) == Status.OK, "the first write")
    rig.far.stop()
    rig.b.closed = True
    requests = _stopped_posts(rig, peer, source, target)
    started = time.monotonic()
    rig.settle()
    rig.measure("settle_s", time.monotonic() - started)
    rig.far.resume()
    rig.b.closed = False
    ends = [rig.finish(rig.a, request) for request in requests]
    if set(ends) != {Status.OK}:
        raise NonStrictError(f"stopped for a moment, counted as failed: {sorted(set(ends))}")
    rig.until(lambda: len(rig.b.notices) == len(requests), "the notifications arrive")
    expect(target.content() == source.content(), "bytes did not arrive")


@case("T7.10", "a peer is killed while it is stopped with posts in flight", failures="CK", far=True)
def stopped_and_killed(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    peer = rig.connect()[0]
    expect(rig.finish(rig.a, rig.a.write(peer, source, target)) == Status.OK, "the first write")
    rig.far.stop()
    rig.b.closed = True
    _stopped_posts(rig, peer, source, target)
    rig.kill_b()
    started = time.monotonic()
    _all_end(rig, peer)
    rig.measure("all_ended_after_s", time.monotonic() - started)


@case(
    "T7.11",
    "a peer that comes back at the same address gets nothing that was for the old one",
    failures="A",
    far=True,
)
def restarted(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    old = rig.connect()[0]
    expect(rig.finish(rig.a, rig.a.write(old, source, target)) == Status.OK, "the first write")
    base = target.base
    rig.kill_b()
    rig.restart_b()
    # The new process has memory where the old one had it, and registers it.
    again = Region(rig.far.memory_at(base, _SIZE), 0)
    rig.b.must("register_region", again.buffer.memory)
    owner = pattern(2, _SIZE)
    again.fill(owner)
    fresh = rig.connect()[0]
    status, _ = rig.a.post(old, [source.base], [base], [_SIZE], b"for the old one")
    if status == Status.OK:
        with suppress(NonStrictError):
            _all_end(rig, old)
        _judge_ends(rig, 1, "posted to the old handle")
    rig.settle()
    expect(again.content() == owner, "bytes for the old process are in the new one")
    expect(rig.b.notices == [], "a notification for the old process came to the new one")
    end = rig.finish(rig.a, rig.a.write(fresh, source, again, b"new"))
    expect(end == Status.OK, f"the write to the new process ended with {end.name}")
    rig.until(lambda: [got for _, got in rig.b.notices] == [b"new"], "the new one is notified")
    expect(again.content() == source.content(), "bytes did not arrive at the new process")


@case(
    "T7.12",
    "while one peer is stopped, then killed, transfers of another go on",
    failures="K",
    far=True,
)
def others_are_not_stalled(rig: Rig) -> None:
    c = rig.third()
    source, target, other = rig.a.region(_SIZE), rig.b.region(_SIZE), c.region(_SIZE)
    to_b, to_c = rig.connect()[0], rig.connect(rig.a, c)[0]
    for peer, region in ((to_b, target), (to_c, other)):
        end = rig.finish(rig.a, rig.a.write(peer, source, region))
        expect(end == Status.OK, "the first write")

    def go_on(text: str) -> None:
        for number in range(20):
            started, seen = time.monotonic(), len(c.notices)
            request = rig.a.write(to_c, source, other, b"%d" % number)
            rig.until(lambda: bool(rig.a.ends[request]), f"{text}: the other peer's write")  # noqa: B023 - used at once
            rig.until(lambda: len(c.notices) > seen, f"{text}: the other peer's notice")  # noqa: B023 - used at once
            took_s = time.monotonic() - started
            rig.measure(f"other_{text}_s", took_s)
            expect(took_s < _CALL_S, f"{text}: another peer's transfer took {took_s:.2f} s")
            expect(rig.a.ends[request] == [Status.OK], f"{text}: {rig.a.ends[request]}")

    go_on("before")
    rig.far.stop()
    rig.b.closed = True
    _stopped_posts(rig, to_b, source, target)
    go_on("stopped")
    rig.kill_b()
    go_on("killed")
    status, _ = rig.a.post(to_b, [source.base], [target.base], [_SIZE])
    expect(status == Status.OK or is_never_posted(status), f"post to the dead: {status.name}")
    go_on("posted_to_dead")


@case(
    "T8.6",
    "an initiator is killed in the middle: after the fence nothing lands",
    failures="A",
    needs=Caps.WRITE | Caps.FENCE_PEER,
    far=True,
)
def initiator_killed(rig: Rig) -> None:
    target, source = rig.a.region(16 * _SIZE), rig.b.region(16 * _SIZE)
    ours, theirs = rig.connect()
    for _ in range(8):
        rig.b.write(theirs, source, target, b"late")
    rig.b.poll()
    rig.kill_b()
    started = time.monotonic()
    if not rig.fence(rig.a, ours):
        raise NotSupportedError("no fence was given although the peer's process is dead")
    rig.measure("fenced_after_s", time.monotonic() - started)
    owner = pattern(2, 16 * _SIZE)
    target.fill(owner)
    rig.settle()
    expect(target.content() == owner, "bytes landed after fence_peer had said OK")
    if time.monotonic() - started > _KNOWN_S + _CALL_S:
        raise NonStrictError("the fence took its time")


@case(
    "T8.7",
    "an initiator that is stopped in the middle is fenced, or said not to be",
    failures="A",
    needs=Caps.WRITE | Caps.FENCE_PEER,
    far=True,
)
def initiator_stopped(rig: Rig) -> None:
    target, source = rig.a.region(4 * _SIZE), rig.b.region(4 * _SIZE)
    source.fill(pattern(1, 4 * _SIZE))
    ours, theirs = rig.connect()
    for _ in range(8):
        rig.b.write(theirs, source, target, b"late")
    rig.far.stop()
    rig.b.closed = True
    started = time.monotonic()
    status = rig.a.call("fence_peer", ours)
    took_s = time.monotonic() - started
    expect(took_s < _CALL_S, f"fence_peer took {took_s:.2f} s: nothing blocks (rule 2)")
    expect(status in (Status.OK, Status.NOT_FENCED), f"fence_peer: {status.name}")
    owner = pattern(2, 4 * _SIZE)
    target.fill(owner)
    rig.far.resume()
    rig.b.closed = False
    rig.settle()
    landed = target.content() != owner
    expect(not (landed and status == Status.OK), "bytes landed after fence_peer had said OK")
    if status == Status.NOT_FENCED and not rig.fence(rig.a, ours):
        raise NotSupportedError("no fence was given while the peer is alive")
    target.fill(owner)
    rig.settle()
    expect(target.content() == owner, "bytes landed after fence_peer had said OK")
