"""Trying one transport, in a process of its own.

Owns the trial: load, open, flags, the plug-in's own findings. A foreign library may
hang or crash while it loads; that must cost its row of the report and nothing else.
Run as a script: NAME, prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import attrs

from kvxfer.errors import KvxferError
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.finding import Finding, Level
from kvxfer.transport.registry import Found, descriptor_of, open_transport

TRIAL_S_MAX = 60.0


@attrs.frozen(kw_only=True)
class Trial:
    """What came of one transport. `caps` holds names of flags; empty where it did not open."""

    name: str
    summary: str
    detail: str
    works: bool
    caps: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    one_host: bool = False

    def with_findings(self, *findings: Finding) -> Trial:
        return attrs.evolve(self, findings=findings)


def attempt(found: Found) -> Trial:
    """Try `found` in a child process, for at most TRIAL_S_MAX seconds."""
    if found.status == Status.LIBRARY_MISSING:
        # Nobody needs every transport: it is worth a note until somebody wants this one.
        fix = "only where you want this transport: install what the text names"
        missing = Finding(level=Level.NOTE, subject=found.name, text=found.detail, fix=fix)
        return _failed(found, found.detail, fix).with_findings(missing)
    if found.status != Status.OK:
        return _failed(found, found.detail, "see the text: the plug-in itself is broken")
    command = [sys.executable, "-m", __name__, found.name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(found, f"did not open within {TRIAL_S_MAX:.0f} s", "look at its library")
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        text = f"the process that opened it ended with {done.returncode}: {done.stderr[-300:]}"
        return _failed(found, text, "a crash of its library: another version of it may not")
    answer = json.loads(lines[-1])
    if answer["needs_options"]:
        finding = Finding(
            level=Level.NOTE,
            subject=found.name,
            text=f"opens with its own options only: {answer['error']}",
            fix="give them where you choose the transport (`kvxfer conform --options` tries them)",
        )
        return _failed(found, answer["error"], finding.fix).with_findings(finding)
    if answer["error"]:
        return _failed(found, answer["error"], "see the text")
    return Trial(
        name=found.name,
        summary=found.summary,
        detail=found.detail,
        works=True,
        caps=tuple(answer["caps"]),
        findings=tuple(
            Finding(level=Level(f["level"]), subject=f["subject"], text=f["text"], fix=f["fix"])
            for f in answer["findings"]
        ),
        one_host=answer["one_host"],
    )


def _failed(found: Found, text: str, fix: str) -> Trial:
    finding = Finding(level=Level.PROBLEM, subject=found.name, text=text, fix=fix)
    return Trial(
        name=found.name, summary=found.summary, detail=text, works=False, findings=(finding,)
    )


def trial_here(name: str) -> dict[str, Any]:
    """What the child prints."""
    one_host = False
    try:
        ops = open_transport(name)
        status, session = ops.open({})
        needs_options = status == Status.OP_INVALID
        error = "" if status == Status.OK else f"{status.name}: {ops.last_error(session)}"
        caps = Caps(0) if error else ops.caps(session)
        if not error:
            ops.close(session)
        descriptor = descriptor_of(name)
        found, one_host = list(descriptor.diagnose()), descriptor.one_host
    except KvxferError as fault:
        error, caps, found, needs_options = str(fault), Caps(0), [], False
    return {
        "error": error,
        "needs_options": needs_options,
        "one_host": one_host,
        "caps": [flag.name for flag in Caps if flag in caps],
        "findings": [attrs.asdict(one) | {"level": one.level.value} for one in found],
    }


if __name__ == "__main__":
    print(json.dumps(trial_here(sys.argv[1])))  # noqa: T201 - the child's answer
