"""Case on rule 2: a caller with nothing to do can sleep on a descriptor."""

from __future__ import annotations

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Rig
from kvxfer.transport.caps import Caps


@case(
    "T2.2",
    "wakeup_fd is readable when a notification or a completion waits, and not when idle",
    needs=Caps.WRITE | Caps.WAKEUP_FD,
)
def wakes_up(rig: Rig) -> None:
    source, target = rig.a.region(4096), rig.b.region(4096)
    peer = rig.connect()[0]
    sides = {side.name: side for side in rig.sides}
    fds = {name: side.must("wakeup_fd") for name, side in sides.items()}

    def readable(name: str) -> bool:
        return sides[name].readable(fds[name])

    rig.settle()
    expect(not readable("a") and not readable("b"), "readable although nothing waits")
    request = rig.a.write(peer, source, target, b"wake")

    def a_sleeps_on_its_descriptor() -> bool:
        if readable("a"):
            rig.a.poll()
        return bool(rig.a.ends[request])

    def b_sleeps_on_its_descriptor() -> bool:
        if readable("b"):
            rig.b.poll()
            rig.b.take_notices()
        return bool(rig.b.notices)

    rig.wait(a_sleeps_on_its_descriptor, "a's descriptor tells of the completion")
    rig.wait(b_sleeps_on_its_descriptor, "b's descriptor tells of the notification")
    rig.settle()
    expect(not readable("a") and not readable("b"), "still readable after all was taken")
