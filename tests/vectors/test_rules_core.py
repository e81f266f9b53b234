"""Rules that are about everything a peer does, not about one step: no vector can say them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvxfer.conformance.vectors import MACHINE_PARTS, load, merged
from kvxfer.conformance.vectors_core import CoreMachine

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spec"))
from vectorgen.words import (
    P0,
    SHUT_DOWN,
    TIME,
    fence_result,
    link_up,
    lost_link,
    offer,
    register,
)

FOLDER = Path(__file__).resolve().parents[2] / "spec" / "vectors"
FILES = {part: load(FOLDER / f"{part}.json") for part in MACHINE_PARTS}
BASE = {
    "HELLO",
    "WELCOME",
    "REFUSE",
    "DESCRIBE",
    "BYE",
    "GRANT",
    "GRANT_ACK",
    "RENEW",
    "GONE",
    "CANCEL",
    "CANCELLED",
    "FAILED",
    "NEVER_POSTED",
}
"""What a peer of version 1.0 without any feature may be sent over the control connection."""


def consumer(**changes: Any) -> CoreMachine:
    me = {"role": "CONSUMER", "engine_id": "eng-D", "incarnation": 1000}
    return CoreMachine.make(merged(FILES["expiry"].settings, {**me, **changes}))


def test_shutting_down_gives_no_block_back_that_somebody_may_write_into() -> None:
    machine = consumer()
    machine.step(link_up(1, P0, dialled=True), 0)
    machine.step(register(), 0)
    machine.step(lost_link(), 1)
    machine.step(fence_result(P0, False), 2)
    machine.step(SHUT_DOWN, 3)
    seen = [e["effect"] for at_ms in range(1000, 100_000, 1000) for e in machine.step(TIME, at_ms)]
    assert "fence" in seen
    assert "let_go" not in seen
    assert [e["effect"] for e in machine.step(fence_result(P0, True), 100_000)] == ["let_go"]


def test_a_peer_without_features_is_told_nothing_of_them() -> None:
    """Whoever has no feature himself says nothing that belongs to one."""
    for vectors in FILES.values():
        for case in vectors.cases:
            settings = merged(vectors.settings, case["settings"])
            if settings["features"] or settings["keys"]:
                continue
            machine = CoreMachine.make(settings)
            for step in case["steps"]:
                sent = [
                    e["message"]
                    for e in machine.step(step["in"], step["at_ms"])
                    if e["effect"] == "send"
                ]
                assert {m["type"] for m in sent} <= BASE
                assert all(len(p) == 4 for m in sent for p in m.get("parts", ()))
                assert all("initiator" not in m for m in sent)


@pytest.mark.parametrize("part", MACHINE_PARTS)
def test_the_same_steps_give_the_same_effects(part: str) -> None:
    """No clock and no chance inside: a case is a replay."""
    for case in FILES[part].cases:
        settings = merged(FILES[part].settings, case["settings"])
        runs = []
        for _ in range(2):
            machine = CoreMachine.make(settings)
            runs.append([machine.step(step["in"], step["at_ms"]) for step in case["steps"]])
        assert runs[0] == runs[1]


def test_what_is_live_at_the_end_of_a_case_is_what_the_case_left_open() -> None:
    """An offer that nobody takes ends by its lease: nothing stays for ever."""
    machine = CoreMachine.make(merged(FILES["expiry"].settings, {"role": "PRODUCER"}))
    machine.step(offer(), 0)
    assert machine.session.live() == 1
    machine.step(TIME, 30_000)
    assert machine.session.live() == 0
