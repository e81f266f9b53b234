"""Cases on rules 6 and 12: notifications, and their order after the bytes."""

from __future__ import annotations

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Rig, pattern
from kvxfer.status import Status
from kvxfer.transport.caps import Caps

_ROUNDS = 100
_VISIBLE = Caps.WRITE | Caps.NOTIFY_AFTER_VISIBLE


@case("T6.1", "a write's notification arrives after all of its bytes are visible", needs=_VISIBLE)
def after_bytes(rig: Rig) -> None:
    size, ranges = 64 << 10, 4
    source, target = rig.a.region(size), rig.b.region(size)
    peer = rig.connect()[0]
    piece = size // ranges
    offsets = [at * piece for at in range(ranges)]
    early: list[bytes] = []

    def look(payload: bytes) -> None:
        if target.content() != source.content():
            early.append(payload)

    rig.b.on_notice = look
    for number in range(_ROUNDS):
        source.fill(pattern(number, size))
        status, request = rig.a.post(
            peer,
            [source.base + offset for offset in offsets],
            [target.base + offset for offset in offsets],
            [piece] * ranges,
            b"round %d" % number,
        )
        expect(status == Status.OK, f"round {number}: {status.name}")
        rig.until(lambda: len(rig.b.notices) > number, f"notification {number} arrives")  # noqa: B023 - used at once
        expect(not early, f"{early[:1]} came before its bytes")
        rig.finish(rig.a, request)


@case("T6.2", "each notification arrives exactly once, unchanged, under the right peer handle")
def once_each(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    ours, theirs = rig.connect()
    wanted = [b"write %d" % number for number in range(32)]
    for payload in wanted:
        rig.a.write(ours, source, target, payload)
    rig.until(lambda: len(rig.b.notices) >= len(wanted), "32 notifications arrive")
    rig.finish_all(rig.a)
    rig.settle()
    got = sorted(payload for _, payload in rig.b.notices)
    expect(got == sorted(wanted), f"{len(got)} notifications arrived: not what was sent")
    peers = {peer for peer, _ in rig.b.notices}
    expect(peers == {theirs}, f"they name peers {sorted(peers)}, this link is {theirs}")
    expect(rig.a.notices == [], "the initiator got notifications itself")


@case("T6.3", "a write without a notification gives none")
def none_asked(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    rig.finish(rig.a, rig.a.write(peer, source, target))
    rig.settle()
    expect(rig.b.notices == [], f"got {rig.b.notices!r}")


@case("T6.4", "a notification travels alone, in both directions")
def alone(rig: Rig) -> None:
    ours, theirs = rig.connect()
    rig.a.must("send_notification", ours, b"to b")
    rig.b.must("send_notification", theirs, b"to a")
    rig.until(lambda: bool(rig.a.notices and rig.b.notices), "both arrive")
    rig.settle()
    expect(rig.b.notices == [(theirs, b"to b")], f"b got {rig.b.notices!r}")
    expect(rig.a.notices == [(ours, b"to a")], f"a got {rig.a.notices!r}")


@case("T6.5", "poll_notifications gives at most as many as asked for, and the rest later")
def bounded_poll(rig: Rig) -> None:
    peer = rig.connect()[0]
    for number in range(10):
        rig.a.must("send_notification", peer, b"%d" % number)
    seen: list[bytes] = []

    def step() -> bool:
        taken = rig.b.must("poll_notifications", 3)
        expect(len(taken) <= 3, f"asked for 3, got {len(taken)}")
        seen.extend(payload for _, payload in taken)
        rig.a.poll()
        return len(seen) >= 10

    rig.wait(step, "10 notifications arrive")
    expect(sorted(seen) == [b"%d" % number for number in range(10)], f"got {seen!r}")


@case("T6.6", "a failed or refused operation never notifies")
def not_after_failure(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    status, request = rig.a.post(
        peer, [source.base], [target.base + target.length], [source.length], b"done"
    )
    if status == Status.OK:
        expect(rig.finish(rig.a, request) != Status.OK, "a write past the region's end ended OK")
    rig.settle()
    expect(rig.b.notices == [], f"got {rig.b.notices!r}")


@case("T12.1", "payloads are binary and come whole, from 1 to 65536 bytes")
def payloads(rig: Rig) -> None:
    source, target = rig.a.region(64), rig.b.region(64)
    peer = rig.connect()[0]
    wanted = [b"\x00", b"\xff", bytes(256), bytes(range(256)), b"\xc3\x28", b"|:\n\r\x00;"]
    wanted += [pattern(1, 4096), bytes(65536), pattern(2, 65536)]
    for number, payload in enumerate(wanted):
        rig.a.must("send_notification", peer, payload)
        rig.until(lambda: len(rig.b.notices) > 2 * number, "a notification alone arrives")  # noqa: B023 - used at once
        rig.a.write(peer, source, target, payload)
        rig.until(lambda: len(rig.b.notices) > 2 * number + 1, "a write's notification arrives")  # noqa: B023 - used at once
        for _, got in rig.b.notices[-2:]:
            expect(got == payload, f"payload {number}: {len(payload)} bytes came as {got[:32]!r}")


@case("T12.2", "what cannot be a notification is refused, not cut and not lost")
def impossible_payloads(rig: Rig) -> None:
    peer = rig.connect()[0]
    for payload in (b"", bytes(4 << 20)):
        before = len(rig.b.notices)
        status = rig.a.call("send_notification", peer, payload)
        if status == Status.OK:
            rig.until(lambda: len(rig.b.notices) > before, f"{len(payload)} bytes arrive")  # noqa: B023 - used at once
            expect(rig.b.notices[-1][1] == payload, f"{len(payload)} bytes arrived changed")
    for other in (None, "text", 7):
        status = rig.a.call("send_notification", peer, other)
        expect(status != Status.OK, f"{type(other).__name__} was taken as a notification")
