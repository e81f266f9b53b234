"""The verdict, the summary line and the timeline page, from made-up records."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import attrs
import pytest

from kvxfer.cli.demo_table import request_table, summary_table
from kvxfer.demo.reports import EngineState, Finished, Prefilled, Released, Step
from kvxfer.demo.result import DemoResult
from kvxfer.demo.sequence import Prompt
from kvxfer.demo.served import Served
from kvxfer.demo.timeline import collect, demo_page, write_timeline
from kvxfer.demo.workload import DemoOptions, Mode
from kvxfer.observe.chart import Bar, Row, draw, tick_ms

IDLE = EngineState(blocks_held=0, live=0, quarantined=0)
ANSWER = (5, 6)


def served(mode: Mode, index: int, first_token_ms: float = 30.0) -> Served:
    """Arrival at 100 ms; prefill 102 to 120; written by 123; landed at 124."""
    one = Served(
        index=index, mode=mode, prompt=Prompt(tokens=(1, 2, 3), answer_tokens=2), arrival_ms=100.0
    )
    tid = one.transfer_id
    one.prefilled = Prefilled(transfer_id=tid, start_ms=102.0, stop_ms=120.0)
    one.released = Released(transfer_id=tid, bytes_written=2048, descriptors=3)
    one.finished = Finished(
        transfer_id=tid,
        tokens=ANSWER,
        admitted_ms=100.5,
        landed_ms=124.0,
        first_token_ms=100.0 + first_token_ms,
        last_token_ms=160.0,
    )
    return one


def steps(*ones: Served) -> tuple[Step, ...]:
    return tuple(
        Step(t_ms=t_ms, transfer_id=one.transfer_id, rank=rank, step=step)
        for one in ones
        for rank, t_ms, step in (
            (0, 119.0, "matched"),
            (0, 120.5, "posted"),
            (1, 121.0, "posted"),
            (0, 122.0, "written"),
            (1, 123.0, "written"),
        )
    )


def result(requests: int = 3) -> DemoResult:
    runs = {
        mode: [served(mode, index, 30.0 + index + 10 * (mode is Mode.PULL)) for index in range(3)]
        for mode in (Mode.PUSH, Mode.PULL)
    }
    return DemoResult(
        options=DemoOptions(requests=requests, prefill_ranks=2),
        expected=(ANSWER,) * 3,
        served=runs,
        prefill_state=attrs.evolve(IDLE, steps=steps(*runs[Mode.PUSH], *runs[Mode.PULL])),
        decode_state=IDLE,
        two_processes=False,
        seconds=1.23456,
    )


def test_a_clean_run_is_ok_and_its_line_has_the_promised_keys() -> None:
    clean = result()
    assert clean.ok
    assert clean.failures() == []
    line = json.loads(json.dumps(clean.summary()))
    assert line["requests"] == line["identical"] == 3
    assert line["mode"] == "push+pull"
    assert (line["transport"], line["processes"]) == ("loopback", 1)
    assert (line["ttft_ms_p50_push"], line["ttft_ms_p50_pull"]) == (31.0, 41.0)
    assert line["ttft_ms_p90_push"] == 31.8
    assert line["handoff_ms_p50_push"] == 4.0
    assert (line["quarantined"], line["leaked"]) == (0, 0)
    assert (line["bytes_moved"], line["descriptors_posted"]) == (6 * 2048, 18)
    assert (line["prefill_tp"], line["decode_tp"]) == (2, 1)
    assert line["seconds"] == 1.235


def test_one_wrong_token_in_one_mode_is_not_ok() -> None:
    wrong = result()
    one = wrong.served[Mode.PULL][1]
    assert one.finished is not None
    one.finished = attrs.evolve(one.finished, tokens=(5, 7))
    assert not wrong.ok
    assert wrong.identical == 2
    assert wrong.failures() == ["pull-0001: tokens differ from the plain engine's"]


def test_a_failed_request_is_not_ok() -> None:
    failed = result()
    one = failed.served[Mode.PUSH][0]
    one.finished, one.failure = None, "rank 0: PEER_LOST"
    assert not failed.ok
    assert one.ttft_ms is None
    assert failed.failures() == ["push-0000: KV did not come: rank 0: PEER_LOST"]
    assert failed.summary()["identical"] == 2


@pytest.mark.parametrize("side", ["prefill_state", "decode_state"])
@pytest.mark.parametrize(
    ("fields", "leaked", "quarantined"),
    [
        ({"blocks_held": 2}, 2, 0),
        ({"live": 1}, 1, 0),
        ({"blocks_held": 1, "live": 3, "quarantined": 2}, 4, 2),
        ({"quarantined": 1}, 0, 1),
    ],
)
def test_what_is_left_behind_is_not_ok(
    side: str, fields: dict[str, int], leaked: int, quarantined: int
) -> None:
    left = attrs.evolve(result(), **{side: EngineState(**{**attrs.asdict(IDLE), **fields})})
    assert not left.ok
    assert (left.leaked, left.quarantined) == (leaked, quarantined)
    assert left.failures()


def test_a_mode_that_did_not_run_has_no_figures() -> None:
    both = result()
    push = attrs.evolve(both, served={Mode.PUSH: both.served[Mode.PUSH]})
    assert push.summary()["ttft_ms_p50_pull"] is None
    assert push.ok


def test_the_tables_have_a_row_per_request_and_a_column_per_mode() -> None:
    assert request_table(result()).row_count == 3
    assert len(request_table(result()).columns) == 7
    assert summary_table(result()).row_count == 4


def test_a_write_spans_all_ranks() -> None:
    (first, *_) = collect(result(), Mode.PUSH)
    assert (first.posted_ms, first.moved_ms) == (120.5, 123.0)


def test_the_page_is_whole_and_names_no_address() -> None:
    text = demo_page(result())
    charts = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        ET.fromstring(chart)
    without_namespace = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|src=|@import|url\(", without_namespace)
    for kind in ("queued", "prefill", "write", "granted", "ready", "decode"):
        assert f'<rect class="{kind}"' in text
        assert f".{kind} {{" in text
        assert f"<i class='{kind}'>" in text


def test_bars_stand_where_the_records_say() -> None:
    """Prefill from 102 to 120 ms, arrival at 100: 2 to 20 ms on the axis."""
    assert "request 0, prefill: 2.00 to 20.00 ms (18.00 ms)" in demo_page(result())
    # From the end of the prefill on: the write starts half a millisecond later.
    assert "request 0, write: 0.50 to 3.00 ms (2.50 ms)" in demo_page(result())


def test_a_failed_request_is_left_out_and_counted() -> None:
    failed = result()
    failed.served[Mode.PUSH][0].finished = None
    text = demo_page(failed)
    assert "1 not served and left out" in text
    assert len(collect(failed, Mode.PUSH)) == 2


def test_the_page_of_a_run_without_an_answer_is_still_whole(tmp_path: Path) -> None:
    nothing = result()
    for one in nothing.served[Mode.PUSH]:
        one.finished, one.failure = None, "why"
    bare = attrs.evolve(nothing, served={Mode.PUSH: nothing.served[Mode.PUSH]})
    path = tmp_path / "t.html"
    write_timeline(bare, path)
    assert "3 not served and left out" in path.read_text(encoding="utf-8")


def test_labels_are_escaped() -> None:
    text = draw([Row(label="<a&b>", lanes=(("P", (Bar(0, 1, "x", '"<t>'),)),))], 10, '"d"')
    ET.fromstring(text)
    assert "<a&b>" not in text


@pytest.mark.parametrize(
    ("span", "tick"), [(0.0, 0.0001), (1, 0.1), (15, 1), (16, 2), (40, 5), (90, 10), (4000, 500)]
)
def test_ticks_are_round(span: float, tick: float) -> None:
    assert tick_ms(span) == pytest.approx(tick)
