"""What two hosts can do together, from their reports.

Owns the rules. Refuses to connect anything: what the network between two hosts lets
through, only a transfer shows. Invariant: where a transport is called usable, each of
its conditions holds on both sides; else the first that does not is named, with a fix.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvxfer.doctor.probe import Trial
from kvxfer.doctor.report import Report
from kvxfer.transport.finding import Finding, Level

_MEMORY = {"MEM_DRAM": "host memory", "MEM_CUDA": "GPU memory", "MEM_NEURON": "Neuron memory"}


def judge(here: Report, there: Report) -> tuple[Finding, ...]:
    """One finding for the protocol, then those of each transport that either side knows.

    A transport that works on neither side is a note; one that works on one side only is a
    problem, and so is a pair without any.
    """
    theirs = {trial.name: trial for trial in there.trials}
    ours = {trial.name: trial for trial in here.trials}
    found = [_protocol(here, there)]
    for name in sorted(ours.keys() | theirs.keys()):
        found += _transport(name, here, there, ours.get(name), theirs.get(name))
    if not any(f.level is Level.FINE for f in found[1:]):
        text = "no transport works between the two sides"
        fix = "make one work on both: the notes above name what is missing"
        found.append(Finding(level=Level.PROBLEM, subject="transports", text=text, fix=fix))
    return tuple(found)


def _protocol(here: Report, there: Report) -> Finding:
    top = min(here.protocol[1], there.protocol[1])
    ranges = f"{_range(here)} here, {_range(there)} there"
    if top < max(here.protocol[0], there.protocol[0]):
        return Finding(
            level=Level.PROBLEM,
            subject="protocol",
            text=f"no version in common: {ranges}",
            fix="upgrade kvxfer on the older side",
        )
    return Finding(level=Level.FINE, subject="protocol", text=f"version {top} ({ranges})")


def _range(report: Report) -> str:
    low, high = report.protocol
    return str(low) if low == high else f"{low} to {high}"


def _transport(
    name: str, here: Report, there: Report, ours: Trial | None, theirs: Trial | None
) -> Iterator[Finding]:
    on_neither = not any(trial is not None and trial.works for trial in (ours, theirs))
    for trial, side, report in ((ours, "here", here), (theirs, "there", there)):
        if trial is None or not trial.works:
            detail = "not known" if trial is None else trial.detail
            yield Finding(
                level=Level.NOTE if on_neither else Level.PROBLEM,
                subject=name,
                text=f"does not work {side} ({report.host.name}): {detail}",
                fix="run `kvxfer doctor` on that host and follow what it says",
            )
            return
    assert ours is not None and theirs is not None  # noqa: PT018 - the loop has shown both
    apart = here.host.boot_id != there.host.boot_id
    too_near = _too_near(ours, apart)
    if too_near:
        fix = "choose another transport for these two engines"
        yield Finding(level=Level.NOTE, subject=name, text=too_near, fix=fix)
        return
    yield from _versions(name, here, there)
    memory = [text for flag, text in _MEMORY.items() if flag in ours.caps and flag in theirs.caps]
    if not memory:
        yield Finding(
            level=Level.PROBLEM,
            subject=name,
            text=f"no kind of memory in common: {_kinds(ours)} here, {_kinds(theirs)} there",
            fix="keep both caches in host memory, or choose a transport that has one kind on both",
        )
        return
    yield Finding(level=Level.FINE, subject=name, text=f"both sides open it; {', '.join(memory)}")
    if apart:
        yield from _between_hosts(name, here, there)


def _too_near(trial: Trial, apart: bool) -> str:
    """How far it reaches, where that is not far enough."""
    if "CROSS_PROCESS" not in trial.caps:
        return "works within one process only"
    return "works within one host only, and these are two" if apart and trial.one_host else ""


def _kinds(trial: Trial) -> str:
    return ", ".join(text for flag, text in _MEMORY.items() if flag in trial.caps) or "none"


def _versions(name: str, here: Report, there: Report) -> Iterator[Finding]:
    ours, theirs = here.host.versions.get(name, ""), there.host.versions.get(name, "")
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        yield Finding(
            level=Level.PROBLEM,
            subject=name,
            text=f"{ours} here and {theirs} there: major and minor must be the same",
            fix=f"pip install '{name}=={max(ours, theirs)}' on both",
        )


def _between_hosts(name: str, here: Report, there: Report) -> Iterator[Finding]:
    ours = {device.rpartition(" ")[2] for device in here.host.rdma_devices}
    theirs = {device.rpartition(" ")[2] for device in there.host.rdma_devices}
    if not ours & theirs:
        yield Finding(
            level=Level.NOTE,
            subject=name,
            text="the two hosts have no kind of RDMA device in common: TCP at best",
            fix="nothing, where TCP is fast enough",
        )
