"""Cases on rule 11: an operation touches registered memory only."""

from __future__ import annotations

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
