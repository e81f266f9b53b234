"""Recordings: what is written is read back, damage is named, cuts are forgiven."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvxfer.core.ids import Part, PeerKey, Reason, Role, TransferId
from kvxfer.errors import BadValue
from kvxfer.record import BadRecording, Step, read_recordings
from kvxfer.record.files import RecordingFile, join_recordings
from kvxfer.record.lines import Header, header_line, step_line

HEADER = Header(
    engine_id="eng/../ P", rank=3, role=Role.BOTH, incarnation=7, monotonic_ms=5.0, unix_ms=1e12
)
numbers = st.integers(0, 1 << 40)
texts = st.text(max_size=20)
steps = st.builds(
    Step,
    t_ms=st.floats(0, 1e9).map(lambda t: round(t, 4)),
    transfer_id=texts.map(TransferId),
    attempt=numbers,
    step=texts,
    peer=st.none() | st.builds(PeerKey, texts, numbers),
    part=st.none() | st.builds(Part, numbers, numbers, numbers, numbers, numbers, numbers),
    reason=st.sampled_from(Reason),
    tag=texts,
    detail=texts,
    size_bytes=numbers,
    descriptors=numbers,
    traceparent=texts,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=5))
def test_what_is_written_is_read_back(tmp_path: Path, written: list[Step]) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(header_line(HEADER) + "".join(map(step_line, written)), encoding="utf-8")
    (track,) = read_recordings([path]).tracks
    assert track.header == HEADER
    assert track.steps == written


def a_step(name: str = "granted") -> Step:
    return Step(t_ms=6.5, transfer_id=TransferId("t"), attempt=1, step=name)


def test_files_are_one_for_each_life_and_join(tmp_path: Path) -> None:
    for life in (7, 8):
        file = RecordingFile.open(tmp_path / "new", attrs.evolve(HEADER, incarnation=life))
        file.take([a_step()], 0)
        file.take([a_step("landed")], 2)
        file.close()
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names[0] == "eng_..__P-3-0000000000000007.jsonl"
    join_recordings(tmp_path / "new", tmp_path / "both.jsonl")
    recording = read_recordings([tmp_path / "both.jsonl"])
    assert [t.header.incarnation for t in recording.tracks] == [7, 8]
    assert [s.step for s in recording.tracks[0].steps] == ["granted", "landed"]
    assert (recording.dropped, recording.tracks[0].dropped) == (4, 2)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="record_dir"):
        RecordingFile.open(tmp_path / "file" / "in", HEADER)


def test_a_cut_within_the_last_line_is_forgiven(tmp_path: Path) -> None:
    whole = header_line(HEADER) + step_line(a_step()) + step_line(a_step("landed"))
    for cut in range(len(whole) - len(step_line(a_step("landed"))), len(whole) - 1):
        path = tmp_path / "cut.jsonl"
        path.write_text(whole[:cut], encoding="utf-8")
        (track,) = read_recordings([path]).tracks
        assert [s.step for s in track.steps] == ["granted"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("not json\n", "line 1"),
        (step_line(a_step()), "no header before it"),
        (json.dumps({"kvxfer_recording": 2}) + "\n", "version 2"),
        (header_line(HEADER) + "[]\n", "line 2"),
        (header_line(HEADER) + '{"t_ms": 1}\n', "line 2"),
        (header_line(HEADER) + step_line(a_step()).replace('"step"', '"peer":3,"step"'), "line 2"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadRecording, match=complaint):
        read_recordings([path])


def test_two_clocks_come_onto_one_axis() -> None:
    assert HEADER.unix_of(6.5) == 1e12 + 1.5
