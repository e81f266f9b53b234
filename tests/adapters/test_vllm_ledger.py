"""The ledger: each id is reported once, only when asked for, only after LetGo."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.driver import Reason, TransferId
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent
from kvxfer_vllm.ledger import Ledger

T = TransferId("r:t")


def landed(tag: str) -> Landed:
    return Landed(transfer_id=T, attempt=1, tag=tag)


def lost(tag: str) -> Lost:
    return Lost(transfer_id=T, attempt=1, tag=tag, reason=Reason.DEADLINE)


def let_go(tag: str) -> LetGo:
    return LetGo(transfer_id=T, attempt=1, tag=tag)


def test_a_landed_receive() -> None:
    ledger = Ledger()
    ledger.open_receive("a", (), early=False)
    assert ledger.is_receiving("a")
    ledger.apply([landed("a"), let_go("a")])
    report = ledger.take()
    assert (report.received, report.failed, report.sent) == ({"a"}, set(), set())
    assert not ledger.is_receiving("a")
    assert ledger.take().received == set()
    assert len(ledger) == 0


def test_a_lost_receive_waits_for_let_go() -> None:
    ledger = Ledger()
    ledger.open_receive("a", (), early=False)
    ledger.apply([lost("a")])
    assert ledger.take().received == set()
    ledger.apply([let_go("a")])
    report = ledger.take()
    assert (report.received, report.failed) == ({"a"}, {"a"})


def test_a_lost_receive_names_its_blocks_at_once_and_only_once() -> None:
    ledger = Ledger()
    ledger.open_receive("a", [[5, 6]], early=True)
    ledger.open_receive("b", [[7]], early=True)
    ledger.apply([lost("a"), lost("a"), landed("b"), let_go("b")])
    assert ledger.take_bad_blocks() == {5, 6}
    assert ledger.take_bad_blocks() == set()
    assert ledger.take().received == {"b"}
    ledger.apply([let_go("a")])
    assert ledger.take_bad_blocks() == set()
    assert ledger.take().failed == {"a"}


def test_a_cancelled_receive_names_no_blocks() -> None:
    ledger = Ledger()
    ledger.open_receive("a", [[5, 6]], early=True)
    ledger.apply([Lost(transfer_id=T, attempt=1, tag="a", reason=Reason.CANCELLED_BY_CONSUMER)])
    assert ledger.take_bad_blocks() == set()


def test_failure_is_sticky() -> None:
    ledger = Ledger()
    ledger.open_receive("a", (), early=False)
    ledger.apply([lost("a"), landed("a"), let_go("a")])
    assert ledger.take().failed == {"a"}


def test_let_go_without_a_verdict_is_a_failure() -> None:
    ledger = Ledger()
    ledger.open_receive("a", (), early=False)
    ledger.apply([let_go("a")])
    assert ledger.take().failed == {"a"}


def test_two_requests_of_one_transfer_are_kept_apart() -> None:
    ledger = Ledger()
    ledger.open_receive("old", (), early=False)
    ledger.open_receive("new", (), early=False)
    ledger.apply([lost("old"), landed("new"), let_go("new")])
    report = ledger.take()
    assert (report.received, report.failed) == ({"new"}, set())
    ledger.apply([let_go("old")])
    assert ledger.take().failed == {"old"}


def test_a_refused_receive_is_reported_as_failed() -> None:
    ledger = Ledger()
    ledger.refuse_receive("a", [[3, 4]])
    report = ledger.take()
    assert (report.received, report.failed) == ({"a"}, {"a"})
    assert report.failed_blocks == {3, 4}


@pytest.mark.parametrize("early", [True, False])
def test_blocks_of_a_failed_receive_come_with_its_report(early: bool) -> None:
    """A scheduler that does not know of failed requests is told by blocks, not before LetGo."""
    ledger = Ledger()
    ledger.open_receive("a", [[5, 6]], early=early)
    ledger.open_receive("b", [[7]], early=early)
    ledger.apply([lost("a"), landed("b"), let_go("b")])
    assert ledger.take().failed_blocks == set()
    ledger.apply([let_go("a")])
    assert ledger.take().failed_blocks == {5, 6}
    assert ledger.take().failed_blocks == set()


def test_sends() -> None:
    ledger = Ledger()
    ledger.open_send("a", "a")
    ledger.open_send("b", "b")
    ledger.apply(
        [
            Sent(transfer_id=T, tag="a"),
            Unsent(transfer_id=T, tag="b", reason=Reason.OFFER_EXPIRED),
            Sent(transfer_id=T, tag="a"),
        ]
    )
    assert ledger.take().sent == {"a", "b"}
    ledger.apply([Sent(transfer_id=T, tag="a")])
    assert ledger.take().sent == set()
    assert len(ledger) == 0


def sent(tag: str) -> Sent:
    return Sent(transfer_id=T, tag=tag)


def test_a_stream_is_reported_only_once_its_request_has_finished() -> None:
    ledger = Ledger()
    ledger.open_stream("a")
    ledger.open_stream("b")
    ledger.apply([sent("a")])
    assert ledger.take().sent == set()
    ledger.close_stream("a", "a")
    ledger.close_stream("b", "b")
    assert ledger.take().sent == {"a"}
    ledger.apply([sent("a"), sent("b")])
    assert ledger.take().sent == {"b"}
    assert len(ledger) == 0


def test_a_halted_stream_is_never_reported_and_drains_by_its_own_end() -> None:
    ledger = Ledger()
    ledger.open_stream("a")
    ledger.halt_stream("a")
    assert ledger.halted() == ["a"]
    # The request was computed again and is offered under another tag.
    ledger.open_send("a", "a#whole")
    ledger.apply([Unsent(transfer_id=T, tag="a", reason=Reason.PRODUCER_ABORTED)])
    assert ledger.halted() == []
    assert ledger.take().sent == set()
    ledger.apply([sent("a#whole")])
    assert ledger.take().sent == {"a"}
    assert len(ledger) == 0


def test_a_stream_that_had_ended_needs_no_draining() -> None:
    ledger = Ledger()
    ledger.open_stream("a")
    ledger.apply([sent("a")])
    ledger.halt_stream("a")
    assert ledger.halted() == []
    assert len(ledger) == 0


def results_of(tag: str) -> st.SearchStrategy[Result]:
    return st.sampled_from(
        [
            landed(tag),
            lost(tag),
            let_go(tag),
            Sent(transfer_id=T, tag=tag),
            Unsent(transfer_id=T, tag=tag, reason=Reason.SHUTDOWN),
        ]
    )


@given(
    st.lists(st.sampled_from("abcd").flatmap(results_of), max_size=40),
    st.lists(st.integers(0, 5), max_size=40),
)
def test_whatever_the_agent_says_no_id_is_reported_twice_or_unasked(
    results: list[Result], batches: list[int]
) -> None:
    ledger = Ledger()
    ledger.open_receive("a", (), early=False)
    ledger.open_receive("b", (), early=False)
    ledger.open_send("c", "c")
    received: list[str] = []
    sent: list[str] = []
    queue = list(results)
    for size in [*batches, len(queue)]:
        ledger.apply(queue[:size])
        del queue[:size]
        report = ledger.take()
        assert report.failed <= report.received
        received += report.received
        sent += report.sent
    assert len(received) == len(set(received))
    assert set(received) <= {"a", "b"}
    assert sent in ([], ["c"])
    assert ("a" in received) == any(isinstance(r, LetGo) and r.tag == "a" for r in results)
