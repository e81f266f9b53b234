"""Cases on rule 9: lists of every length, ranges of every size, any alignment."""

from __future__ import annotations

from typing import Final

import numpy as np

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Region, Rig, pattern
from kvxfer.status import Status

_COUNTS: Final = (1, 2, 3, 64, 1000, 16_384, 131_072)
_SLOT: Final = 32
_GUARD: Final = 0xA5
_CHUNK: Final = 16 << 20


@case("T9.10", "lists of 1 to 131072 scattered ranges in one post", failures="C")
def list_lengths(rig: Rig) -> None:
    size = _COUNTS[-1] * _SLOT
    source, target = rig.a.region(size), rig.b.region(size)
    data = np.frombuffer(pattern(3, size), dtype=np.uint8)
    source.fill(data.tobytes())
    peer, theirs = rig.connect()
    for count in _COUNTS:
        chance = np.random.default_rng(count)
        length = chance.integers(1, _SLOT, count)
        local = np.arange(count) * _SLOT + chance.integers(0, _SLOT - length + 1)
        remote = chance.permutation(count) * _SLOT + chance.integers(0, _SLOT - length + 1)
        target.fill(bytes([_GUARD]) * size)
        status, request = rig.a.post(
            peer,
            (local + source.base).tolist(),
            (remote + target.base).tolist(),
            length.tolist(),
            b"%d" % count,
        )
        expect(status == Status.OK, f"{count} ranges: {status.name} ({rig.a.call('last_error')})")
        wanted = np.full(size, _GUARD, dtype=np.uint8)
        step = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
        wanted[np.repeat(remote, length) + step] = data[np.repeat(local, length) + step]
        end = rig.finish(rig.a, request)
        expect(end == Status.OK, f"{count} ranges: ended with {end.name}")
        note = (theirs, b"%d" % count)
        rig.until(lambda: note in rig.b.notices, f"the notification of {count} ranges")  # noqa: B023 - used at once
        wrong = np.flatnonzero(np.frombuffer(target.content(), dtype=np.uint8) != wanted)
        expect(len(wrong) == 0, f"{count} ranges: {len(wrong)} bytes differ, first at {wrong[:1]}")


def _fill(region: Region, length: int, seed: int) -> None:
    """Chunk by chunk, each with bytes of its own."""
    data = np.frombuffer(pattern(seed, min(_CHUNK, length)), dtype=np.uint8)
    for number, at in enumerate(range(0, length, _CHUNK)):
        piece = data[: min(_CHUNK, length - at)]
        region.fill((piece + np.uint8(number % 256)).tobytes(), at)


@case("T9.11", "ranges of 1 byte to 64 MiB (1 GiB in a long run), none aligned")
def range_sizes(rig: Rig) -> None:
    largest = (1 << 30) if rig.long else (64 << 20)
    sizes = [1, 2, 3, 7, 63, 64, 65, 4095, 4096, 4097, 65_535, 65_537, 1_048_577, largest]
    source, target = rig.a.region(largest + 4096), rig.b.region(largest + 4096)
    _fill(source, source.length, 5)
    peer, theirs = rig.connect()
    for size in sizes:
        start, to = 13, 7
        before = target.content(0, to), target.content(to + size, 64)
        status, request = rig.a.post(
            peer, [source.base + start], [target.base + to], [size], b"%d" % size
        )
        expect(status == Status.OK, f"{size} bytes: {status.name} ({rig.a.call('last_error')})")
        note = (theirs, b"%d" % size)
        rig.until(lambda: note in rig.b.notices, f"the notification of {size} bytes")  # noqa: B023 - used at once
        end = rig.finish(rig.a, request)
        expect(end == Status.OK, f"{size} bytes: ended with {end.name}")
        for at in range(0, size, _CHUNK):
            length = min(_CHUNK, size - at)
            same = target.content(to + at, length) == source.content(start + at, length)
            expect(same, f"{size} bytes: they differ behind offset {at}")
        after = target.content(0, to), target.content(to + size, 64)
        expect(after == before, f"{size} bytes: something beside them changed")
    rig.measure("largest_bytes", largest)


@case("T9.12", "every alignment of source and target against each other")
def alignments(rig: Rig) -> None:
    lengths = (1, 3, 8, 64, 127, 4097)
    slot = 8192
    entries = [(at, length) for length in lengths for at in range(0, 64, 3)]
    size = slot * len(entries)
    source, target = rig.a.region(size), rig.b.region(size)
    data = pattern(9, size)
    source.fill(data)
    target.fill(bytes([_GUARD]) * size)
    peer = rig.connect()[0]
    starts = [number * slot + at for number, (at, _) in enumerate(entries)]
    stops = [number * slot + 63 - at for number, (at, _) in enumerate(entries)]
    status, request = rig.a.post(
        peer,
        [source.base + start for start in starts],
        [target.base + stop for stop in stops],
        [length for _, length in entries],
    )
    expect(status == Status.OK, f"post_write: {status.name}")
    expect(rig.finish(rig.a, request) == Status.OK, "the write failed")
    wanted = bytearray([_GUARD]) * size
    for start, stop, (_, length) in zip(starts, stops, entries):
        wanted[stop : stop + length] = data[start : start + length]
    rig.until(lambda: target.content() == wanted, "exactly these bytes arrive")


@case("T9.13", "a session reaches its own memory through a peer that is itself")
def itself(rig: Rig) -> None:
    size = 256 << 10
    source, target = rig.a.region(size), rig.a.region(size)
    source.fill(pattern(1, size))
    one, other = rig.connect(rig.a, rig.a)
    end = rig.finish(rig.a, rig.a.write(one, source, target, b"to myself"))
    expect(end == Status.OK, f"ended with {end.name}")
    rig.until(lambda: rig.a.notices == [(other, b"to myself")], "it is notified")
    expect(target.content() == source.content(), "bytes did not arrive")
