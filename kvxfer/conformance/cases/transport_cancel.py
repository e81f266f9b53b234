"""Cases on rule 13: taking back what has not left yet."""

from __future__ import annotations

import numpy as np

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Region, Rig, pattern
from kvxfer.status import Status
from kvxfer.transport.caps import Caps

_NEEDS = Caps.WRITE | Caps.CANCEL
_SIZE = 8 << 20
_RANGES = 2048
_POSTS = 12
"""More bytes than any transport here hands over in one turn."""
_NO_HANDLE = (1 << 63) - 1
_ENDS = (Status.OK, Status.OP_FAILED, Status.OP_UNKNOWN)


def _long_post(rig: Rig, peer: int, source: Region, target: Region) -> int:
    """A post of so many ranges that one window does not hold it."""
    piece = _SIZE // _RANGES
    offsets = np.arange(_RANGES, dtype=np.int64)
    # Every second range the other way round, so that neighbours cannot be joined.
    mixed = (offsets ^ 1) * piece
    status, request = rig.a.post(
        peer,
        (source.base + mixed).tolist(),
        (target.base + mixed).tolist(),
        [piece] * _RANGES,
        b"whole",
    )
    expect(status == Status.OK, f"post_write: {status.name}")
    return request


def _must_cancel(rig: Rig, request: int) -> None:
    status = rig.a.call("cancel", request)
    expect(status == Status.OK, f"cancel of an open request: {status.name}")


@case("T13.1", "a request that is unknown or has ended cannot be cancelled", needs=_NEEDS)
def nothing_to_cancel(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    status = rig.a.call("cancel", _NO_HANDLE)
    expect(status == Status.OP_INVALID, f"a request never given: {status.name}")
    request = rig.a.write(peer, source, target, b"done")
    expect(rig.finish(rig.a, request) == Status.OK, "the write failed")
    status = rig.a.call("cancel", request)
    expect(status == Status.OP_INVALID, f"a request that has ended: {status.name}")
    rig.until(lambda: len(rig.b.notices) == 1, "the notification arrives")
    rig.settle()
    expect(rig.a.ends[request] == [Status.OK], f"it ended {len(rig.a.ends[request])} times")


def _judge_cancelled(rig: Rig, request: int, source: Region, target: Region) -> None:
    """What a cancelled request has to show once it has ended."""
    end = rig.finish(rig.a, request)
    expect(end in _ENDS, f"ended with {end.name}")
    if end == Status.OK:
        rig.until(lambda: bool(rig.b.notices), "it ended OK, and its notification arrives")
        expect(target.content() == source.content(), "ended with OK and not all bytes arrived")
        return
    if end == Status.OP_FAILED:
        # Quiet: the memory has a new owner from here on.
        owner = pattern(2, target.length)
        target.fill(owner)
        rig.settle()
        expect(target.content() == owner, "bytes landed after it had ended as quiet")
    rig.settle()
    expect(rig.b.notices == [], "a cancelled request notified")
    expect(len(rig.a.ends[request]) == 1, f"it ended {len(rig.a.ends[request])} times")


@case(
    "T13.2",
    "cancelled at once, it ends once; without OK nothing more lands or notifies",
    needs=_NEEDS,
)
def cancelled_at_once(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    request = _long_post(rig, peer, source, target)
    _must_cancel(rig, request)
    _judge_cancelled(rig, request, source, target)


@case("T13.3", "cancelled inside a window, it ends once the window is over", needs=_NEEDS)
def cancelled_inside_a_window(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    requests = [_long_post(rig, peer, source, target) for _ in range(_POSTS)]
    rig.turn()
    still_open = [request for request in requests if not rig.a.ends[request]]
    for request in still_open:
        _must_cancel(rig, request)
        # A second time while it is open changes nothing.
        _must_cancel(rig, request)
    ends = [rig.finish(rig.a, request) for request in requests]
    expect(set(ends) <= set(_ENDS), f"ended with {ends}")
    if Status.OP_UNKNOWN not in ends:
        owner = pattern(2, _SIZE)
        target.fill(owner)
        rig.settle()
        expect(target.content() == owner, "bytes landed after all had ended as quiet")
    rig.reaches(lambda: len(rig.b.notices) == ends.count(Status.OK))
    rig.settle()
    got, wanted = len(rig.b.notices), ends.count(Status.OK)
    expect(got == wanted, f"{got} notifications of {wanted} requests that ended OK")


@case("T13.4", "cancelling one request leaves the others of the peer as they are", needs=_NEEDS)
def others_go_on(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    small, other = rig.a.region(4096), rig.b.region(4096)
    small.fill(pattern(3, 4096))
    peer = rig.connect()[0]
    before = rig.a.write(peer, small, other)
    request = _long_post(rig, peer, source, target)
    after = rig.a.write(peer, small, other, b"after")
    _must_cancel(rig, request)
    for name, one in (("before", before), ("after", after)):
        end = rig.finish(rig.a, one)
        expect(end == Status.OK, f"the request posted {name} it ended with {end.name}")
    rig.finish(rig.a, request)
    rig.until(lambda: b"after" in [got for _, got in rig.b.notices], "its notification arrives")
    expect(other.content() == small.content(), "bytes of another request are missing")
