"""Cases on rules 1, 2 and 4: the table as such, before any byte moves."""

from __future__ import annotations

from typing import Any, Final

from kvxfer.conformance.case import case, expect
from kvxfer.conformance.rig import Rig, Side, strided, u64
from kvxfer.status import Status, is_error, is_session_error
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Direction
from kvxfer.transport.stubs import SLOT_OF_CAP, missing_slots

_NO_HANDLE: Final = (1 << 63) - 1
"""A handle that no session gives in the life of a test."""


_POSTS: Final = ("post_write", "post_read", "post_strided")


def _calls(side: Side) -> dict[str, tuple[Any, ...]]:
    """For each slot that takes a session: arguments of the right types that name nothing."""
    columns = (u64([8]), u64([8]), u64([8]), None)
    return {
        "allocate_region": (4096, "no such kind of memory", 0),
        "deregister_region": (_NO_HANDLE,),
        "revoke_region": (_NO_HANDLE,),
        "peer_create": (),
        "peer_connect": (_NO_HANDLE, b"blob"),
        "peer_destroy": (_NO_HANDLE,),
        "fence_peer": (_NO_HANDLE,),
        "post_write": (_NO_HANDLE, *columns),
        "post_read": (_NO_HANDLE, *columns),
        "post_strided": (_NO_HANDLE, Direction.WRITE, strided([(8, 8, 8, 1, 0, 0)]), None),
        "cancel": (_NO_HANDLE,),
        "poll": (side.records,),
        "send_notification": (_NO_HANDLE, b"x"),
        "poll_notifications": (8,),
        "wakeup_fd": (),
    }


def _status(answer: Any) -> Status:
    return Status(answer[0] if isinstance(answer, tuple) else answer)


@case("T1.1", "arguments of wrong types and values get an error status, no exception")
def garbage(rig: Rig) -> None:
    side = rig.a
    sessions: list[Any] = [-1, 0, 1 << 80, "1", b"", 1.5, (), []]
    for slot, args in _calls(side).items():
        for session in sessions:
            answer = side.call(slot, *args, session=session)
            expect(is_error(_status(answer)), f"{slot}(session={session!r}) gave {answer!r}")
        for at in range(len(args)):
            for bad in (None, -1, 1 << 80, "text", object(), []):
                if slot in _POSTS and at == len(args) - 1 and bad is None:
                    continue  # no notification
                answer = side.call(slot, *args[:at], bad, *args[at + 1 :])
                if slot != "poll_notifications":
                    expect(
                        is_error(_status(answer)), f"{slot}, argument {at} = {bad!r}: {answer!r}"
                    )
    for memory in (None, 7, "text"):
        answer = side.call("register_region", memory)
        expect(is_error(_status(answer)), f"register_region({memory!r}) gave {answer!r}")


@case("T1.2", "after close every slot refuses in the session band, and so does a second close")
def after_close(rig: Rig) -> None:
    side = rig.a
    memory = side.region(64).buffer.memory
    peer = side.must("peer_create")[0]
    calls = _calls(side) | {"register_region": (memory,), "send_notification": (peer, b"x")}
    side.close()
    for slot, args in (calls | {"close": ()}).items():
        status = _status(side.call(slot, *args))
        expect(is_session_error(status), f"{slot} after close: {status.name}")
    side.call("caps")
    side.call("last_error")


@case("T1.3", "a declared flag has its slot, an undeclared one answers UNSUPPORTED", needs=Caps(0))
def flags_match_slots(rig: Rig) -> None:
    side = rig.a
    caps = side.caps()
    lies = missing_slots(side.ops, caps)
    expect(not lies, f"declared, yet the slot is a stub: {', '.join(sorted(lies))}")
    region = side.region(4096)
    peer = rig.connect()[0]
    column = u64([region.base])
    arguments: dict[str, tuple[Any, ...]] = {
        "post_write": (peer, column, column, u64([1]), None),
        "post_read": (peer, column, column, u64([1]), None),
        "post_strided": (peer, Direction.WRITE, strided([(region.base, 8, 1, 1, 0, 0)]), None),
        "cancel": (_NO_HANDLE,),
        "allocate_region": (4096, region.buffer.memory.kind, region.buffer.memory.device),
        "fence_peer": (peer,),
        "revoke_region": (region.handle,),
        "wakeup_fd": (),
    }
    for flag, slot in SLOT_OF_CAP.items():
        if flag not in caps:
            status = _status(side.call(slot, *arguments[slot]))
            allowed = {Status.UNSUPPORTED}
            if slot == "fence_peer":
                allowed.add(Status.NOT_FENCED)
            expect(status in allowed, f"{slot} without {flag.name}: {status.name}")


@case("T1.4", "flags name at least one direction and one kind of memory", needs=Caps(0))
def flags_say_something(rig: Rig) -> None:
    caps = rig.a.caps()
    kinds = Caps.MEM_DRAM | Caps.MEM_CUDA | Caps.MEM_NEURON
    expect(bool(caps & (Caps.WRITE | Caps.READ)), f"neither WRITE nor READ in {caps!r}")
    expect(bool(caps & kinds), f"no kind of memory in {caps!r}")
    expect(rig.b.caps() == caps, f"two sessions differ: {caps!r}, {rig.b.caps()!r}")


@case("T1.5", "last_error explains a refusal in words")
def last_error(rig: Rig) -> None:
    rig.a.region(64)
    peer = rig.connect()[0]
    status, _ = rig.a.call("post_write", peer, u64([8]), u64([8, 8]), u64([8]), None)
    expect(status != Status.OK, "columns of unequal length were accepted")
    expect(len(rig.a.call("last_error")) > 0, "last_error is empty after a refusal")


@case("T2.1", "polling with nothing to do answers OK and nothing")
def idle_poll(rig: Rig) -> None:
    rig.connect()
    for side in rig.sides:
        for _ in range(50):
            count = side.must("poll", side.records)
            expect(count == 0, f"{side.name}.poll gave {count} completions of nothing")
            notices = side.must("poll_notifications", 8)
            expect(notices == [], f"{side.name}.poll_notifications gave {notices!r}")
    expect(rig.a.must("poll", rig.a.records[:0]) == 0, "poll into no records gave some")
    expect(rig.a.must("poll_notifications", 0) == [], "poll_notifications(0) gave some")


@case("T4.1", "handles are positive and never given again")
def handles_are_new(rig: Rig) -> None:
    regions, peers = set(), set()
    memory = rig.a.region(4096).buffer.memory
    for _ in range(20):
        region = rig.a.must("register_region", memory)
        expect(region > 0 and region not in regions, f"region handle {region} again")
        regions.add(region)
        rig.a.must("deregister_region", region)
        peer, blob = rig.a.must("peer_create")
        expect(peer > 0 and peer not in peers, f"peer handle {peer} again")
        expect(len(blob) > 0, "peer_create gave an empty blob")
        peers.add(peer)
        rig.a.must("peer_destroy", peer)


@case("T4.2", "sessions of one table are independent: one closes, the other works on")
def sessions_are_independent(rig: Rig) -> None:
    rig.a.region(4096)
    expect(rig.a.session != rig.b.session or rig.a.ops is not rig.b.ops, "one handle twice")
    rig.b.close()
    rig.a.region(4096)
    expect(rig.a.must("poll", rig.a.records) == 0, "completions of nothing")
    rig.a.must("peer_create")
