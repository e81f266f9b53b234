"""Cases on rule 14: memory of the transport's own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Rig, pattern
from kvxfer.status import Status, is_error, is_never_posted, is_region_error
from kvxfer.transport.caps import Caps

_NEEDS = Caps.WRITE | Caps.ALLOCATE | Caps.MEM_DRAM
_SIZE = 256 << 10


@case(
    "T14.1", "allocated memory is zeroed, registered, and source and target of writes", needs=_NEEDS
)
def allocated(rig: Rig) -> None:
    source, target = rig.a.allocate(_SIZE), rig.b.allocate(_SIZE)
    for name, region in (("a", source), ("b", target)):
        expect(region.content() == bytes(_SIZE), f"{name}: allocated memory is not zeroed")
    source.fill(pattern(1, _SIZE))
    peer, back = rig.connect()
    end = rig.finish(rig.a, rig.a.write(peer, source, target, b"there"))
    expect(end == Status.OK, f"the write ended with {end.name}")
    rig.until(lambda: bool(rig.b.notices), "the notification arrives")
    expect(target.content() == source.content(), "bytes did not arrive")
    plain = rig.b.region(_SIZE)
    plain.fill(pattern(2, _SIZE))
    end = rig.finish(rig.b, rig.b.write(back, plain, source))
    expect(end == Status.OK, f"the write from plain memory ended with {end.name}")
    rig.until(lambda: source.content() == plain.content(), "bytes arrive from plain memory")


@case(
    "T14.2", "pieces of memory do not overlap, and giving one back leaves the others", needs=_NEEDS
)
def pieces(rig: Rig) -> None:
    regions = [rig.b.allocate(4096 + at) for at in range(8)]
    spans = sorted((region.base, region.base + region.length) for region in regions)
    for (_, stop), (start, _) in pairwise(spans):
        expect(stop <= start, "two allocated pieces overlap")
    gone = regions.pop(3)
    rig.b.must("deregister_region", gone.handle)
    status = rig.b.call("deregister_region", gone.handle)
    expect(is_region_error(status), f"given back twice: {status.name}")
    source = rig.a.region(4096)
    source.fill(pattern(1, 4096))
    peer = rig.connect()[0]
    for region in regions:
        status, request = rig.a.post(peer, [source.base], [region.base], [4096])
        expect(status == Status.OK, f"post to a piece that is left: {status.name}")
        expect(rig.finish(rig.a, request) == Status.OK, "a piece that is left cannot be written")
    status, _ = rig.a.post(peer, [source.base], [gone.base], [4096])
    expect(is_never_posted(status), f"post to the piece that was given back: {status.name}")


@case("T14.3", "what cannot be allocated is refused and takes no handle", needs=_NEEDS)
def refused(rig: Rig) -> None:
    bad: list[tuple[Any, ...]] = [
        (0, "dram", 0),
        (-1, "dram", 0),
        (1 << 62, "dram", 0),
        (1 << 80, "dram", 0),
        (4096, "no such kind", 0),
    ]
    for arguments in bad:
        status, region, base = rig.a.call("allocate_region", *arguments)
        expect(is_error(status), f"allocate_region{arguments}: {status.name}")
        expect((region, base) == (0, 0), f"refused, yet gave region {region} at {base}")
    rig.a.allocate(4096)
