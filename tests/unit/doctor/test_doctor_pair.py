"""Two reports against each other, the trial of a transport, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from kvxfer.cli import main
from kvxfer.doctor import probe
from kvxfer.doctor.host import look
from kvxfer.doctor.pair import judge
from kvxfer.doctor.probe import Trial, attempt, trial_here
from kvxfer.doctor.report import Report, examine, read_report
from kvxfer.errors import BadValue
from kvxfer.status import Status
from kvxfer.transport.finding import Finding, Level
from kvxfer.transport.registry import Found

_NET = Trial(
    name="net",
    summary="",
    detail="net 1.2.3",
    works=True,
    caps=("CROSS_PROCESS", "MEM_DRAM", "MEM_CUDA"),
    findings=(Finding(level=Level.FINE, subject="net", text="fine"),),
)
_HERE = Report(
    host=attrs.evolve(look(), versions={"net": "1.2.3"}, rdma_devices=("a0 efa",)),
    protocol=(1, 2),
    trials=(_NET,),
    findings=(),
)
_THERE = attrs.evolve(_HERE, host=attrs.evolve(_HERE.host, boot_id="another", name="there"))


def _worst(there: Report, here: Report = _HERE) -> tuple[Level, str]:
    order = [Level.FINE, Level.NOTE, Level.PROBLEM]
    found = max(judge(here, there), key=lambda f: order.index(f.level))
    return found.level, found.text


def _there(**change: Any) -> Report:
    return attrs.evolve(_THERE, trials=(attrs.evolve(_NET, **change),))


def test_alike_hosts_can_work_together() -> None:
    found = judge(_HERE, _THERE)
    assert {f.level for f in found} == {Level.FINE}
    assert "host memory, GPU memory" in found[-1].text


def test_what_reaches_one_host_is_no_way_to_another() -> None:
    near = attrs.evolve(_NET, one_host=True)
    here = attrs.evolve(_HERE, trials=(near,))
    found = judge(here, attrs.evolve(_THERE, trials=(near,)))
    assert [f.text for f in found if f.level is Level.PROBLEM] == [
        "no transport works between the two sides"
    ]
    assert "within one host only" in found[1].text
    assert {f.level for f in judge(here, here)} == {Level.FINE}


def test_two_kinds_of_memory_do_not_meet() -> None:
    here = attrs.evolve(_HERE, trials=(attrs.evolve(_NET, caps=("CROSS_PROCESS", "MEM_DRAM")),))
    found = judge(here, _there(caps=("CROSS_PROCESS", "MEM_CUDA")))
    assert "host memory here, GPU memory there" in found[1].text
    assert (found[1].level, bool(found[1].fix)) == (Level.PROBLEM, True)


def test_memory_counts_where_both_have_it() -> None:
    text = judge(_HERE, _there(caps=("CROSS_PROCESS", "MEM_DRAM")))[-1].text
    assert "host memory" in text
    assert "GPU" not in text


def test_what_stands_in_the_way_is_named() -> None:
    versions = attrs.evolve(_THERE, host=attrs.evolve(_THERE.host, versions={"net": "1.3.0"}))
    assert _worst(versions) == (
        Level.PROBLEM,
        "1.2.3 here and 1.3.0 there: major and minor must be the same",
    )
    level, text = _worst(_there(works=False, detail="no library"))
    assert level is Level.PROBLEM
    assert text == "does not work there (there): no library"
    level, text = _worst(attrs.evolve(_THERE, trials=()))
    assert (level, text) == (Level.PROBLEM, "does not work there (there): not known")
    level, text = _worst(attrs.evolve(_THERE, protocol=(3, 4)))
    assert (level, text) == (Level.PROBLEM, "no version in common: 1 to 2 here, 3 to 4 there")
    other = attrs.evolve(_THERE.host, rdma_devices=("m0 mlx5_core",))
    assert _worst(attrs.evolve(_THERE, host=other))[0] is Level.NOTE
    alone = attrs.evolve(_NET, caps=("MEM_DRAM",))
    found = judge(attrs.evolve(_HERE, trials=(alone,)), _THERE)
    assert [f.level for f in found if f.subject == "net"] == [Level.NOTE]


def test_what_works_on_neither_side_is_a_note_and_a_pair_without_any_a_problem() -> None:
    broken = attrs.evolve(_NET, works=False, detail="no library")
    other = attrs.evolve(_NET, name="other", works=False, detail="no library")
    both = [attrs.evolve(side, trials=(_NET, other)) for side in (_HERE, _THERE)]
    assert {f.level for f in judge(*both)} == {Level.FINE, Level.NOTE}
    none = [attrs.evolve(side, trials=(broken, other)) for side in (_HERE, _THERE)]
    found = judge(*none)
    assert [f.subject for f in found if f.level is Level.PROBLEM] == ["transports"]


def test_a_report_survives_json() -> None:
    assert read_report(json.dumps(_HERE.to_json())) == _HERE


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 9}', '{"format": 1, "host": {}}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"report|format"):
        read_report(text)


def _found(name: str, status: Status = Status.OK) -> Found:
    return Found(name=name, summary="s", status=status, detail="d", origin="o")


def test_the_loopback_is_tried_in_a_process_of_its_own() -> None:
    trial = attempt(_found("loopback"))
    assert trial.works
    assert "MEM_DRAM" in trial.caps


def test_a_transport_that_cannot_be_used_costs_its_row_only() -> None:
    missing = attempt(_found("net", Status.LIBRARY_MISSING))
    assert (missing.works, missing.detail) == (False, "d")
    assert missing.findings[0].level is Level.NOTE
    assert attempt(_found("net", Status.SESSION_FAILED)).findings[0].level is Level.PROBLEM
    unknown = attempt(_found("nosuch"))
    assert not unknown.works
    assert "known here are" in unknown.detail
    assert unknown.findings[0].level is Level.PROBLEM


def test_a_trial_that_hangs_or_crashes_costs_its_row_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\nkill -SEGV $$\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(probe.sys, "executable", str(stand_in))
    assert "ended with -11" in attempt(_found("loopback")).detail
    stand_in.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(probe, "TRIAL_S_MAX", 0.1)
    assert "did not open within" in attempt(_found("loopback")).detail


def test_the_child_tells_what_it_found() -> None:
    answer = trial_here("loopback")
    assert answer["error"] == ""
    assert answer["findings"] == []


def test_examine_tries_all_that_is_known() -> None:
    report = examine(lambda: [_found("net")], lambda found: attrs.evolve(_NET, name=found.name))
    assert [trial.name for trial in report.trials] == ["net"]
    assert report.all_findings[-1].subject == "net"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvxfer.doctor.report.examine", lambda: _HERE)
    written = CliRunner().invoke(main, ["doctor", "--json"])
    assert written.exit_code == 0, written.output
    there = tmp_path / "there.json"
    there.write_text(json.dumps(attrs.evolve(_THERE, protocol=(7, 7)).to_json()))
    shown = CliRunner().invoke(main, ["doctor"])
    assert "net" in shown.output
    pair = CliRunner().invoke(main, ["doctor", str(there), "--json"])
    assert pair.exit_code == 1
    assert json.loads(pair.stdout)["findings"][0]["level"] == "problem"
    both = CliRunner().invoke(main, ["doctor", str(there), str(there)])
    assert both.exit_code == 0
    assert "version 7" in both.output
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert CliRunner().invoke(main, ["doctor", str(bad)]).exit_code == 2
    assert CliRunner().invoke(main, ["doctor", *[str(there)] * 3]).exit_code == 2


def test_a_transport_that_wants_options_is_no_problem() -> None:
    found = attempt(_found("capi"))
    assert not found.works
    (note,) = found.findings
    assert note.level is Level.NOTE
    assert "library" in note.text
