"""The flight recorder's bounds, and its text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvxfer.core.ids import Part, PeerKey, Reason, TransferId
from kvxfer.record import FlightRecorder, Step, transcript

PEER = PeerKey("P", 0)


def step(name: str, t_ms: float = 0.0, tid: str = "t", **more: object) -> Step:
    return Step(t_ms=t_ms, transfer_id=TransferId(tid), attempt=1, step=name, **more)


def test_the_transfer_that_began_first_leaves_first() -> None:
    flight = FlightRecorder(transfers_max=2, steps_max=4)
    for tid in ("a", "b", "c"):
        flight.note(step("registered", tid=tid))
    assert flight.transfers() == ["b", "c"]
    assert flight.of(TransferId("a")) == []


def test_only_the_last_steps_of_a_transfer_stay() -> None:
    flight = FlightRecorder(transfers_max=2, steps_max=3)
    for number in range(10):
        flight.note(step(f"step {number}", number))
    assert [e.step.step for e in flight.of(TransferId("t"))] == ["step 7", "step 8", "step 9"]


def test_a_retry_for_ever_pushes_nothing_out() -> None:
    flight = FlightRecorder(transfers_max=2, steps_max=3)
    flight.note(step("registered", 1))
    for number in range(1000):
        flight.note(step("quarantined", 10 + number, peer=PEER, reason=Reason.PEER_LOST))
    kept = flight.of(TransferId("t"))
    assert [(e.step.step, e.count, e.last_ms) for e in kept] == [
        ("registered", 1, 1),
        ("quarantined", 1000, 1009),
    ]


def test_none_are_kept_where_none_are_wanted() -> None:
    flight = FlightRecorder(transfers_max=0, steps_max=3)
    flight.note(step("registered"))
    assert len(flight) == 0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3))), st.integers(0, 4), st.integers(1, 4)
)
def test_bounds_hold_whatever_comes(
    events: list[tuple[int, int]], transfers: int, steps: int
) -> None:
    flight = FlightRecorder(transfers_max=transfers, steps_max=steps)
    for number, (tid, name) in enumerate(events):
        flight.note(step(str(name), number, tid=str(tid)))
        assert len(flight) <= transfers
        kept = flight.of(TransferId(str(tid)))
        assert len(kept) <= steps
        if transfers:
            assert kept[-1].last_ms == number


def test_a_transcript_reads_like_one_of_the_explorer() -> None:
    flight = FlightRecorder(transfers_max=2, steps_max=9)
    flight.note(step("registered", 100.0, tag="r1"))
    part = Part(0, 1, 0, 64, 2, 4)
    flight.note(step("posted", 101.25, peer=PEER, part=part))
    flight.note(step("told landed", 102.0, size_bytes=64, descriptors=2))
    flight.note(step("quarantined", 103.0, peer=PEER, reason=Reason.PEER_LOST))
    flight.note(step("quarantined", 104.0, peer=PEER, reason=Reason.PEER_LOST))
    assert transcript("transfer t at D/0: lost", flight.of(TransferId("t"))) == (
        "transfer t at D/0: lost\n"
        "  1       0.000 ms  registered        attempt 1, tag r1\n"
        "  2       1.250 ms  posted            attempt 1, peer P/0, part of rank 0, group 1, "
        "tokens 0:64, layers 2:4\n"
        "  3       2.000 ms  told landed       attempt 1, 64 bytes in 2 ranges\n"
        "  4       3.000 ms  quarantined       attempt 1, peer P/0, PEER_LOST, "
        "2 times until 4.000 ms\n"
    )


def test_a_transcript_of_nothing_is_its_title() -> None:
    assert transcript("nothing", []) == "nothing\n"
