"""Verdicts and how they are shown.

Owns the result of one run. Refuses to know what was judged. Invariant: each case
that was asked for has exactly one verdict, and a run without a case is no success.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import attrs

from kvxfer.transport.caps import Caps

NO_CAPS: Final = Caps(0)


class Verdict(Enum):
    """What a case said."""

    PASS = "pass"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    """The subject declares that it cannot do this; nothing was judged."""
    NON_STRICT = "non-strict"
    """The requirement is kept in its letter, in a way that peers should not rely on."""


@attrs.frozen(kw_only=True)
class CaseResult:
    """One case: its address, what it asks for, and what came out."""

    address: str
    """Rule number and case number, for example T8.1: rule 8 of `kvxfer.transport.ops`."""
    requirement: str
    verdict: Verdict
    detail: str = ""
    measures: Mapping[str, float] = attrs.field(factory=dict, eq=False)
    """What was measured in passing, by name; units last. Never judged tighter than the rules do."""
    failures: str = ""
    """Classes of failure that the case stands against, see `kvxfer.conformance.case.Case`."""
    duration_s: float = attrs.field(default=0.0, eq=False)


@attrs.frozen(kw_only=True)
class Report:
    """All results of one run over `subject`."""

    subject: str
    results: tuple[CaseResult, ...]
    caps: Caps = NO_CAPS
    """What the sessions of the run declared."""

    @property
    def ok(self) -> bool:
        """True where something was judged and nothing failed."""
        judged = [r for r in self.results if r.verdict is not Verdict.UNSUPPORTED]
        return bool(judged) and not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Addresses of the cases that failed."""
        return tuple(r.address for r in self.results if r.verdict is Verdict.FAIL)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """How many cases have each verdict; all verdicts are keys."""
        found = Counter(r.verdict for r in self.results)
        return {verdict: found[verdict] for verdict in Verdict}

    def text(self) -> str:
        """One line a case, a detail line below where there is one, and a sum."""
        lines = [f"{self.subject}: {len(self.results)} cases"]
        for result in self.results:
            lines.append(f"{result.verdict.value:<12}{result.address:<8}{result.requirement}")
            lines += [f"{'':<20}{line}" for line in (result.detail, measured(result)) if line]
        shown = ", ".join(f"{count} {verdict.value}" for verdict, count in self.counts.items())
        lines.append(f"{self.subject}: {shown}")
        return "\n".join(lines) + "\n"

    def rows(self) -> dict[str, Any]:
        """The run as plain values for JSON: counts by verdict, and one row a case."""
        return {
            "transport": self.subject,
            "ok": self.ok,
            "caps": [flag.name for flag in Caps if flag in self.caps],
            "counts": {verdict.value: count for verdict, count in self.counts.items()},
            "failed": list(self.failed),
            "cases": [
                {
                    "address": result.address,
                    "requirement": result.requirement,
                    "verdict": result.verdict.value,
                    "detail": result.detail,
                    "measures": dict(result.measures),
                    "failures": result.failures,
                    "duration_s": round(result.duration_s, 4),
                }
                for result in self.results
            ],
        }

    def junit(self) -> str:
        """The run as JUnit XML: unsupported cases are skipped, non-strict ones pass with a note."""
        counts = self.counts
        suite = ET.Element(
            "testsuite",
            name=f"kvxfer.conformance.{self.subject}",
            tests=str(len(self.results)),
            failures=str(counts[Verdict.FAIL]),
            skipped=str(counts[Verdict.UNSUPPORTED]),
            errors="0",
            time=f"{sum(r.duration_s for r in self.results):.3f}",
        )
        for result in self.results:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=self.subject,
                name=f"{result.address} {result.requirement}",
                time=f"{result.duration_s:.3f}",
            )
            match result.verdict:
                case Verdict.FAIL:
                    ET.SubElement(case, "failure", message=_xml_text(result.detail))
                case Verdict.UNSUPPORTED:
                    ET.SubElement(case, "skipped", message=_xml_text(result.detail))
                case Verdict.NON_STRICT:
                    ET.SubElement(case, "system-out").text = _xml_text(result.detail)
                case Verdict.PASS:
                    pass
        ET.indent(suite)
        return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def measured(result: CaseResult) -> str:
    """The measures of a case in one line; empty where it has none."""
    return ", ".join(f"{name} = {value:.6g}" for name, value in result.measures.items())


def _xml_text(text: str) -> str:
    """`text` without the control characters that XML cannot carry."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )
