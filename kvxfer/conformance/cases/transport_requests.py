"""Cases on rules 5 and 7: what a post answers and how a request ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvxfer.conformance.case import NonStrictError, NotSupportedError, case, expect
from kvxfer.conformance.rig import Rig, pattern, u64
from kvxfer.status import Status, is_never_posted


@case("T5.1", "each request has a handle of its own and ends exactly once")
def ends_once(rig: Rig) -> None:
    source, target = rig.a.region(64 * 512), rig.b.region(64 * 512)
    peer = rig.connect()[0]
    rig.a.records = rig.a.records[:3]
    for at in range(64):
        place = at * 512
        status, _ = rig.a.post(peer, [source.base + place], [target.base + place], [512])
        expect(status == Status.OK, f"post {at}: {status.name}")
    expect(len(set(rig.a.requests)) == 64, "one request handle was given to two posts")
    expect(min(rig.a.requests) > 0, "a request handle is not positive")
    ends = rig.finish_all(rig.a)
    expect(set(ends) == {Status.OK}, f"requests ended with {sorted(set(ends))}")
    rig.settle()
    rig.finish(rig.a, rig.a.write(peer, source, target))
    rig.settle()
    expect(len(set(rig.a.requests)) == 65, "the handle of a request that had ended came again")
    again = {request: len(seen) for request, seen in rig.a.ends.items() if len(seen) != 1}
    expect(not again, f"requests that did not end exactly once: {again}")
    strays = rig.a.ends.keys() - set(rig.a.requests)
    expect(not strays, f"completions of requests that were never given: {sorted(strays)}")


@case("T5.2", "malformed columns are never posted and change nothing")
def malformed_columns(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    good = (u64([source.base]), u64([target.base]), u64([64]))
    two = u64([source.base, source.base])
    bad: list[tuple[str, tuple[Any, Any, Any]]] = [
        ("unequal lengths", (two, good[1], good[2])),
        ("one column too short", (two, two, good[2])),
        ("int64", (good[0].astype(np.int64), good[1], good[2])),
        ("float64", (good[0], good[1], good[2].astype(np.float64))),
        ("two dimensions", tuple(column.reshape(1, 1) for column in good)),  # type: ignore[list-item]
        ("lists", ([source.base], [target.base], [64])),
        ("None", (None, None, None)),
    ]
    for name, columns in bad:
        status, _ = rig.a.call("post_write", peer, *columns, b"bad")
        expect(is_never_posted(status), f"{name}: {Status(status).name} is not 'never posted'")
    rig.settle()
    expect(target.content() == bytes(4096), "a refused post wrote bytes")
    expect(rig.b.notices == [], f"a refused post notified: {rig.b.notices!r}")
    expect(rig.a.ends == {}, f"a refused post completed: {rig.a.ends!r}")


@case("T5.3", "one bad range refuses the whole post: no other range of it is written")
def one_bad_range(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    local = [source.base + at * 64 for at in range(16)]
    remote = [target.base + at * 64 for at in range(15)] + [target.base + (1 << 40)]
    status, _ = rig.a.post(peer, local, remote, [64] * 16, b"bad")
    expect(status != Status.OK, "a post with a range outside the peer's regions was accepted")
    rig.settle()
    expect(target.content() == bytes(4096), "ranges of a refused post were written")
    expect(rig.b.notices == [], "a refused post notified")


@case("T5.4", "poll fills no more records than it is given")
def poll_in_small_steps(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer, back = rig.connect()
    del back
    requests = {rig.a.write(peer, source, target) for _ in range(8)}
    seen: list[int] = []
    records = np.zeros(4, dtype=rig.a.records.dtype)

    def step() -> bool:
        records["request"] = 0
        count = rig.a.must("poll", records[:2])
        expect(count <= 2, f"poll filled {count} of 2 records")
        expect(not records["request"][2:].any(), "poll wrote past the records it was given")
        for request, of, status in records[:count].tolist():
            expect(of == peer, f"completion names peer {of}, posted to {peer}")
            expect(status == Status.OK, f"request {request} ended with {status}")
            seen.append(request)
        rig.b.poll()
        return len(seen) >= 8

    rig.wait(step, "8 requests end")
    expect(set(seen) == requests, f"completed {sorted(seen)}, posted {sorted(requests)}")


@case("T5.5", "columns without an entry notify at once, or are refused")
def empty_columns(rig: Rig) -> None:
    rig.a.region(64)
    rig.b.region(64)
    peer = rig.connect()[0]
    status, request = rig.a.post(peer, [], [], [], b"empty")
    if status != Status.OK:
        rig.settle()
        expect(status == Status.OP_INVALID, f"refused with {status.name}, wanted OP_INVALID")
        expect(rig.b.notices == [], "a refused post notified")
        return
    end = rig.finish(rig.a, request)
    expect(end == Status.OK, f"ended with {end.name}")
    rig.until(lambda: len(rig.b.notices) == 1, "the notification arrives")


@case("T5.6", "a range of no bytes is refused or moves nothing")
def empty_range(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    status, request = rig.a.post(peer, [source.base], [target.base], [0])
    if status == Status.OK:
        rig.finish(rig.a, request)
    rig.settle()
    expect(target.content() == bytes(4096), "a range of no bytes wrote some")


@case("T7.1", "a request towards a peer whose session closed ends with an error, or is refused")
def peer_closes(rig: Rig) -> None:
    source, target = rig.a.region(1 << 20), rig.b.region(1 << 20)
    source.fill(pattern(1, 1 << 20))
    peer = rig.connect()[0]
    rig.b.close()
    status, request = rig.a.post(peer, [source.base], [target.base], [1 << 20])
    if status != Status.OK:
        return
    if not rig.reaches(lambda: bool(rig.a.ends[request])):
        raise NonStrictError("the request does not end within the deadline")
    end = rig.a.ends[request][0]
    if end == Status.OK:
        expect(target.content() == source.content(), "ended with OK and not all bytes arrived")
        raise NonStrictError("the write succeeded after the peer's close")


@case("T7.2", "closing with requests in flight does no harm on either side")
def close_in_flight(rig: Rig) -> None:
    source, target = rig.a.region(1 << 20), rig.b.region(1 << 20)
    back = rig.b.region(1 << 20)
    ours, theirs = rig.connect()
    for _ in range(8):
        rig.a.write(ours, source, target, b"late")
        status, _ = rig.b.post(theirs, [back.base], [source.base], [1 << 16])
        expect(status == Status.OK, f"b.post_write: {status.name}")
    rig.a.close()
    rig.settle()
    rig.b.close()


@case("T7.3", "a fence at the initiator ends its own requests, and nothing reads the source after")
def initiator_fence(rig: Rig) -> None:
    source, target = rig.a.region(1 << 20), rig.b.region(1 << 20)
    source.fill(pattern(1, 1 << 20))
    peer = rig.connect()[0]
    for _ in range(4):
        rig.a.write(peer, source, target)
    status = rig.a.call("fence_peer", peer)
    if status == Status.UNSUPPORTED:
        raise NotSupportedError("fence_peer is not supported")
    if status != Status.OK and not rig.fence(rig.a, peer):
        raise NotSupportedError("no fence was given while the peer is alive")
    # The source has a new owner now; what is still read from it would show at the target.
    source.fill(pattern(2, 1 << 20))
    # OP_UNKNOWN is right where bytes may still be on the wire; the source is free all the same.
    rig.finish_all(rig.a)
    rig.settle()
    got = np.frombuffer(target.content(), dtype=np.uint8)
    sent = np.frombuffer(pattern(1, 1 << 20), dtype=np.uint8)
    expect(bool(((got == 0) | (got == sent)).all()), "the source was read after the fence")
