"""Cases on rule 6 under load: bytes before their notification, thousands of times."""

from __future__ import annotations

import struct
from typing import Final

import attrs
import numpy as np

from kvxfer.conformance.case import NotSupportedError, case, expect
from kvxfer.conformance.rig import Region, Rig, pattern
from kvxfer.status import Status
from kvxfer.transport.caps import Caps

_LANES: Final = 8
_LANE_BYTES: Final = 16 << 10
_PIECES: Final = 4
_VISIBLE: Final = Caps.WRITE | Caps.NOTIFY_AFTER_VISIBLE
_NOTE: Final = struct.Struct("<II")


@attrs.define
class _Lanes:
    """Writes of many lanes at a time; a lane is used again only when all of it is over."""

    rig: Rig
    source: Region
    target: Region
    peer: int
    base: np.ndarray = attrs.field(
        factory=lambda: np.frombuffer(pattern(11, _LANE_BYTES), dtype=np.uint8)
    )
    wrong: list[str] = attrs.field(factory=list)
    arrived: dict[int, int] = attrs.field(factory=dict)
    posted: dict[int, int] = attrs.field(factory=dict)

    def bytes_of(self, number: int) -> bytes:
        """Every byte differs from that of the round before."""
        return (self.base + np.uint8(number % 256)).tobytes()

    def look(self, payload: bytes) -> None:
        """Called as soon as a notification is out of the table: all bytes must be there."""
        lane, number = _NOTE.unpack(payload)
        got = self.target.content(lane * _LANE_BYTES, _LANE_BYTES)
        if got != self.bytes_of(number):
            differing = sum(1 for one, other in zip(got, self.bytes_of(number)) if one != other)
            self.wrong.append(f"lane {lane}, round {number}: {differing} bytes were not there yet")
        if lane in self.arrived:
            self.wrong.append(f"lane {lane}: round {number} came while another one had not gone")
        self.arrived[lane] = number

    def post(self, lane: int, number: int) -> None:
        offset = lane * _LANE_BYTES
        self.source.fill(self.bytes_of(number), offset)
        piece = _LANE_BYTES // _PIECES
        # Pieces the wrong way round at the target's side of the list: nothing can be joined.
        places = [offset + at * piece for at in (2, 0, 3, 1)]
        status, request = self.rig.a.post(
            self.peer,
            [self.source.base + place for place in places],
            [self.target.base + place for place in places],
            [piece] * _PIECES,
            _NOTE.pack(lane, number),
        )
        expect(status == Status.OK, f"round {number}: {status.name}")
        self.posted[lane] = request

    def over(self, lane: int) -> bool:
        return lane in self.arrived and bool(self.rig.a.ends[self.posted[lane]])


def _order_under_load(rig: Rig, rounds: int) -> None:
    size = _LANES * _LANE_BYTES
    source, target = rig.a.region(size), rig.b.region(size)
    lanes = _Lanes(rig, source, target, rig.connect()[0])
    rig.b.on_notice = lanes.look
    for lane in range(_LANES):
        lanes.post(lane, lane)
    for number in range(_LANES, rounds):
        rig.until(lambda: any(lanes.over(lane) for lane in range(_LANES)), f"round {number}")
        expect(not lanes.wrong, "; ".join(lanes.wrong[:3]))
        lane = next(lane for lane in range(_LANES) if lanes.over(lane))
        end = rig.a.ends[lanes.posted[lane]]
        expect(end == [Status.OK], f"round {number}: ended with {end}")
        del lanes.arrived[lane]
        lanes.post(lane, number)
    rig.until(lambda: all(lanes.over(lane) for lane in range(_LANES)), "the last rounds")
    rig.settle()
    expect(not lanes.wrong, "; ".join(lanes.wrong[:3]))
    got = len(rig.b.notices)
    expect(got == rounds, f"{got} notifications of {rounds} writes")
    rig.measure("rounds", rounds)


@case(
    "T6.7",
    "under load each notification finds every byte of its write, thousands of times",
    needs=_VISIBLE,
    failures="Q",
)
def order_under_load(rig: Rig) -> None:
    _order_under_load(rig, rig.rounds(2000, 50_000))


@case(
    "T6.8",
    "the same between two processes",
    needs=_VISIBLE,
    failures="Q",
    far=True,
)
def order_under_load_far(rig: Rig) -> None:
    _order_under_load(rig, rig.rounds(1000, 20_000))


@case(
    "T6.9", "without TARGET_MUST_PROGRESS a write ends while its target calls nothing", failures="K"
)
def target_is_idle(rig: Rig) -> None:
    if Caps.TARGET_MUST_PROGRESS in rig.b.caps():
        raise NotSupportedError("declares TARGET_MUST_PROGRESS")
    source, target = rig.a.region(1 << 20), rig.b.region(1 << 20)
    peer = rig.connect()[0]
    # The first write may set the connection up with the help of both.
    expect(rig.finish(rig.a, rig.a.write(peer, source, target)) == Status.OK, "the first write")
    source.fill(pattern(1, 1 << 20))
    request = rig.a.write(peer, source, target)

    def only_a() -> bool:
        rig.a.poll()
        return bool(rig.a.ends[request])

    rig.wait(only_a, "the write ends")
    expect(rig.a.ends[request] == [Status.OK], f"ended with {rig.a.ends[request]}")
    rig.wait(lambda: target.content() == source.content(), "the bytes arrive")


@case(
    "T6.10",
    "under load each read's completion finds every byte of it",
    needs=Caps.READ,
    failures="Q",
)
def reads_under_load(rig: Rig) -> None:
    size = _LANES * _LANE_BYTES
    local, remote = rig.a.region(size), rig.b.region(size)
    peer = rig.connect()[0]
    rounds = rig.rounds(200, 2000)
    for number in range(rounds):
        data = pattern(number, size)
        remote.fill(data)
        piece = size // _LANES
        for lane in range(_LANES):
            status, _ = rig.a.post(
                peer,
                [local.base + lane * piece],
                [remote.base + lane * piece],
                [piece],
                slot="post_read",
            )
            expect(status == Status.OK, f"round {number}: {status.name}")
        ends = rig.finish_all(rig.a)
        expect(set(ends) == {Status.OK}, f"round {number}: ended with {sorted(set(ends))}")
        expect(local.content() == data, f"round {number}: the completions came before the bytes")
    rig.measure("rounds", rounds)
