"""Reports: text, JUnit, and what counts as success."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from kvxfer.conformance import CaseResult, Report, Verdict


def _report(*verdicts: Verdict) -> Report:
    return Report(
        subject="sample",
        results=tuple(
            CaseResult(
                address=f"T1.{number}",
                requirement=f"requirement {number}",
                verdict=verdict,
                detail="" if verdict is Verdict.PASS else f"why <{number}> & \x00",
                duration_s=0.25,
            )
            for number, verdict in enumerate(verdicts, 1)
        ),
    )


def test_success_needs_something_judged_and_nothing_failed() -> None:
    assert _report(Verdict.PASS, Verdict.UNSUPPORTED, Verdict.NON_STRICT).ok
    assert not _report(Verdict.PASS, Verdict.FAIL).ok
    assert not _report(Verdict.UNSUPPORTED).ok
    assert not _report().ok


def test_counts_name_every_verdict() -> None:
    counts = _report(Verdict.PASS, Verdict.PASS, Verdict.FAIL).counts
    assert counts == {
        Verdict.PASS: 2,
        Verdict.FAIL: 1,
        Verdict.UNSUPPORTED: 0,
        Verdict.NON_STRICT: 0,
    }


def test_text_has_a_line_for_each_case_and_the_sum() -> None:
    lines = _report(Verdict.PASS, Verdict.FAIL).text().splitlines()
    assert lines[0] == "sample: 2 cases"
    assert lines[1].split() == ["pass", "T1.1", "requirement", "1"]
    assert lines[2].split() == ["fail", "T1.2", "requirement", "2"]
    assert "why <2>" in lines[3]
    assert lines[-1] == "sample: 1 pass, 1 fail, 0 unsupported, 0 non-strict"


def test_junit_is_well_formed_whatever_the_details_hold() -> None:
    verdicts = (Verdict.PASS, Verdict.FAIL, Verdict.UNSUPPORTED, Verdict.NON_STRICT)
    suite = ET.fromstring(_report(*verdicts).junit())
    assert suite.attrib["tests"] == "4"
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["skipped"] == "1"
    assert suite.attrib["time"] == "1.000"
    children = [[child.tag for child in case] for case in suite]
    assert children == [[], ["failure"], ["skipped"], ["system-out"]]
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"] == "why <2> & \N{REPLACEMENT CHARACTER}"
