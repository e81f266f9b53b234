"""Cases on rule 8: what a fence proves."""

from __future__ import annotations

from kvxfer.conformance.case import NotSupportedError, case, expect
from kvxfer.conformance.rig import Rig, Side, pattern
from kvxfer.status import Status, is_never_posted
from kvxfer.transport.caps import Caps

_SIZE = 1 << 20
_NEEDS = Caps.WRITE | Caps.FENCE_PEER
_GRANTED = "no fence was given while the peer is alive; nothing can be said"


def _must_fence(rig: Rig, side: Side, peer: int) -> None:
    if not rig.fence(side, peer):
        raise NotSupportedError(_GRANTED)


@case("T8.1", "after OK nothing lands, not even what was posted before", needs=_NEEDS)
def nothing_lands(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    ours, theirs = rig.connect()
    for _ in range(8):
        rig.a.write(ours, source, target)
    _must_fence(rig, rig.b, theirs)
    # The memory has a new owner now, as freed cache blocks have.
    owner = pattern(2, _SIZE)
    target.fill(owner)
    rig.settle()
    rig.a.post(ours, [source.base], [target.base], [_SIZE])
    rig.settle()
    expect(target.content() == owner, "bytes landed after fence_peer had said OK")
    ends = rig.finish_all(rig.a)
    expect(len(ends) >= 8, "requests vanished")


@case("T8.2", "after the first try, granted or not, nothing can be posted to the peer")
def nothing_posted(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    ours, theirs = rig.connect()
    status = rig.a.call("fence_peer", ours)
    if status == Status.UNSUPPORTED:
        raise NotSupportedError("fence_peer is not supported")
    expect(status in (Status.OK, Status.NOT_FENCED), f"fence_peer: {status.name}")
    status, _ = rig.a.post(ours, [source.base], [target.base], [4096])
    expect(is_never_posted(status), f"post_write after a fence was tried: {status.name}")
    status = rig.a.call("send_notification", ours, b"x")
    expect(status != Status.OK, "send_notification after a fence was tried: OK")
    del theirs


@case("T8.3", "a fence may be tried again, and one that was granted stays granted")
def again(rig: Rig) -> None:
    rig.b.region(4096)
    theirs = rig.connect()[1]
    first = rig.b.call("fence_peer", theirs)
    if first == Status.UNSUPPORTED:
        raise NotSupportedError("fence_peer is not supported")
    granted = False
    for _ in range(5):
        status = rig.b.call("fence_peer", theirs)
        expect(status in (Status.OK, Status.NOT_FENCED), f"fence_peer: {status.name}")
        expect(not granted or status == Status.OK, "a granted fence was taken back")
        granted = status == Status.OK
        rig.turn()


@case("T8.4", "fencing one peer leaves the others as they are")
def others_work(rig: Rig) -> None:
    c = rig.third()
    a, b = rig.a, rig.b
    source, target, other = a.region(4096), b.region(4096), c.region(4096)
    source.fill(pattern(1, 4096))
    to_b, _ = rig.connect(a, b)
    to_c, c_peer = rig.connect(a, c)
    status = a.call("fence_peer", to_b)
    if status == Status.UNSUPPORTED:
        raise NotSupportedError("fence_peer is not supported")
    end = rig.finish(a, a.write(to_c, source, other, b"for c"))
    expect(end == Status.OK, f"write to the peer that was not fenced: {end.name}")
    rig.until(lambda: c.notices == [(c_peer, b"for c")], "c is notified")
    expect(other.content() == source.content(), "bytes did not arrive at c")
    expect(target.content() == bytes(4096), "bytes arrived at the fenced peer")


@case("T8.5", "a peer that destroyed its session can be fenced, or is reported as not fenced")
def dead_peer(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    ours, theirs = rig.connect()
    for _ in range(4):
        rig.a.write(ours, source, target)
    rig.a.close()
    status = rig.b.call("fence_peer", theirs)
    if status == Status.UNSUPPORTED:
        raise NotSupportedError("fence_peer is not supported")
    if status != Status.OK and not rig.fence(rig.b, theirs):
        raise NotSupportedError("no fence was given although the peer's session is closed")
    owner = pattern(2, _SIZE)
    target.fill(owner)
    rig.settle()
    expect(target.content() == owner, "bytes landed after fence_peer had said OK")
