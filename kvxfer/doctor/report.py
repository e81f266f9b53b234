"""The report of one host, and its form in JSON.

Owns what a report holds. Refuses to look at anything itself. Invariant: a report that
was written and read again is equal to the one before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kvxfer.core.messages import VERSION_MAX, VERSION_MIN
from kvxfer.doctor.host import Host, findings, look
from kvxfer.doctor.neuron import neuron_findings
from kvxfer.doctor.probe import Trial, attempt
from kvxfer.doctor.reading import build
from kvxfer.errors import BadValue
from kvxfer.transport.finding import Finding, Level
from kvxfer.transport.registry import Found, available

FORMAT = 1


@attrs.frozen(kw_only=True)
class Report:
    """One host: facts, protocol versions, every transport."""

    host: Host
    protocol: tuple[int, int]
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Those of the host, then those of each transport."""
        return self.findings + tuple(f for trial in self.trials for f in trial.findings)

    def to_json(self) -> dict[str, Any]:
        plain = attrs.asdict(self, value_serializer=_plain)
        return {"format": FORMAT, **plain}


def examine(
    find: Callable[[], Iterable[Found]] = available, trial: Callable[[Found], Trial] = attempt
) -> Report:
    """Look at this host and try every transport that is known here."""
    host = look()
    return Report(
        host=host,
        protocol=(VERSION_MIN, VERSION_MAX),
        trials=tuple(trial(found) for found in find()),
        findings=(*findings(host), *neuron_findings(host, os.environ)),
    )


def read_report(text: str) -> Report:
    """A report from its JSON. Raises BadValue where it is not one."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadValue("report", text[:60], f"no JSON: {error}") from None
    if not isinstance(plain, dict) or "format" not in plain:
        raise BadValue("report", text[:60], "not the output of `doctor --json`: it has no format")
    if plain.pop("format") != FORMAT:
        raise BadValue("format", text[:60], f"this version reads {FORMAT}")
    report: Report = build(Report, plain, "report")
    return report


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    return value.value if isinstance(value, Level) else value
