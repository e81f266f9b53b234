"""Cases on rule 10: blobs, and handles of peers."""

from __future__ import annotations

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Rig, pattern
from kvxfer.status import Status, is_peer_error
from kvxfer.transport.caps import Caps

_NO_HANDLE = (1 << 63) - 1


@case("T10.1", "two ends that have exchanged blobs reach each other's memory")
def exchange(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    ours, theirs = rig.connect()
    end = rig.finish(rig.a, rig.a.write(ours, source, target, b"hello"))
    expect(end == Status.OK, f"ended with {end.name}")
    rig.until(lambda: rig.b.notices == [(theirs, b"hello")], "b is notified")
    expect(target.content() == source.content(), "bytes did not arrive")


@case("T10.2", "a blob that cannot be used is refused as PEER_BLOB, and a good one may follow")
def bad_blobs(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    ours, blob = rig.a.must("peer_create")
    theirs, good = rig.b.must("peer_create")
    bad = [b"", b"\x00", good[: len(good) // 2], pattern(1, 64), bytes(len(good)), b"\xff" * 5000]
    for data in bad:
        status = rig.a.call("peer_connect", ours, data)
        expect(status == Status.PEER_BLOB, f"blob of {len(data)} bytes: {status.name}")
    rig.a.must("peer_connect", ours, good)
    rig.b.must("peer_connect", theirs, blob)
    end = rig.finish(rig.a, rig.a.write(ours, source, target))
    expect(end == Status.OK, f"after a good blob the write ended with {end.name}")


@case("T10.3", "before peer_connect nothing can be posted to a peer")
def not_connected(rig: Rig) -> None:
    source = rig.a.region(4096)
    peer = rig.a.must("peer_create")[0]
    status, _ = rig.a.post(peer, [source.base], [source.base], [8])
    expect(is_peer_error(status), f"post_write: {status.name} is not in the peer band")
    status = rig.a.call("send_notification", peer, b"x")
    expect(is_peer_error(status), f"send_notification: {status.name} is not in the peer band")


@case("T10.4", "a handle that was never given is PEER_UNKNOWN everywhere")
def unknown_peer(rig: Rig) -> None:
    source = rig.a.region(4096)
    blob = rig.b.must("peer_create")[1]
    status, _ = rig.a.post(_NO_HANDLE, [source.base], [source.base], [8])
    answers = {
        "post_write": status,
        "send_notification": rig.a.call("send_notification", _NO_HANDLE, b"x"),
        "peer_connect": rig.a.call("peer_connect", _NO_HANDLE, blob),
        "peer_destroy": rig.a.call("peer_destroy", _NO_HANDLE),
    }
    if Caps.FENCE_PEER in rig.a.caps():
        answers["fence_peer"] = rig.a.call("fence_peer", _NO_HANDLE)
    for slot, status in answers.items():
        expect(status == Status.PEER_UNKNOWN, f"{slot}: {status.name}")


@case("T10.5", "a destroyed peer is PEER_UNKNOWN, and destroying it twice is too")
def destroyed_peer(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    rig.a.must("peer_destroy", peer)
    status, _ = rig.a.post(peer, [source.base], [target.base], [4096])
    expect(status == Status.PEER_UNKNOWN, f"post_write: {status.name}")
    for slot, args in {"send_notification": (peer, b"x"), "peer_destroy": (peer,)}.items():
        status = rig.a.call(slot, *args)
        expect(status == Status.PEER_UNKNOWN, f"{slot}: {status.name}")
    rig.settle()
    expect(target.content() == bytes(4096), "bytes arrived through a destroyed peer")


@case("T10.6", "notifications of two peers come under two handles")
def two_peers(rig: Rig) -> None:
    c = rig.third()
    from_a, at_a = rig.connect(rig.a, rig.b)
    from_c, at_c = rig.connect(c, rig.b)
    rig.a.must("send_notification", from_a, b"of a")
    c.must("send_notification", from_c, b"of c")
    rig.until(lambda: len(rig.b.notices) >= 2, "both arrive")
    wanted = sorted([(at_a, b"of a"), (at_c, b"of c")])
    expect(sorted(rig.b.notices) == wanted, f"got {rig.b.notices!r}, wanted {wanted!r}")
