"""Stretches, the HTML timeline and the Perfetto file, from a made-up recording."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from made_up import recording

from kvxfer.observe.perfetto import perfetto_json
from kvxfer.observe.stretches import Transfer, transfers_of
from kvxfer.observe.timeline import timeline_page
from kvxfer.record import Recording


def spans(one: Transfer) -> dict[str, list[tuple[float, float, str]]]:
    """By agent: start and length from the transfer's first step, and the kind."""
    return {
        lane.header.name: [
            (s.start_ms - one.start_ms, s.stop_ms - s.start_ms, s.kind) for s in lane.stretches
        ]
        for lane in one.lanes
    }


def test_both_clocks_lie_on_one_axis_and_p_comes_first() -> None:
    push, pull, bad = transfers_of(recording())
    assert [one.transfer_id for one in (push, pull, bad)] == ["push", "pull", "bad"]
    assert spans(push) == {
        "P/0": [(3, 17, "granted"), (21, 7, "write")],
        "D/0": [(0, 2, "queued"), (2, 28, "granted")],
    }
    assert list(spans(push)) == ["P/0", "D/0"]
    assert (push.outcome, bad.outcome) == ("landed, sent", "lost, unsent")


def test_a_pull_is_read_in_the_lane_of_d() -> None:
    _, pull, _ = transfers_of(recording())
    assert spans(pull) == {
        "P/0": [(0, 8, "queued"), (8, 9, "granted")],
        "D/0": [(5, 2, "queued"), (7, 9, "granted"), (9, 6, "write")],
    }


def test_a_failure_shows_how_long_the_blocks_were_held() -> None:
    *_, bad = transfers_of(recording())
    assert spans(bad)["D/0"][-1] == (10, 10, "held")
    assert "PEER_LOST" in bad.lanes[1].stretches[-1].words


def test_what_has_not_ended_is_drawn_to_the_end() -> None:
    cut = recording()
    cut.tracks[0].steps = cut.tracks[0].steps[:3]
    cut.tracks[1].steps = cut.tracks[1].steps[:1]
    (push,) = transfers_of(cut)
    assert spans(push) == {"P/0": [(3, 0, "granted")], "D/0": [(0, 2, "queued"), (2, 1, "granted")]}


def test_nothing_recorded_gives_an_empty_page() -> None:
    assert transfers_of(Recording()) == []
    assert "0 transfers" in timeline_page([])
    assert json.loads(perfetto_json([]))["traceEvents"] == []


def test_the_page_says_what_is_left_out_and_needs_nothing_else() -> None:
    text = timeline_page(transfers_of(recording()), left_out=3, dropped=9)
    assert "3 more are in the recording" in text
    assert "9 steps were not recorded" in text
    assert "push at P/0: written, 1 part(s), 4096 bytes in 8 ranges: 21.00 to 28.00 ms" in text
    without_namespace = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|src=|@import|url\(", without_namespace)


def test_names_of_transfers_are_escaped() -> None:
    made = recording()
    for track in made.tracks:
        track.steps = [
            type(s)(t_ms=s.t_ms, transfer_id="<script>x", attempt=s.attempt, step=s.step)
            for s in track.steps
        ]
    assert "<script>x" not in timeline_page(transfers_of(made))


def test_perfetto_has_agents_transfers_slices_steps_and_arrows() -> None:
    events = json.loads(perfetto_json(transfers_of(recording())))["traceEvents"]
    by_phase = {ph: [e for e in events if e["ph"] == ph] for ph in "MXisf"}
    names = {e["args"]["name"] for e in by_phase["M"] if e["name"] == "process_name"}
    assert names == {"P/0 (0000000000000008)", "D/0 (0000000000000007)"}
    write = next(e for e in by_phase["X"] if e["name"] == "written")
    assert (write["ts"], write["dur"]) == (21_000, 7_000)
    assert len(by_phase["i"]) == sum(len(t.steps) for t in recording().tracks)
    lost = next(e for e in by_phase["i"] if e["name"] == "lost")
    assert lost["args"] == {"attempt": 1, "reason": "PEER_LOST"}
    ends = {e["id"]: e for e in by_phase["f"]}
    arrows = [(e["name"], e["ts"], ends[e["id"]]["ts"]) for e in by_phase["s"] if e["tid"] == 1]
    assert arrows == [("grant", 2_000, 3_000), ("done", 28_000, 30_000)]
    assert all(e["pid"] != ends[e["id"]]["pid"] for e in by_phase["s"])
