"""Cases on handles over a long life: leaks, many peers, and the end in every state."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Region, Rig, Side, pattern
from kvxfer.status import Status
from kvxfer.transport.caps import Caps

_SIZE: Final = 64 << 10
_GROWTH_BYTES: Final = 24 << 20
"""Growth of this process over all rounds that a run's own book-keeping and heap may explain."""
_BOX_S: Final = 4.0
"""A short run does no more rounds of what is slow than fit into this."""
_WARM: Final = 5
"""Rounds of a short run after which files and memory are what they will be."""
_PEERS: Final = 64
_CONNECT_S: Final = 5.0
"""Two connects may set things up; as long as this they can only have waited for somebody."""


def _descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _no_leak(rig: Rig, rounds: int, one: Callable[[int], None], name: str) -> None:
    """Run `one` again and again; after a first few, files and memory must not grow."""
    warm = rounds // 10 if rig.long else _WARM
    end = time.monotonic() + _BOX_S
    files = memory = done = 0
    for number in range(rounds):
        if number == warm:
            files, memory = _descriptors(), _resident()
        if not rig.long and number > 2 * warm and time.monotonic() > end:
            break
        one(number)
        done += 1
    # An end may take its time behind the call that asked for it; in the end it must have come.
    rig.reaches(lambda: _descriptors() - files <= 2)
    grown_files, grown = _descriptors() - files, _resident() - memory
    rig.measure(f"{name}_rounds", done)
    rig.measure(f"{name}_descriptors", grown_files)
    rig.measure(f"{name}_bytes", grown)
    expect(grown_files <= 2, f"{name}: {grown_files} more descriptors open after {done} rounds")
    expect(grown < _GROWTH_BYTES, f"{name}: {grown} bytes more in memory after {done} rounds")


@case("T4.3", "registering, writing and dropping leaves nothing behind", failures="P")
def regions_do_not_leak(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)
    peer = rig.connect()[0]
    allocates = Caps.ALLOCATE in rig.a.caps()

    def one(_number: int) -> None:
        handle = rig.a.must("register_region", source.buffer.memory)
        rig.a.must("deregister_region", handle)
        if allocates:
            region = rig.a.allocate(_SIZE)
            region.fill(bytes(_SIZE))
            rig.a.must("deregister_region", region.handle)
        rig.finish(rig.a, rig.a.write(peer, source, target, b"round"))
        rig.turn()
        rig.b.notices.clear()

    _no_leak(rig, rig.rounds(500, 10_000), one, "regions")


@case("T4.4", "peers that come and go leave nothing behind", failures="P")
def peers_do_not_leak(rig: Rig) -> None:
    source, target = rig.a.region(_SIZE), rig.b.region(_SIZE)

    def one(number: int) -> None:
        ours, theirs = rig.connect()
        if number % 8 == 0:
            end = rig.finish(rig.a, rig.a.write(ours, source, target))
            expect(end == Status.OK, f"round {number}: ended with {end.name}")
        rig.a.must("peer_destroy", ours)
        rig.b.must("peer_destroy", theirs)
        rig.turn()

    _no_leak(rig, rig.rounds(500, 10_000), one, "peers")


@case("T4.5", "sessions that are opened and closed leave nothing behind", failures="P")
def sessions_do_not_leak(rig: Rig) -> None:
    target = rig.b.region(4096)

    def one(_number: int) -> None:
        side = rig.third()
        source = side.region(4096)
        ours, theirs = rig.connect(side, rig.b)
        expect(rig.finish(side, side.write(ours, source, target)) == Status.OK, "a write")
        side.close()
        rig.sides.remove(side)
        rig.b.must("peer_destroy", theirs)

    _no_leak(rig, rig.rounds(200, 2000), one, "sessions")


