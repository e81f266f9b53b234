"""What an agent notes: outcomes, transcripts of failures, recordings, lag."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from driver_rig import Side, Start, config, new_memory, offer, register, until

from kvxfer.core.ids import Reason, Role, TransferId
from kvxfer.driver import Agent, LetGo, Lost
from kvxfer.driver.watch import MINUTE_MS, TRANSCRIPTS_PER_MINUTE, Watch
from kvxfer.errors import BadValue
from kvxfer.record import read_recordings

Pair = tuple[Side, Side]


@pytest.fixture
def pair(start: Start) -> Pair:
    """With the usual long deadlines: nothing here is about their end."""
    return start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)


def test_one_transfer_in_one_outcome_on_either_side(pair: Pair) -> None:
    p, d = pair
    register(d, p, "t", 1, 2)
    offer(p, "t", 3, 4)
    d.collect(2)
    p.collect(1)
    until(lambda: p.agent.outcomes().live["producer"] == 0)
    assert dict(d.agent.outcomes().started) == {"consumer": 1}
    assert dict(d.agent.outcomes().ended) == {("consumer", "landed", Reason.NONE): 1}
    assert dict(p.agent.outcomes().ended) == {("producer", "sent", Reason.NONE): 1}
    phases = {n: h.snapshot().count for n, h in d.agent.watch.phases.histograms.items()}
    assert {n for n, count in phases.items() if count} == {"granted", "landed", "ready"}
    assert d.agent.watch.meter.lag.snapshot().count == 1
    assert p.agent.watch.meter.cpu_s > p.agent.watch.meter.post_cpu_s > 0


def test_an_offer_to_which_nobody_came_shows_as_live_at_rest(pair: Pair) -> None:
    p, _ = pair
    offer(p, "t", 1)
    until(lambda: dict(p.agent.outcomes().live) == {"consumer": 0, "producer": 1})
    assert p.agent.outcomes().started["producer"] == 1


def test_cancelled_and_refused_are_told_apart(pair: Pair) -> None:
    p, d = pair
    register(d, p, "t", 1)
    register(d, p, "t", 2)
    d.agent.cancel(TransferId("t"), "t")
    d.collect(4)
    until(lambda: sum(d.agent.outcomes().ended.values()) == 2)
    assert dict(d.agent.outcomes().ended) == {
        ("consumer", "refused", Reason.ALREADY_IN_USE): 1,
        ("consumer", "cancelled", Reason.CANCELLED_BY_CONSUMER): 1,
    }


def test_a_failure_is_written_out_with_its_steps(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    p, d = pair
    with caplog.at_level(logging.WARNING, "kvxfer"):
        register(d, p, "t", 1, 2, digest=b"x")
        offer(p, "t", 1, 2, digest=b"y")
        d.collect(2)
    (text,) = [r.getMessage() for r in caplog.records if "transfer t at D/0" in r.getMessage()]
    assert text.startswith("transfer t at D/0: lost, DIGEST_MISMATCH\n")
    lines = text.splitlines()
    assert "asked to receive" in lines[1]
    assert "told lost" in lines[-1]
    assert "granted           attempt 1, peer P/0" in text
    assert d.agent.transcript(TransferId("t")).splitlines()[1 : len(lines)] == lines[1:]


def test_many_failures_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch.of(config("D", Role.CONSUMER, new_memory()))

    def lose(now_ms: float) -> None:
        lost = Lost(transfer_id=TransferId("t"), attempt=1, reason=Reason.PEER_LOST)
        watch.told(lost, now_ms)

    with caplog.at_level(logging.WARNING, "kvxfer"):
        for number in range(TRANSCRIPTS_PER_MINUTE + 5):
            lose(float(number))
        assert len(caplog.records) == TRANSCRIPTS_PER_MINUTE
        lose(MINUTE_MS)
    title = caplog.records[-1].getMessage().splitlines()[0]
    assert title.endswith("PEER_LOST (5 failures before it were not written out)")
    assert watch.ended["consumer", "failed", Reason.PEER_LOST] == TRANSCRIPTS_PER_MINUTE + 6


def test_agents_record_themselves(start: Start, tmp_path: Path) -> None:
    p = start("P", Role.PRODUCER, 1, record_dir=tmp_path)
    d = start("D", Role.CONSUMER, record_dir=tmp_path)
    register(d, p, "t", 1, traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    offer(p, "t", 2)
    d.collect(2)
    p.collect(1)
    for side in (p, d):
        side.agent.close()
    recording = read_recordings(sorted(tmp_path.iterdir()))
    tracks = {track.header.name: track for track in recording.tracks}
    assert set(tracks) == {"P/0", "D/0"}
    assert tracks["D/0"].header.incarnation == d.agent.incarnation
    names = [step.step for step in tracks["P/0"].steps]
    assert names[-2:] == ["sent", "told sent"]
    assert {"grant parked", "matched", "posted", "written"} <= set(names)
    asked = tracks["D/0"].steps[0]
    assert (asked.step, asked.traceparent[:5]) == ("asked to receive", "00-aa")
    assert [s.step for s in tracks["D/0"].steps] == [s.step for s in d.agent.events()]


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVXFER_RECORD_DIR", str(tmp_path / "new"))
    agent = Agent.start(config("D", Role.CONSUMER, new_memory()))
    agent.close()
    assert [
        track.header.engine_id for track in read_recordings((tmp_path / "new").iterdir()).tracks
    ]


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="record_dir"):
        Agent.start(config("D", Role.CONSUMER, new_memory(), record_dir=tmp_path / "file"))


@pytest.mark.parametrize("name", ["flight_transfers", "flight_steps", "events_max"])
def test_bounds_of_the_notes_are_checked(name: str) -> None:
    with pytest.raises(BadValue, match=name):
        config("D", Role.CONSUMER, new_memory(), **{name: -1})


def test_let_go_ends_no_transfer(pair: Pair) -> None:
    p, d = pair
    register(d, p, "t", 1)
    d.agent.cancel(TransferId("t"), "t")
    assert isinstance(d.collect(2)[1], LetGo)
    assert sum(d.agent.outcomes().ended.values()) == 1
