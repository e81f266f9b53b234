"""Cases on rules 6 and 12: notifications, and their order after the bytes."""

from __future__ import annotations

import time

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


@case(
    "T12.3",
    "every size up to the limit comes whole; beyond the limit all are refused",
    failures="M",
)
def sizes(rig: Rig) -> None:
    source, target = rig.a.region(64), rig.b.region(64)
    peer = rig.connect()[0]
    largest = 0
    for size in sorted({1 << at for at in range(23)} | {(1 << at) + 1 for at in range(23)}):
        payload = pattern(size, size)
        before = len(rig.b.notices)
        status = rig.a.call("send_notification", peer, payload)
        posted, _ = rig.a.post(peer, [source.base], [target.base], [64], payload)
        expect(
            (status == Status.OK) == (posted == Status.OK),
            f"{size} bytes: alone {status.name}, with a write {posted.name}",
        )
        if status != Status.OK:
            expect(size > 65536, f"{size} bytes: {status.name}")
            continue
        expect(size == 1 or largest > 0, f"{size} bytes taken, fewer were refused")
        largest = size
        rig.until(lambda: len(rig.b.notices) == before + 2, f"{size} bytes arrive twice")  # noqa: B023 - used at once
        whole = all(got == payload for _, got in rig.b.notices[before:])
        expect(whole, f"{size} bytes: arrived changed")
        del rig.b.notices[before:]
    rig.measure("largest_bytes", largest)


@case(
    "T12.4", "a flood that nobody takes is bounded; what was taken arrives once each", failures="M"
)
def flood(rig: Rig) -> None:
    peer = rig.connect()[0]
    wanted = rig.rounds(2000, 200_000)
    taken = 0
    for number in range(wanted):
        status = rig.a.call("send_notification", peer, b"%d" % number + bytes(512))
        if status == Status.OK:
            taken += 1
        else:
            expect(status == Status.NO_RESOURCE, f"notification {number}: {status.name}")
            rig.a.poll()
    rig.until(lambda: len(rig.b.notices) >= taken, f"{taken} notifications arrive")
    rig.settle()
    numbers = [got.rstrip(b"\x00") for _, got in rig.b.notices]
    expect(len(numbers) == taken, f"{len(numbers)} arrived, {taken} were taken")
    expect(len(set(numbers)) == taken, "a notification arrived twice")
    rig.measure("refused", wanted - taken)


@case(
    "T12.5",
    "a flood towards a stopped peer blocks no call and loses nothing that was taken",
    failures="KM",
    far=True,
)
def flood_stopped(rig: Rig) -> None:
    peer = rig.connect()[0]
    rig.a.must("send_notification", peer, b"first")
    rig.until(lambda: len(rig.b.notices) == 1, "the first one arrives")
    rig.far.stop()
    rig.b.closed = True
    taken = 1
    for number in range(rig.rounds(1000, 100_000)):
        started = time.monotonic()
        status = rig.a.call("send_notification", peer, b"%d" % number + bytes(512))
        took_s = time.monotonic() - started
        rig.measure("call_s", took_s)
        expect(took_s < 2.0, f"send_notification took {took_s:.2f} s: nothing blocks (rule 2)")
        expect(status in (Status.OK, Status.NO_RESOURCE), f"to a stopped peer: {status.name}")
        taken += status == Status.OK
    rig.far.resume()
    rig.b.closed = False
    rig.until(lambda: len(rig.b.notices) >= taken, f"{taken} notifications arrive")
    rig.settle()
    expect(len(set(rig.b.notices)) == taken, f"{len(rig.b.notices)} arrived, {taken} were taken")
