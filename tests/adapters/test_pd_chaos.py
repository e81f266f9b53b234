"""The chaos harness against stand-in engines: it hits, counts, and sees what is wrong."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import attrs
import pytest

from kvxfer_vllm.pd import chaos, chaos_faults, chaos_load, engines
from kvxfer_vllm.pd.chaos import ChaosReport, in_calm, run_chaos
from kvxfer_vllm.pd.chaos_faults import Incident, Kind, Window, schedule
from kvxfer_vllm.pd.chaos_load import Ended, Fate, fate_of
from kvxfer_vllm.pd.client import Answer, Client
from kvxfer_vllm.pd.engines import EngineSpec, Policy, Stack
from kvxfer_vllm.pd.pair import Setting
from kvxfer_vllm.pd.processes import Supervisor

FAKE = Path(__file__).with_name("pd_fake_engine.py")
RATE = 30.0


def chaos_of(run: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> ChaosReport:
    """A run of three seconds in which D has this fault."""

    def argv(spec: EngineSpec, *_: object) -> list[str]:
        return [sys.executable, str(FAKE), str(spec.port), fault if spec.name == "D" else ""]

    async def main() -> ChaosReport:
        with Supervisor(grace_s=5) as supervisor:
            async with Client.open() as client:
                setting = Setting(
                    supervisor=supervisor, client=client, model=run, run=run, say=said.append
                )
                return await run_chaos(
                    setting, Stack(), Policy.FAIL, "float32", seconds=3.0, rate=RATE, seed=3
                )

    said: list[str] = []
    monkeypatch.setattr(engines, "argv", argv)
    monkeypatch.setattr(chaos_faults, "STALL_EVERY_S", (0.3, 0.6))
    monkeypatch.setattr(chaos_faults, "STALL_S", (0.05, 0.2))
    monkeypatch.setattr(chaos, "DRAIN_S", 0.0)
    return asyncio.run(main())


def test_a_pair_that_holds_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = chaos_of(tmp_path, monkeypatch, "")
    assert report.good, report.line()
    assert report.kills == 2
    assert report.cut > 0
    assert report.right + report.failed + report.cut == report.requests
    assert report.leaked == {"P": 0, "D": 0}
    assert '"good": true' in report.line()


def test_wrong_tokens_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = chaos_of(tmp_path, monkeypatch, "garbles")
    assert report.wrong > 0
    assert report.right_after == 0
    assert not report.good


def test_held_blocks_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = chaos_of(tmp_path, monkeypatch, "leaks")
    assert report.wrong == report.hung == 0
    assert report.leaked["D"]
    assert not report.good


def test_requests_that_never_end_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_load, "HANG_S", 2.0)
    monkeypatch.setattr(chaos, "AFTER_S", 0.5)
    report = chaos_of(tmp_path, monkeypatch, "hangs")
    assert report.hung > 0
    assert not report.good


def test_the_schedule_is_drawn_from_the_seed_and_kills_each_engine_in_each_cycle() -> None:
    found = schedule(1800, random.Random(7))
    assert found == schedule(1800, random.Random(7))
    assert found != schedule(1800, random.Random(8))
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    assert all(0 < one.at_s < 1800 for one in found)
    kills = [one.engine for one in found if one.kind is Kind.KILL]
    assert kills == ["D", "P"] * 8
    assert {one.engine for one in found if one.kind is Kind.STALL} == {"P", "D"}
    assert sum(one.kind is Kind.KILL for one in schedule(60, random.Random(7))) == 2


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (None, Fate.HUNG),
        (Answer(status=200, tokens=(1, 2, 3)), Fate.RIGHT),
        (Answer(status=200, tokens=(1, 9, 3)), Fate.WRONG),
        (Answer(status=200, tokens=(1, 2, 3, 4)), Fate.WRONG),
        (Answer(status=200, tokens=(1, 2)), Fate.FAILED),
        (Answer(status=500), Fate.FAILED),
        (Answer(status=0), Fate.FAILED),
    ],
)
def test_what_an_answer_amounts_to(answer: Answer | None, fate: Fate) -> None:
    assert fate_of(answer, (1, 2, 3)) is fate


def test_a_failure_is_in_calm_away_from_all_incidents() -> None:
    incident = Incident(kind=Kind.STALL, engine="P", at_s=0)
    window = Window(incident=incident, begun_s=100, ended_s=110)
    lives = [(90, 99), (90, 101), (109, 120), (114, 120), (116, 120)]
    ended = [Ended(fate=Fate.FAILED, begun_s=a, ended_s=b, what="") for a, b in lives]
    right = attrs.evolve(ended[0], fate=Fate.RIGHT)
    assert in_calm([*ended, right], [window]) == [ended[0], ended[4]]
