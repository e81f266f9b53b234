"""Judges an implementation by the files of spec/vectors.

Owns the reading of vector files and the verdict on each case. Refuses to know how a
peer is built: it is given as functions, or as a machine that takes one event and
gives its effects, all in the plain form of the files. Invariant: a case passes only
where everything that the file names came out, and nothing besides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs

from kvxfer.conformance.report import CaseResult, Report, Verdict
from kvxfer.conformance.vectors_match import difference, joined_ranges
from kvxfer.errors import BadValue

Plain: TypeAlias = dict[str, Any]
"""An object of a vector file: text keys, and values that JSON has."""

PROTOCOL = "kvxfer-1"
MACHINE_PARTS = (
    "handshake",
    "pairing",
    "completion",
    "expiry",
    "pull",
    "streaming",
    "drain",
    "authentication",
)
"""Parts whose cases are steps of a machine."""


class Rejected(Exception):
    """Raised by a subject for input that must be refused; `reason` where the part has reasons."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Skipped(Exception):
    """Raised by a decoder for a well-formed message of a type that it does not know."""


class Machine(Protocol):
    """One peer under test: no clock and no network of its own."""

    def step(self, event: Plain, at_ms: int) -> Sequence[Plain]:
        """Time is now `at_ms` (what fell due until then happens first); then `event`.

        Gives every effect of both, in order.
        """


MakeMachine: TypeAlias = Callable[[Plain], Machine]
"""Makes a machine in its first state from the `settings` of a case."""

Decode: TypeAlias = Callable[[bytes], tuple[str, Plain]]
"""Bytes to (name of the type, fields). Raises `Rejected` or `Skipped`."""

Encode: TypeAlias = Callable[[str, Plain], bytes]

Translate: TypeAlias = Callable[[Plain], list[Plain]]
"""A layout case to its `parts`. Raises `Rejected` with the reason."""


@attrs.frozen(kw_only=True)
class Vectors:
    """One file: the cases that are in force, in order."""

    part: str
    settings: Plain
    cases: tuple[Plain, ...]

    def named(self, only: Iterable[str] | None) -> tuple[Plain, ...]:
        """The cases with these ids, or all. BadValue names an id that is not there."""
        if only is None:
            return self.cases
        wanted = set(only)
        unknown = sorted(wanted - {case["id"] for case in self.cases})
        if unknown:
            raise BadValue("only", unknown, f"ids of {self.part}.json")
        return tuple(case for case in self.cases if case["id"] in wanted)


def load(path: Path | str) -> Vectors:
    """Read one vector file. Cases that a later one supersedes are left out.

    Raises BadValue where the file is not one of this protocol.
    """
    whole = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(whole, dict) or whole.get("protocol") != PROTOCOL:
        raise BadValue("vectors", str(path), f"a file of {PROTOCOL}")
    gone = whole.get("superseded", {})
    return Vectors(
        part=whole["part"],
        settings=whole.get("settings", {}),
        cases=tuple(v for v in whole["vectors"] if v["id"] not in gone),
    )


def check_codec(
    decode: Decode, encode: Encode, vectors: Vectors, *, only: Iterable[str] | None = None
) -> Report:
    """Judge a codec: what it accepts, refuses and skips, and what it writes."""
    return _run(vectors, only, lambda case: _codec(decode, encode, case))


def check_machine(
    factory: MakeMachine, vectors: Vectors, *, only: Iterable[str] | None = None
) -> Report:
    """Judge the state machines: each step of a case must give exactly its effects.

    Messages of one link keep their order; other effects of one step may come in any.
    """
    return _run(vectors, only, lambda case: _machine(factory, vectors.settings, case))


def check_parts(
    cut: Callable[[Plain], list[list[int]]], vectors: Vectors, *, only: Iterable[str] | None = None
) -> Report:
    """Judge the cutting of parts: the set that both sides have to know by themselves."""

    def judge(case: Plain) -> tuple[Verdict, str]:
        got = sorted(cut(case))
        same = got == sorted(case["parts"])
        return _passed("" if same else f"{len(got)} parts, the first {got[:3]}")

    return _run(vectors, only, judge)


