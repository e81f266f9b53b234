"""The judges find broken peers, and say nothing of what is only different in form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvxfer.conformance.report import Verdict
from kvxfer.conformance.vectors import (
    MACHINE_PARTS,
    Plain,
    Rejected,
    Skipped,
    Vectors,
    check_codec,
    check_layout,
    check_machine,
    check_parts,
    check_seals,
    load,
    merged,
)
from kvxfer.conformance.vectors_core import CoreMachine, decode_to_plain, encode_from_plain
from kvxfer.conformance.vectors_match import difference, fits, joined_ranges
from kvxfer.conformance.vectors_seals import open_frames
from kvxfer.errors import BadValue

FOLDER = Path(__file__).resolve().parents[2] / "spec" / "vectors"
CODEC = load(FOLDER / "codec.json")


@attrs.define
class Bent:
    """The core with one habit changed at its border."""

    inner: CoreMachine

    @classmethod
    def make(cls, settings: Plain) -> Bent:
        return cls(CoreMachine.make(settings))

    def step(self, event: Plain, at_ms: int) -> Sequence[Plain]:
        return self.bend(self.inner.step(self.hear(event), at_ms))

    def hear(self, event: Plain) -> Plain:
        return event

    def bend(self, effects: Sequence[Plain]) -> list[Plain]:
        return list(effects)


class FreesOnLoss(Bent):
    """Gives blocks back when the request is lost, whoever may still write."""

    def bend(self, effects: Sequence[Plain]) -> list[Plain]:
        kept = [e for e in effects if e["effect"] != "let_go"]
        free = [{**e, "effect": "let_go"} for e in kept if e["effect"] == "lost"]
        return kept + [{k: v for k, v in e.items() if k != "reason"} for e in free]


class CountsNotices(Bent):
    """Takes any notice for the next part that is missing, whatever part it names."""

    def hear(self, event: Plain) -> Plain:
        if event["event"] != "notification":
            return event
        registrations = self.inner.session.consumer.registrations.values()
        for registration in registrations:
            for edge in registration.edges.values():
                waiting = [p for p, state in edge.parts.items() if state.value == "expected"]
                if waiting:
                    named = {**event["message"], "part": list(attrs.astuple(waiting[0]))}
                    return {**event, "message": named}
        return event


class ForgetsTheIncarnation(Bent):
    """Believes whatever life a message names."""

    def hear(self, event: Plain) -> Plain:
        head = event.get("message", {}).get("header")
        link = self.inner.session.ctx.links.get(event.get("link"))
        if head is None or link is None:
            return event
        me = self.inner.session.me.incarnation
        known = {**head, "sender": link.peer.incarnation, "receiver": me}
        return {**event, "message": {**event["message"], "header": known}}


class MatchesByPrefix(Bent):
    """Cuts names at a dash, as engines do that add a suffix to a request id."""

    def hear(self, event: Plain) -> Plain:
        def cut(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: cut(v) for k, v in value.items()}
            return value

        def short(value: Plain) -> Plain:
            if "transfer_id" in value:
                value = {**value, "transfer_id": value["transfer_id"].split("-")[0]}
            return {k: short(v) if isinstance(v, dict) else v for k, v in value.items()}

        return short(cut(event))


class SaysNothingOfFailures(Bent):
    """Leaves the consumer to its deadline."""

    def bend(self, effects: Sequence[Plain]) -> list[Plain]:
        silent = ("FAILED", "NEVER_POSTED")
        return [
            e for e in effects if not (e["effect"] == "send" and e["message"]["type"] in silent)
        ]


class PostsWhatWasQueued(Bent):
    """Never looks again at the moment of posting."""

    def step(self, event: Plain, at_ms: int) -> Sequence[Plain]:
        got = list(super().step(event, at_ms))
        return got or [{"effect": "post", "op": event["op"]}] if "op" in event else got


class AnswersAtOnce(Bent):
    """CANCELLED, although operations are in flight."""

    def bend(self, effects: Sequence[Plain]) -> list[Plain]:
        def now(e: Plain) -> Plain:
            if e["effect"] == "send" and e["message"]["type"] == "GRANT_ACK":
                return {**e, "message": {**e["message"], "type": "CANCELLED"}}
            return e

        return [now(e) for e in effects]


class ClosesWithoutAWord(Bent):
    """Ends a handshake that it does not like, and gives no reason."""

    def bend(self, effects: Sequence[Plain]) -> list[Plain]:
        return [e for e in effects if e.get("message", {}).get("type") != "REFUSE"]


class IsSlow(Bent):
    """Its clock runs 2 ms behind."""

    def step(self, event: Plain, at_ms: int) -> Sequence[Plain]:
        return super().step(event, max(0, at_ms - 2))


class UnpinsOnExpiry(Bent):
    """Tells the engine at the end of a lease, whatever reads the blocks."""

    def bend(self, effects: Sequence[Plain]) -> list[Plain]:
        stopped = [e["op"] for e in effects if e["effect"] == "stop"]
        early = [
            {"effect": "unsent", "tag": "p1", "transfer_id": op["transfer_id"], "reason": "NONE"}
            for op in stopped
        ]
        return list(effects) + early


BROKEN = [
    (FreesOnLoss, "completion", "cancelled-then-drained"),
    (FreesOnLoss, "completion", "link-lost-and-not-fenced"),
    (CountsNotices, "completion", "part-twice-before-the-end"),
    (CountsNotices, "completion", "part-of-another-group"),
    (ForgetsTheIncarnation, "completion", "done-from-an-older-life"),
    (ForgetsTheIncarnation, "pairing", "grant-of-another-life"),
    (MatchesByPrefix, "pairing", "name-is-a-prefix"),
    (MatchesByPrefix, "completion", "done-of-a-longer-name"),
    (SaysNothingOfFailures, "completion", "failed-and-quiet"),
    (SaysNothingOfFailures, "pairing", "digests-differ"),
    (PostsWhatWasQueued, "pairing", "claimed-after-a-cancel"),
    (PostsWhatWasQueued, "expiry", "expired-while-queued"),
    (AnswersAtOnce, "completion", "cancelled-in-flight"),
    (AnswersAtOnce, "completion", "cancelled-and-unproven"),
    (ClosesWithoutAWord, "handshake", "version-too-new"),
    (IsSlow, "expiry", "grant-expires"),
    (UnpinsOnExpiry, "expiry", "expired-in-flight"),
]


@pytest.mark.parametrize(("machine", "part", "name"), BROKEN)
def test_a_broken_machine_fails(machine: type[Bent], part: str, name: str) -> None:
    vectors = load(FOLDER / f"{part}.json")
    assert check_machine(machine.make, vectors, only=[name]).failed == (f"{part}/{name}",)


@pytest.mark.parametrize("part", MACHINE_PARTS)
def test_a_machine_that_does_nothing_fails_almost_everything(part: str) -> None:
    class Deaf:
        def step(self, _event: Plain, _at_ms: int) -> list[Plain]:
            return []

    report = check_machine(lambda _settings: Deaf(), load(FOLDER / f"{part}.json"))
    # A few cases are all about saying nothing.
    assert len(report.failed) >= 0.9 * len(report.results)


def test_a_machine_that_raises_fails_that_case_and_the_next_is_judged() -> None:
    class Fragile:
        def step(self, _event: Plain, _at_ms: int) -> list[Plain]:
            raise RuntimeError("not today")

    vectors = load(FOLDER / "expiry.json")
    report = check_machine(lambda _settings: Fragile(), vectors)
    assert len(report.failed) == len(vectors.cases)
    assert "not today" in report.results[0].detail


def test_order_of_messages_over_one_link_is_judged() -> None:
    def sent(kind: str, link: int = 1) -> Plain:
        return {"effect": "send", "link": link, "message": {"type": kind}}

    told = {"effect": "sent", "tag": "p", "transfer_id": "t"}
    wanted = [sent("A"), told, sent("B")]
    assert difference(wanted, [told, sent("A"), sent("B")]) == ""
    assert "another order" in difference(wanted, [sent("B"), told, sent("A")])
    assert "too much" in difference(wanted, [*wanted, told])
    assert "lacks" in difference(wanted, wanted[:2])
    assert difference([sent("A"), sent("B", 2)], [sent("B", 2), sent("A")]) == ""


def test_keys_that_a_case_leaves_out_are_not_judged() -> None:
    assert fits({"type": "REFUSE"}, {"type": "REFUSE", "detail": "for people"})
    assert not fits({"type": "REFUSE", "reason": "NONE"}, {"type": "REFUSE"})
    assert not fits([1, 2], [1])
    assert not fits(1, True)


def refuse_all(_data: bytes) -> tuple[str, Plain]:
    raise Rejected


def skip_all(_data: bytes) -> tuple[str, Plain]:
    raise Skipped


def no_bounds(data: bytes) -> tuple[str, Plain]:
    try:
        return decode_to_plain(data)
    except Rejected:
        return "BYE", {"reason": 0}


@pytest.mark.parametrize(
    ("decode", "verdict"),
    [(refuse_all, "accept"), (skip_all, "reject"), (no_bounds, "reject"), (refuse_all, "skip")],
)
def test_a_broken_decoder_fails(decode: Any, verdict: str) -> None:
    report = check_codec(decode, encode_from_plain, CODEC)
    wrong = [c for c in CODEC.cases if c["verdict"] == verdict]
    named = {f"codec/{c['id']}" for c in wrong if "non-strict" not in c.get("flags", ())}
    assert named <= set(report.failed)
    assert not report.ok


def test_a_wrong_value_fails_and_another_encoding_is_non_strict() -> None:
    def off_by_one(data: bytes) -> tuple[str, Plain]:
        name, message = decode_to_plain(data)
        return name, {**message, "reason": message["reason"] + 1}

    assert check_codec(off_by_one, encode_from_plain, CODEC, only=["bye"]).failed == ("codec/bye",)
    longer = check_codec(decode_to_plain, lambda *_: b"\x98\x02", CODEC, only=["bye"])
    assert [r.verdict for r in longer.results] == [Verdict.NON_STRICT]


def test_a_receiver_may_accept_what_is_marked_so() -> None:
    report = check_codec(lambda _: ("BYE", {}), encode_from_plain, CODEC, only=["key-array"])
    assert [r.verdict for r in report.results] == [Verdict.NON_STRICT]


def from_the_first_token(case: Plain) -> list[list[int]]:
    """Counts the grid from the first token that is wanted, not from token 0."""
    start, stop = case["tokens"]
    step = case["part_tokens"] or stop
    cuts = [*range(start, stop, step), stop]
    return [[case["producer_rank"], 0, a, b] for a, b in itertools.pairwise(cuts)]


def test_a_cut_that_both_sides_would_see_otherwise_fails() -> None:
    failed = check_parts(from_the_first_token, load(FOLDER / "parts.json")).failed
    assert {"parts/cut-at-multiples", "parts/one-too-many", "parts/layers-of-the-last-cell"} <= set(
        failed
    )
    assert "parts/begins-on-the-grid" not in failed


class TakesAnyProof(Bent):
    """Does not look at what is proven."""

    def hear(self, event: Plain) -> Plain:
        return {**event, "right": True} if event["event"] == "proof" else event


class TalkedOut(Bent):
    """Does not require a key, whatever it was told."""

    @classmethod
    def make(cls, settings: Plain) -> Bent:
        return cls(CoreMachine.make({**settings, "require_key": False}))


@pytest.mark.parametrize(
    ("broken", "cases"),
    [
        (TakesAnyProof, {"wrong-proof-of-the-dialler", "wrong-proof-of-the-acceptor"}),
        (TalkedOut, {"no-key", "no-key-in-welcome"}),
    ],
)
def test_a_machine_that_authenticates_nobody_fails(broken: type[Bent], cases: set[str]) -> None:
    failed = check_machine(broken.make, load(FOLDER / "authentication.json")).failed
    assert {f"authentication/{case}" for case in cases} == set(failed)


def without_numbers(case: Plain) -> Plain:
    """Opens every frame as if it were the first one."""
    singles = [open_frames({**case, "frames": [frame]}) for frame in case["frames"]]
    opened = [message for single in singles for message in single["opened"]]
    return {**open_frames(case), "opened": opened, "refused": len(opened) < len(singles)}


def test_seals_without_a_number_fail() -> None:
    failed = set(check_seals(without_numbers, load(FOLDER / "seals.json")).failed)
    assert failed >= {"seals/sent-again", "seals/turned-round", "seals/dialler"}
    assert "seals/changed" not in failed


LAYOUT = Vectors(
    part="layout",
    settings={},
    cases=(
        {
            "id": "two",
            "note": "two ranges that touch",
            "verdict": "accept",
            "parts": [{"part": [0, 0, 0, 2], "ranges": [[0, 0, 0, 64, 32]]}],
        },
        {"id": "no", "note": "refused", "verdict": "reject", "reason": "LAYOUT_REFUSED"},
    ),
)


def layout(ranges: list[list[int]], reason: str = "LAYOUT_REFUSED") -> Any:
    def translate(case: Plain) -> list[Plain]:
        if case["verdict"] == "reject":
            raise Rejected(reason)
        return [{"part": [0, 0, 0, 2], "ranges": ranges}]

    return translate


def test_layout_is_judged_by_bytes_not_by_cuts() -> None:
    cut = [[0, 16, 0, 80, 16], [0, 0, 0, 64, 16]]
    assert check_layout(layout(cut), LAYOUT).ok
    assert joined_ranges(cut) == [(0, 0, 0, 64, 32)]
    for wrong in ([], [[0, 0, 0, 64, 31]], [[0, 1, 0, 64, 32]], [*cut, [0, 0, 1, 0, 1]]):
        assert check_layout(layout(wrong), LAYOUT).failed == ("layout/two",)
    assert check_layout(layout(cut, "OUT_OF_BOUNDS"), LAYOUT).failed == ("layout/no",)
    assert check_layout(lambda _: [], LAYOUT).failed == ("layout/two", "layout/no")

    def refuse(_case: Plain) -> list[Plain]:
        raise Rejected("LAYOUT_REFUSED")

    assert check_layout(refuse, LAYOUT).failed == ("layout/two",)


def test_superseded_cases_are_left_out_and_strange_files_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    whole = {
        "protocol": "kvxfer-1",
        "part": "expiry",
        "superseded": {"a": "b"},
        "vectors": [{"id": "a"}, {"id": "b"}],
    }
    path.write_text(json.dumps(whole), encoding="utf-8")
    vectors = load(path)
    assert [case["id"] for case in vectors.cases] == ["b"]
    with pytest.raises(BadValue, match="ids of expiry"):
        vectors.named(["a"])
    path.write_text(json.dumps({**whole, "protocol": "kvxfer-2"}), encoding="utf-8")
    with pytest.raises(BadValue, match="kvxfer-1"):
        load(path)


def test_settings_of_a_case_lie_over_those_of_the_file() -> None:
    whole = merged({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": 4})
    assert whole == {"a": {"x": 1, "y": 3}, "b": 1, "c": 4}
