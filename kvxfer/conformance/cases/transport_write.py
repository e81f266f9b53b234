"""Cases on rule 9: the bytes of an operation, all of them and no others."""

from __future__ import annotations

import random

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Region, Rig, pattern
from kvxfer.status import Status
from kvxfer.transport.caps import Caps

_GUARD = 0xA5
_Ranges = list[tuple[int, int, int]]
"""(source offset, target offset, length)."""


def _scattered(seed: int, count: int, size: int) -> _Ranges:
    """Ranges of odd lengths in random order, targets disjoint."""
    chance = random.Random(seed)
    slot = size // count
    places = list(range(count))
    chance.shuffle(places)
    ranges = []
    for at, place in enumerate(places):
        length = chance.randint(1, slot - 1)
        ranges.append((at * slot, place * slot + chance.randint(0, slot - length - 1), length))
    return ranges


def _expected(source: bytes, size: int, ranges: _Ranges) -> bytes:
    """Byte by byte what the target must hold; the guard wherever nothing was written."""
    wanted = bytearray([_GUARD]) * size
    for start, to, length in ranges:
        wanted[to : to + length] = source[start : start + length]
    return bytes(wanted)


def _differing(got: bytes, wanted: bytes) -> str:
    wrong = [at for at in range(len(wanted)) if got[at] != wanted[at]]
    return f"{len(wrong)} of {len(wanted)} bytes differ, the first at offset {wrong[0]}"


def _move(rig: Rig, slot: str, local: Region, remote: Region, ranges: _Ranges) -> None:
    """Post `ranges` from the source end to the target end, whichever is local, and check."""
    peer = rig.connect()[0]
    writes = slot == "post_write"
    source, target = (local, remote) if writes else (remote, local)
    source.fill(pattern(7, source.length))
    target.fill(bytes([_GUARD]) * target.length)
    starts = [source.base + start for start, _, _ in ranges]
    stops = [target.base + to for _, to, _ in ranges]
    lengths = [length for _, _, length in ranges]
    columns = (starts, stops) if writes else (stops, starts)
    status, request = rig.a.post(peer, *columns, lengths, slot=slot)
    expect(status == Status.OK, f"{slot}: {status.name} ({rig.a.call('last_error')})")
    end = rig.finish(rig.a, request)
    expect(end == Status.OK, f"ended with {end.name}")
    # A completion speaks of this end; what the other end sees may take a moment more.
    wanted = _expected(source.content(), target.length, ranges)
    rig.reaches(lambda: target.content() == wanted)
    got = target.content()
    expect(got == wanted, _differing(got, wanted) if got != wanted else "")


@case("T9.1", "many scattered ranges of odd sizes: every byte of them, and nothing beside")
def scattered(rig: Rig) -> None:
    size = 256 << 10
    _move(rig, "post_write", rig.a.region(size), rig.b.region(size), _scattered(1, 200, size))


@case("T9.2", "4096 ranges in one post")
def many_ranges(rig: Rig) -> None:
    size = 1 << 20
    _move(rig, "post_write", rig.a.region(size), rig.b.region(size), _scattered(2, 4096, size))


@case("T9.3", "one large range")
def large_range(rig: Rig) -> None:
    size = 16 << 20
    _move(rig, "post_write", rig.a.region(size), rig.b.region(size), [(1, 3, size - 5)])


@case("T9.4", "ranges of one byte, neighbours included")
def single_bytes(rig: Rig) -> None:
    size = 512
    ranges = [(at, size - 1 - at, 1) for at in range(256)]
    _move(rig, "post_write", rig.a.region(size), rig.b.region(size), ranges)


@case("T9.5", "one source range may be written to many places")
def fan_out(rig: Rig) -> None:
    ranges = [(0, at * 128, 100) for at in range(32)]
    _move(rig, "post_write", rig.a.region(4096), rig.b.region(4096), ranges)


@case("T9.6", "ranges of several regions on both sides in one post")
def several_regions(rig: Rig) -> None:
    sources = [rig.a.region(4096) for _ in range(3)]
    targets = [rig.b.region(4096) for _ in range(3)]
    peer = rig.connect()[0]
    for number, source in enumerate(sources):
        source.fill(pattern(number, 4096))
    status, request = rig.a.post(
        peer,
        [source.base for source in sources],
        [target.base for target in reversed(targets)],
        [4096] * 3,
    )
    expect(status == Status.OK, f"post_write: {status.name}")
    end = rig.finish(rig.a, request)
    expect(end == Status.OK, f"ended with {end.name}")
    for source, target in zip(sources, reversed(targets)):
        rig.until(lambda: target.content() == source.content(), "bytes arrive")  # noqa: B023 - used at once


@case("T9.7", "both ends write to each other at the same time")
def both_ways(rig: Rig) -> None:
    size = 64 << 10
    out, into = rig.a.region(size), rig.a.region(size)
    back, target = rig.b.region(size), rig.b.region(size)
    out.fill(pattern(1, size))
    back.fill(pattern(2, size))
    ours, theirs = rig.connect()
    for _ in range(4):
        rig.a.write(ours, out, target)
        rig.b.write(theirs, back, into)
    ends = rig.finish_all(rig.a) + rig.finish_all(rig.b)
    expect(set(ends) == {Status.OK}, f"ended with {sorted(set(ends))}")
    rig.until(lambda: target.content() == out.content(), "a's bytes arrive at b")
    rig.until(lambda: into.content() == back.content(), "b's bytes arrive at a")


@case("T9.8", "a read fetches scattered ranges exactly", needs=Caps.READ)
def read(rig: Rig) -> None:
    size = 256 << 10
    _move(rig, "post_read", rig.a.region(size), rig.b.region(size), _scattered(3, 200, size))


@case("T9.9", "a read's notification tells the owner of the memory", needs=Caps.READ)
def read_notifies(rig: Rig) -> None:
    local, remote = rig.a.region(4096), rig.b.region(4096)
    remote.fill(pattern(1, 4096))
    ours, theirs = rig.connect()
    status, request = rig.a.post(
        ours, [local.base], [remote.base], [4096], b"fetched", slot="post_read"
    )
    expect(status == Status.OK, f"post_read: {status.name}")
    end = rig.finish(rig.a, request)
    expect(end == Status.OK, f"ended with {end.name}")
    expect(local.content() == remote.content(), "the completion came before the bytes")
    rig.until(lambda: rig.b.notices == [(theirs, b"fetched")], "the owner is notified")