@case("T10.7", "64 peers at a time: each gets its own bytes and its own notification", failures="K")
def many_peers(rig: Rig) -> None:
    """64 links between two sessions; in a long run between 64 sessions and one."""
    size = 4096
    source, target = rig.a.region(size * _PEERS), rig.b.region(size * _PEERS)
    source.fill(pattern(4, size * _PEERS))
    writers = [rig.a] * _PEERS
    if rig.long:
        writers = [rig.third() for _ in range(_PEERS)]
        for side in writers:
            side.must("register_region", source.buffer.memory)
    links = [(side, *rig.connect(side, rig.b)) for side in writers]
    for number, (side, ours, _) in enumerate(links):
        at = number * size
        columns = [source.base + at], [target.base + at], [size]
        status, _ = side.post(ours, *columns, b"%d" % number)
        expect(status == Status.OK, f"peer {number}: {status.name}")
    ends = {end for side in set(writers) for end in rig.finish_all(side)}
    expect(ends == {Status.OK}, f"ended with {sorted(ends)}")
    rig.until(lambda: len(rig.b.notices) >= _PEERS, "64 notifications arrive")
    wanted = sorted((theirs, b"%d" % number) for number, (_, _, theirs) in enumerate(links))
    expect(sorted(rig.b.notices) == wanted, "a notification came under another peer's handle")
    expect(target.content() == source.content(), "bytes of some peer are missing")


def _states(side: Side, region: Region, target: Region) -> dict[str, Callable[[int], None]]:
    """Ways to leave a session in the middle of something; each takes a connected peer."""

    def write(peer: int) -> None:
        side.write(peer, region, target, b"in flight")

    def polled(peer: int) -> None:
        write(peer)
        side.poll()

    def fenced(peer: int) -> None:
        write(peer)
        side.call("fence_peer", peer)

    def cancelled(peer: int) -> None:
        write(peer)
        side.call("cancel", side.requests[-1])

    def dropped(peer: int) -> None:
        write(peer)
        side.must("deregister_region", region.handle)

    def destroyed(peer: int) -> None:
        write(peer)
        side.must("peer_destroy", peer)

    return {
        "connected": lambda _peer: None,
        "posted": write,
        "posted and polled": polled,
        "posted and fenced": fenced,
        "posted and cancelled": cancelled,
        "posted, region dropped": dropped,
        "posted, peer destroyed": destroyed,
        "notification sent": lambda peer: side.must("send_notification", peer, b"x"),
        "notification waits": lambda _peer: None,
    }


@case("T7.4", "a session can be closed in every state, and the other end goes on", failures="P")
def closed_in_each_state(rig: Rig) -> None:
    target = rig.b.region(_SIZE)
    bare = rig.third()
    bare.close()
    unconnected = rig.third()
    unconnected.region(4096)
    unconnected.must("peer_create")
    unconnected.close()
    for number in itertools.count():
        side = rig.third()
        region = side.region(_SIZE)
        states = list(_states(side, region, target).items())
        if number == len(states):
            break
        name, reach = states[number]
        ours, theirs = rig.connect(side, rig.b)
        if name == "notification waits":
            rig.b.must("send_notification", theirs, b"unread")
        reach(ours)
        status = side.call("close")
        expect(status == Status.OK, f"{name}: close gave {status.name}")
        side.closed = True
        rig.b.poll()
        rig.b.take_notices()
    # The other end has seen all of it and still works.
    source = rig.a.region(_SIZE)
    source.fill(pattern(1, _SIZE))
    peer = rig.connect()[0]
    end = rig.finish(rig.a, rig.a.write(peer, source, target))
    expect(end == Status.OK, f"afterwards a write ended with {end.name}")


@case(
    "T7.5",
    "after close nothing lands in the session's memory, not even what was posted before",
    needs=Caps.WRITE | Caps.CLOSE_FENCES,
    failures="AP",
)
def close_fences(rig: Rig) -> None:
    size = 4 << 20
    source, target = rig.a.region(size), rig.b.region(size)
    source.fill(pattern(1, size))
    peer = rig.connect()[0]
    for _ in range(8):
        rig.a.write(peer, source, target)
    rig.b.close()
    owner = pattern(2, size)
    target.fill(owner)
    rig.settle()
    rig.a.post(peer, [source.base], [target.base], [size])
    rig.settle()
    expect(target.content() == owner, "bytes landed after close had said OK")


@case("T2.3", "connecting waits for nobody: the other side may never call anything", failures="K")
def connect_alone(rig: Rig) -> None:
    started = time.monotonic()
    blobs = [rig.b.must("peer_create")[1] for _ in range(2)]
    for blob in blobs:
        ours = rig.a.must("peer_create")[0]
        rig.a.must("peer_connect", ours, blob)
    took_s = time.monotonic() - started
    rig.measure("connects_s", took_s)
    expect(took_s < _CONNECT_S, f"two connects took {took_s:.1f} s: nothing waits for a peer")
