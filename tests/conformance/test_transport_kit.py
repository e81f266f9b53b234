"""The public kit over every transport that works here. A transport is done when this passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from queue import Queue
from threading import Thread
from typing import Any

import attrs
import pytest

from kvxfer.conformance import (
    Verdict,
    check_installed,
    check_transport,
    far_pair_maker,
    pair_maker,
    transport_cases,
)
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import ContractBroken, FaultPlan, checked, faulty, traced
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.registry import available, open_transport
from kvxfer.transport.stubs import SLOTS

FAR = {case.address for case in transport_cases() if case.far}
"""Cases between two processes: not for a transport that lives in one."""
SLOW = {"load", "sizes", "life", "failures"}
QUICK = [
    case.address
    for case in transport_cases()
    if not case.far and case.body.__module__.rpartition("_")[2] not in SLOW
]
"""For the wrappers, which change nothing about sizes and rounds."""
_PAUSE_S = 0.001


def _no_pause() -> None:
    """The loopback goes on in its own polls."""


@attrs.frozen(kw_only=True)
class Subject:
    """How the sessions of one transport are opened, and how long the kit looks."""

    options: Mapping[str, Any] = attrs.field(factory=dict)
    step: Callable[[], None] = lambda: time.sleep(_PAUSE_S)
    settle_s: float = 0.05


SUBJECTS = {
    "loopback": Subject(step=_no_pause, settle_s=0.0),
    "nixl": Subject(),
}
"""Transports judged case by case here; the sample in C is judged as a whole below."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return {entry.name: entry for entry in available()}


@pytest.mark.parametrize("name", sorted(SUBJECTS))
@pytest.mark.parametrize("address", [case.address for case in transport_cases()])
def test_case(name: str, address: str, found: dict[str, Any]) -> None:
    if name not in found:
        pytest.skip(f"{name}: no distribution with its entry point is installed")
    if found[name].status != Status.OK:
        pytest.skip(f"{name}: {found[name].detail}")
    subject = SUBJECTS[name]
    options = subject.options
    report = check_transport(
        pair_maker(open_transport(name), options=lambda _end: options, step=subject.step),
        make_far_pair=far_pair_maker(name, options=lambda _end: options, step=subject.step),
        only=[address],
        settle_s=subject.settle_s,
    )
    (result,) = report.results
    if result.verdict is Verdict.UNSUPPORTED:
        pytest.skip(result.detail)
    assert result.verdict in (Verdict.PASS, Verdict.NON_STRICT), result.detail


def test_the_reference_skips_nothing_and_is_strict() -> None:
    report = check_transport(pair_maker(make_ops(Hub())), settle_s=0.0)
    judged = {result.verdict for result in report.results if result.address not in FAR}
    assert judged == {Verdict.PASS}, report.text()


def test_the_sample_in_c_is_strict_and_skips_only_what_it_does_not_declare(
    cma_library: str,
) -> None:
    report = check_installed("capi", options={"library": cma_library})
    verdicts = {result.address: result.verdict for result in report.results}
    assert set(verdicts.values()) <= {Verdict.PASS, Verdict.UNSUPPORTED}, report.text()
    skipped = {address for address, verdict in verdicts.items() if verdict is Verdict.UNSUPPORTED}
    undeclared = Caps.REVOKE_REGION | Caps.CLOSE_FENCES
    assert skipped == {case.address for case in transport_cases() if case.needs & undeclared}
    assert report.caps & undeclared == Caps(0)


def test_any_case_runs_between_two_processes_too(cma_library: str) -> None:
    only = ["T1.1", "T1.2", "T2.2", "T6.1", "T8.1", "T9.8", "T12.1", "T13.2", "T14.1", "T15.1"]
    report = check_installed("capi", options={"library": cma_library}, across=True, only=only)
    assert report.counts[Verdict.PASS] == len(only), report.text()


@pytest.mark.parametrize("wrap", ["traced", "faulty", "faulty in the loopback"])
def test_a_wrapped_table_still_conforms(wrap: str) -> None:
    ops, options = make_ops(Hub()), {}
    if wrap == "traced":
        ops = traced(ops, lambda call: None)
    elif wrap == "faulty":
        ops = faulty(ops, FaultPlan())
    else:
        options = {"faults": FaultPlan()}
    report = check_transport(
        pair_maker(ops, options=lambda _name: options), only=QUICK, settle_s=0.0
    )
    assert report.counts[Verdict.PASS] == len(report.results), report.text()


def test_the_reference_breaks_no_rule_that_the_checker_watches() -> None:
    broken: list[ContractBroken] = []
    ops = checked(make_ops(Hub()), broken)
    # Left out are the cases that break the caller's side of the contract on purpose.
    on_purpose = {"T1.1", "T1.2"}
    only = [address for address in QUICK if address not in on_purpose]
    report = check_transport(pair_maker(ops), only=only, settle_s=0.0)
    assert report.ok, report.text()
    assert broken == []


class Owner:
    """A thread that owns one session and makes the calls it is given, one at a time."""

    def __init__(self) -> None:
        self._calls: Queue[Callable[[], Any] | None] = Queue()
        self._answers: Queue[Any] = Queue()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._answers.put(call())

    def do(self, call: Callable[[], Any]) -> Any:
        self._calls.put(call)
        return self._answers.get(timeout=30)

    def stop(self) -> None:
        self._calls.put(None)
        self._thread.join(timeout=30)


def test_the_kit_drives_sessions_that_live_in_other_threads() -> None:
    """Each session is owned by a thread of its own; the kit sees a plain table."""
    broken: list[ContractBroken] = []
    inner = checked(make_ops(Hub()), broken)
    owners: dict[int, Owner] = {}

    def open_(options: Mapping[str, Any]) -> Any:
        owner = Owner()
        status, session = owner.do(lambda: inner.open(options))
        owners[session] = owner
        return status, session

    def slot(name: str) -> Callable[..., Any]:
        call = getattr(inner, name)
        return lambda session, *args: owners[session].do(lambda: call(session, *args))

    slots = {name: slot(name) for name in SLOTS if name != "open"}
    ops = attrs.evolve(inner, **(slots | {"open": open_}))
    only = ["T5.1", "T6.1", "T6.4", "T7.2", "T8.1", "T8.4", "T9.1", "T9.7", "T10.1", "T11.7"]
    try:
        report = check_transport(pair_maker(ops), only=only, settle_s=0.0)
    finally:
        for owner in owners.values():
            owner.stop()
    assert report.ok, report.text()
    assert broken == []
