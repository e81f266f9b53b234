"""Cases on rule 11: an operation touches registered memory only."""

from __future__ import annotations

import attrs

from kvxfer.conformance.case import NonStrictError, case, expect
from kvxfer.conformance.rig import Rig, pattern
from kvxfer.status import Status, is_never_posted, is_region_error
from kvxfer.transport.caps import Caps

_NO_HANDLE = (1 << 63) - 1
_TOP = (1 << 64) - 1


@case("T11.1", "a range outside the peer's regions is never posted, whatever the numbers are")
def remote_bounds(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    end = target.base + 4096
    for name, start, length in (
        ("one byte over the end", end - 63, 64),
        ("starts at the end", end, 64),
        ("starts before the region", target.base - 1, 64),
        ("address 0", 0, 64),
        ("highest address", _TOP, 64),
    ):
        status, _ = rig.a.post(peer, [source.base], [start], [length])
        expect(is_never_posted(status), f"{name}: {status.name}")
    # A length so large that address + length wraps round to something inside.
    status, _ = rig.a.post(peer, [source.base], [target.base], [_TOP - target.base + 2])
    expect(is_never_posted(status), f"length that wraps: {status.name}")
    rig.settle()
    expect(target.content() == bytes(4096), "a refused post wrote bytes")


@case("T11.2", "a range outside the session's own regions is never posted")
def local_bounds(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    for name, start in (
        ("one byte over the end", source.base + 4096 - 63),
        ("starts before the region", source.base - 1),
        ("address 0", 0),
    ):
        status, _ = rig.a.post(peer, [start], [target.base], [64])
        expect(is_never_posted(status), f"{name}: {status.name}")
    rig.settle()
    expect(target.content() == bytes(4096), "a refused post wrote bytes")


@case("T11.3", "a deregistered region of the session itself refuses later posts")
def local_deregistered(rig: Rig) -> None:
    keep, gone, target = rig.a.region(4096), rig.a.region(4096), rig.b.region(4096)
    gone.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    rig.a.must("deregister_region", gone.handle)
    status, _ = rig.a.post(peer, [gone.base], [target.base], [4096])
    expect(is_never_posted(status), f"post_write from it: {status.name}")
    end = rig.finish(rig.a, rig.a.write(peer, keep, target))
    expect(end == Status.OK, f"the region that is left: {end.name}")


@case("T11.4", "writes to a region that its owner has deregistered do not succeed")
def remote_deregistered(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    rig.b.must("deregister_region", target.handle)
    status, request = rig.a.post(peer, [source.base], [target.base], [4096])
    if status != Status.OK:
        return
    if not rig.reaches(lambda: bool(rig.a.ends[request])):
        raise NonStrictError("the request does not end within the deadline")
    if rig.a.ends[request][0] == Status.OK:
        raise NonStrictError("the write was reported as done: this network checks no keys")


@case("T11.5", "region handles that are unknown or used up are told apart from live ones")
def region_handles(rig: Rig) -> None:
    region = rig.a.region(4096)
    status = rig.a.call("deregister_region", _NO_HANDLE)
    expect(is_region_error(status), f"a handle never given: {status.name}")
    rig.a.must("deregister_region", region.handle)
    status = rig.a.call("deregister_region", region.handle)
    expect(is_region_error(status), f"a handle used up: {status.name}")


@case("T11.6", "the same memory may be registered twice, and one of the two taken back")
def registered_twice(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    second = rig.b.must("register_region", target.buffer.memory)
    expect(second != target.handle, "two registrations have one handle")
    peer = rig.connect()[0]
    rig.b.must("deregister_region", second)
    end = rig.finish(rig.a, rig.a.write(peer, source, target))
    expect(end == Status.OK, f"the write ended with {end.name}")
    rig.until(lambda: target.content() == source.content(), "bytes arrive")


@case(
    "T11.7",
    "after revoke_region nothing lands in it, not even what was posted before",
    needs=Caps.WRITE | Caps.REVOKE_REGION,
)
def revoked(rig: Rig) -> None:
    size = 1 << 20
    source, target, other = rig.a.region(size), rig.b.region(size), rig.b.region(4096)
    source.fill(pattern(1, size))
    peer = rig.connect()[0]
    for _ in range(8):
        rig.a.write(peer, source, target)
    rig.until(
        lambda: rig.b.call("revoke_region", target.handle) == Status.OK, "the region is revoked"
    )
    owner = pattern(2, size)
    target.fill(owner)
    rig.settle()
    rig.a.post(peer, [source.base], [target.base], [size])
    rig.finish_all(rig.a)
    rig.settle()
    expect(target.content() == owner, "bytes landed after revoke_region had said OK")
    status, request = rig.a.post(peer, [source.base], [other.base], [4096])
    expect(status == Status.OK, f"another region of the same peer: {status.name}")
    expect(rig.finish(rig.a, request) == Status.OK, "another region of the same peer failed")


@case(
    "T11.8",
    "a region dropped while posted: the request ends once, whichever end drops it",
    failures="AP",
)
def dropped_while_posted(rig: Rig) -> None:
    size = 4 << 20
    peer = None
    for end in ("source", "target"):
        source, target = rig.a.region(size), rig.b.region(size)
        peer = rig.connect()[0]
        requests = [rig.a.write(peer, source, target, b"dropped") for _ in range(4)]
        side, region = (rig.a, source) if end == "source" else (rig.b, target)
        rig.turn()
        status = side.call("deregister_region", region.handle)
        expect(status == Status.OK, f"deregister_region while posted: {status.name}")
        for request in requests:
            rig.finish(rig.a, request)
        rig.settle()
        again = [request for request in requests if len(rig.a.ends[request]) != 1]
        expect(not again, f"requests that did not end exactly once: {again}")
    keep, other = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    status = rig.finish(rig.a, rig.a.write(peer, keep, other))
    expect(status == Status.OK, f"afterwards a write ended with {status.name}")


@case("T11.9", "overlapping and repeated registrations live and end on their own", failures="M")
def overlapping(rig: Rig) -> None:
    whole, target = rig.a.region(16384), rig.b.region(16384)
    whole.fill(pattern(1, 16384))
    memory = whole.buffer.memory
    part = attrs.evolve(memory, base=memory.base + 4096, length=8192)
    handles = [rig.a.must("register_region", one) for one in (memory, part, part)]
    expect(len(set(handles)) == 3, "two registrations have one handle")
    peer = rig.connect()[0]

    def write(start: int, length: int) -> Status:
        status, request = rig.a.post(peer, [whole.base + start], [target.base + start], [length])
        return rig.finish(rig.a, request) if status == Status.OK else status

    expect(write(0, 16384) == Status.OK, "the whole")
    for handle in (whole.handle, handles[0]):
        rig.a.must("deregister_region", handle)
    expect(write(4096, 8192) == Status.OK, "the part, whose own registration stands")
    expect(is_never_posted(write(0, 4096)), "what only the dropped registrations covered")
    rig.a.must("deregister_region", handles[1])
    expect(write(4096, 8192) == Status.OK, "the part, registered once more")
    rig.a.must("deregister_region", handles[2])
    expect(is_never_posted(write(4096, 8192)), "the part, without any registration")


@case(
    "T11.10",
    "memory registered anew is another region: an old link does not reach it",
    failures="AM",
)
def wrong_generation(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    source.fill(pattern(1, 4096))
    old = rig.connect()[0]
    rig.b.must("deregister_region", target.handle)
    rig.b.must("register_region", target.buffer.memory)
    fresh = rig.connect()[0]
    status, request = rig.a.post(old, [source.base], [target.base], [4096], b"old")
    if status == Status.OK:
        if not rig.reaches(lambda: bool(rig.a.ends[request])):
            raise NonStrictError("the request does not end within the deadline")
        status = rig.a.ends[request][0]
    rig.settle()
    if status == Status.OK or target.content() != bytes(4096):
        raise NonStrictError("an old link writes into memory that was registered anew")
    end = rig.finish(rig.a, rig.a.write(fresh, source, target))
    expect(end == Status.OK, f"the fresh link: ended with {end.name}")
    rig.until(lambda: target.content() == source.content(), "its bytes arrive")


@case("T11.11", "a read outside the peer's regions is never posted", needs=Caps.READ, failures="M")
def read_bounds(rig: Rig) -> None:
    local, remote = rig.a.region(4096), rig.b.region(4096)
    remote.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    for name, into, start, length in (
        ("one byte over the end", local.base, remote.base + 4096 - 63, 64),
        ("starts before the region", local.base, remote.base - 1, 64),
        ("address 0", local.base, 0, 64),
        ("into memory that is not ours", local.base + 4096 - 63, remote.base, 64),
        ("length that wraps", local.base, remote.base, _TOP - remote.base + 2),
    ):
        status, _ = rig.a.post(peer, [into], [start], [length], slot="post_read")
        expect(is_never_posted(status), f"{name}: {status.name}")
    rig.settle()
    expect(local.content() == bytes(4096), "a refused read moved bytes")
