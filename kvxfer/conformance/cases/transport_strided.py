"""Cases on rule 15: evenly spaced ranges in one entry."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Region, Rig, pattern, strided
from kvxfer.status import Status, is_never_posted
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Direction, Strided

_WRITE = Caps.WRITE | Caps.STRIDED
_READ = Caps.READ | Caps.STRIDED
_SIZE = 256 << 10
_GUARD = 0xA5
_Entry = tuple[int, int, int, int, int, int]

_SHAPES: tuple[_Entry, ...] = (
    # Source offset, target offset, length, count, source stride, target stride.
    (0, 0, 1, 1, 0, 0),
    (64, 32, 24, 100, 64, 32),
    (8000, 65536, 100, 64, 128, 1024),
    (20001, 4099, 7, 500, 9, 31),
    (131072, 140001, 4096, 3, 0, 5000),
    (100000, 200000, 1, 1000, 3, 1),
)
"""Targets do not overlap each other; a source may be read many times (stride 0)."""


def _move(rig: Rig, direction: Direction) -> None:
    local, remote = rig.a.region(_SIZE), rig.b.region(_SIZE)
    writes = direction is Direction.WRITE
    source, target = (local, remote) if writes else (remote, local)
    data = pattern(5, _SIZE)
    source.fill(data)
    target.fill(bytes([_GUARD]) * _SIZE)
    peer, theirs = rig.connect()
    entries = [
        (source.base + start, target.base + to, length, count, apart, apart_to)
        for start, to, length, count, apart, apart_to in _SHAPES
    ]
    if not writes:
        entries = [
            (to, at, length, n, to_apart, apart) for at, to, length, n, apart, to_apart in entries
        ]
    status, request = rig.a.post_strided(peer, strided(entries), b"moved", direction=direction)
    expect(status == Status.OK, f"post_strided: {status.name} ({rig.a.call('last_error')})")
    wanted = np.full(_SIZE, _GUARD, dtype=np.uint8)
    moved = np.frombuffer(data, dtype=np.uint8)
    for start, to, length, count, apart, apart_to in _SHAPES:
        for k in range(count):
            at, there = start + k * apart, to + k * apart_to
            wanted[there : there + length] = moved[at : at + length]
    end = rig.finish(rig.a, request)
    expect(end == Status.OK, f"ended with {end.name}")
    rig.until(lambda: rig.b.notices == [(theirs, b"moved")], "the notification arrives")
    got = np.frombuffer(target.content(), dtype=np.uint8)
    wrong = np.flatnonzero(got != wanted)
    expect(len(wrong) == 0, f"{len(wrong)} bytes differ, the first at offset {wrong[:1]}")


@case("T15.1", "a strided write moves its ranges exactly and nothing beside them", needs=_WRITE)
def strided_write(rig: Rig) -> None:
    _move(rig, Direction.WRITE)


@case("T15.2", "a strided read fetches its ranges exactly", needs=_READ)
def strided_read(rig: Rig) -> None:
    _move(rig, Direction.READ)


def _bad_entries(source: Region, target: Region) -> dict[str, _Entry]:
    top = (1 << 64) - 1
    at, to = source.base, target.base
    return {
        "the last range leaves the target": (at, to, 64, 65, 0, 64),
        "the last range leaves the source": (at, to, 64, 65, 64, 0),
        "no range": (at, to, 64, 0, 64, 64),
        "ranges of no bytes": (at, to, 0, 4, 64, 64),
        "a stride that wraps round to the start": (at, to, 64, 3, 64, 1 << 63),
        "a stride of nearly everything": (at, to, 64, 2, top, top),
        "more ranges than anybody can hold": (at, to, 1, 1 << 63, 0, 0),
        "address 0": (0, to, 64, 2, 64, 64),
    }


@case(
    "T15.3", "a strided post with one bad entry is never posted, whatever the numbers", needs=_WRITE
)
def strided_bounds(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    good = (source.base, target.base, 64, 4, 64, 64)
    for name, entry in _bad_entries(source, target).items():
        status, request = rig.a.post_strided(peer, strided([good, entry]), b"bad")
        if status == Status.OK and entry[2] == 0:
            # Ranges of no bytes may be taken and then move none (rule 9).
            rig.finish(rig.a, request)
            rig.until(lambda: bool(rig.b.notices), "the notification arrives")
            rig.b.notices.clear()
            target.fill(bytes(4096))
            continue
        expect(is_never_posted(status), f"{name}: {status.name}")
    rig.settle()
    expect(target.content() == bytes(4096), "a refused post wrote bytes")
    expect(rig.b.notices == [], "a refused post notified")


@case("T15.4", "malformed strided columns are never posted", needs=_WRITE)
def strided_columns(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    good = strided([(source.base, target.base, 64, 4, 64, 64)])
    bad: list[Any] = [None, 7, (1, 2, 3)]
    for field in attrs.fields(Strided):
        column = getattr(good, field.name)
        others: list[Any] = [column.astype(np.int64), np.repeat(column, 2), column.reshape(1, 1)]
        others += [[1], None]
        bad += [attrs.evolve(good, **{field.name: other}) for other in others]
    for columns in bad:
        status = rig.a.call("post_strided", peer, Direction.WRITE, columns, None)[0]
        expect(is_never_posted(status), f"{columns}: {Status(status).name}")
    for direction in (0, 3, None, "write"):
        status = rig.a.call("post_strided", peer, direction, good, None)[0]
        expect(is_never_posted(status), f"direction = {direction!r}: {Status(status).name}")
    rig.settle()
    expect(target.content() == bytes(4096), "a refused post wrote bytes")
