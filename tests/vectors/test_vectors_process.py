"""A peer in another process: judged as one in this, and unable to hang the judge."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvxfer.conformance.vectors import check_machine, load
from kvxfer.conformance.vectors_process import ProcessFactory

HERE = Path(__file__).parent
VECTORS = load(HERE.parents[1] / "spec" / "vectors" / "expiry.json")
NAMES = ["grant-expires", "renews", "fence-is-retried"]
GOOD = [sys.executable, str(HERE / "core_over_lines.py")]


def test_a_peer_in_another_process_is_judged() -> None:
    factory = ProcessFactory(GOOD)
    report = check_machine(factory, VECTORS, only=NAMES)
    factory.close()
    factory.close()
    assert report.ok
    assert len(report.results) == len(NAMES)


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("import sys; sys.exit(3)", "one line of JSON"),
        ("while True: input(); print('nonsense', flush=True)", "one line of JSON"),
        ("while True: input(); print('[1]', flush=True)", "an object"),
        ("while True: input(); print('{}', flush=True)", "an array of effects"),
        ("import time; time.sleep(60)", "within 0.3 s"),
        ("input(); print('{}', flush=True); input()", "one line of JSON"),
    ],
)
def test_one_that_does_not_answer_fails_the_case(script: str, what: str) -> None:
    answer_s = 0.3 if "within" in what else 20.0
    factory = ProcessFactory([sys.executable, "-c", script], answer_s)
    report = check_machine(factory, VECTORS, only=NAMES[:2])
    factory.close()
    assert len(report.failed) == 2
    assert what in report.results[0].detail