def check_seals(
    open_frames: Callable[[Plain], Plain], vectors: Vectors, *, only: Iterable[str] | None = None
) -> Report:
    """Judge authentication: both proofs, and which frames open.

    The subject gives `dialler_proof`, `acceptor_proof`, `opened`, and `refused`: whether it
    stopped at a frame.
    """

    def judge(case: Plain) -> tuple[Verdict, str]:
        got = open_frames(case)
        wanted = {key: case[key] for key in ("dialler_proof", "acceptor_proof", "opened")}
        wanted["refused"] = case["verdict"] == "reject"
        wrong = [key for key, value in wanted.items() if got[key] != value]
        return _passed(f"{wrong[0]}: {got[wrong[0]]}" if wrong else "")

    return _run(vectors, only, judge)


def check_layout(
    translate: Translate, vectors: Vectors, *, only: Iterable[str] | None = None
) -> Report:
    """Judge the layout maths: the same bytes to the same places, however they are cut."""
    return _run(vectors, only, lambda case: _layout(translate, case))


def _run(
    vectors: Vectors, only: Iterable[str] | None, judge: Callable[[Plain], tuple[Verdict, str]]
) -> Report:
    results = []
    for case in vectors.named(only):
        started = time.monotonic()
        try:
            verdict, detail = judge(case)
        except Exception as error:  # noqa: BLE001 - a subject may break a case in any way
            verdict, detail = Verdict.FAIL, f"{type(error).__name__}: {error}"
        results.append(
            CaseResult(
                address=f"{vectors.part}/{case['id']}",
                requirement=case["note"],
                verdict=verdict,
                detail=detail,
                duration_s=time.monotonic() - started,
            )
        )
    return Report(subject=f"vectors of {vectors.part}", results=tuple(results))


def _passed(wrong: str) -> tuple[Verdict, str]:
    return (Verdict.FAIL, wrong) if wrong else (Verdict.PASS, "")


def _codec(decode: Decode, encode: Encode, case: Plain) -> tuple[Verdict, str]:
    data = bytes.fromhex(case["hex"])
    try:
        name, message = decode(data)
    except Rejected:
        return _passed("" if case["verdict"] == "reject" else "refused")
    except Skipped:
        return _passed("" if case["verdict"] == "skip" else "skipped")
    if case["verdict"] == "reject" and "non-strict" in case.get("flags", ()):
        return Verdict.NON_STRICT, "accepted, as a receiver may"
    if case["verdict"] != "accept":
        return _passed(f"accepted as {name}")
    if (name, message) != (case["type"], case["message"]):
        return _passed(f"read as {name} {message}")
    if case["canonical"] and encode(name, message) != data:
        return Verdict.NON_STRICT, "written in another form, which every receiver accepts"
    return _passed("")


def _machine(factory: MakeMachine, settings: Plain, case: Plain) -> tuple[Verdict, str]:
    machine = factory(merged(settings, case["settings"]))
    for number, step in enumerate(case["steps"], 1):
        got = machine.step(step["in"], step["at_ms"])
        wrong = difference(step["out"], got)
        if wrong:
            return _passed(f"step {number}, {step['in']['event']}: {wrong}")
    return _passed("")


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """The settings of a file with those of one case over them, map by map."""
    whole = dict(settings)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
        whole[key] = {**whole[key], **value} if both else value
    return whole


def _layout(translate: Translate, case: Plain) -> tuple[Verdict, str]:
    try:
        parts = translate(case)
    except Rejected as refusal:
        if case["verdict"] == "accept":
            return _passed(f"refused with {refusal.reason}")
        same = refusal.reason == case["reason"]
        return _passed("" if same else f"refused with {refusal.reason}, not {case['reason']}")
    if case["verdict"] == "reject":
        return _passed("accepted")
    got = {tuple(p["part"]): joined_ranges(p["ranges"]) for p in parts}
    wanted = {tuple(p["part"]): joined_ranges(p["ranges"]) for p in case["parts"]}
    if got.keys() != wanted.keys():
        return _passed(f"parts {sorted(got)}, not {sorted(wanted)}")
    wrong = [part for part in wanted if got[part] != wanted[part]]
    return _passed(f"other bytes in part {wrong[0]}" if wrong else "")
