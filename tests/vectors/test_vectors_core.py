"""Our own core run through the public judges, one test a case."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvxfer.conformance.report import Report, Verdict
from kvxfer.conformance.vectors import (
    MACHINE_PARTS,
    Vectors,
    check_codec,
    check_layout,
    check_machine,
    check_parts,
    check_seals,
    load,
)
from kvxfer.conformance.vectors_core import CoreMachine, decode_to_plain, encode_from_plain
from kvxfer.conformance.vectors_layout import translate
from kvxfer.conformance.vectors_parts import parts_of
from kvxfer.conformance.vectors_seals import open_frames

FOLDER = Path(__file__).resolve().parents[2] / "spec" / "vectors"
CODEC = load(FOLDER / "codec.json")
MACHINES = {part: load(FOLDER / f"{part}.json") for part in MACHINE_PARTS}
LAYOUT = load(FOLDER / "layout.json")
PARTS = load(FOLDER / "parts.json")
SEALS = load(FOLDER / "seals.json")
OTHER_WIDTH = {"codec/grant-wide", "codec/grant-two-groups"}
"""The plain form does not say how wide a column was."""


def judged(report: Report) -> None:
    (result,) = report.results
    expected = Verdict.NON_STRICT if result.address in OTHER_WIDTH else Verdict.PASS
    assert result.verdict is expected, result.detail


@pytest.mark.parametrize("name", [case["id"] for case in CODEC.cases])
def test_codec(name: str) -> None:
    judged(check_codec(decode_to_plain, encode_from_plain, CODEC, only=[name]))


@pytest.mark.parametrize(
    ("part", "name"),
    [(part, case["id"]) for part, vectors in MACHINES.items() for case in vectors.cases],
)
def test_machine(part: str, name: str) -> None:
    judged(check_machine(CoreMachine.make, MACHINES[part], only=[name]))


@pytest.mark.parametrize("name", [case["id"] for case in LAYOUT.cases])
def test_layout(name: str) -> None:
    judged(check_layout(translate, LAYOUT, only=[name]))


@pytest.mark.parametrize("name", [case["id"] for case in PARTS.cases])
def test_parts(name: str) -> None:
    judged(check_parts(parts_of, PARTS, only=[name]))


@pytest.mark.parametrize("name", [case["id"] for case in SEALS.cases])
def test_seals(name: str) -> None:
    judged(check_seals(open_frames, SEALS, only=[name]))


def test_files_name_their_part() -> None:
    assert {part: vectors.part for part, vectors in MACHINES.items()} == dict(
        zip(MACHINE_PARTS, MACHINE_PARTS)
    )
    assert isinstance(CODEC, Vectors)
