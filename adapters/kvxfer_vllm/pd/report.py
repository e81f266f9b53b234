"""The verdicts, as values that can be printed as one JSON line.

Owns what counts as good. Starts nothing and reads nothing. Invariant: a report is good
only if every number in it is; a number that could not be taken is not good.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class Control:
    """The negative control: legs of two prompts crossed on purpose, `crossed` times each way."""

    crossed: int
    refused: int | None
    """With the digest check on, D answered with an error. None: the connector has no check."""
    differs: int
    """With the check off, D's tokens were not those of its own prompt."""

    @property
    def good(self) -> bool:
        all_refused = self.refused is None or self.refused == self.crossed
        return self.crossed > 0 and all_refused and self.differs == self.crossed


@attrs.frozen(kw_only=True)
class CheckReport:
    """What `check` found. Bytes and tokens are sums over all requests."""

    connector: str
    mode: str
    dtype: str
    requests: int
    identical: int
    prompt_tokens: int
    external_tokens: int
    """Prompt tokens that D took from P."""
    recomputed_tokens: int
    recomputed_requests: int | None
    """None where legs run in series: vLLM then counts by P's prefix cache, not by D's work."""
    kv_bytes_received: int
    kv_bytes_expected: int
    """At the least: prompt tokens times bytes of KV per token."""
    kv_bytes_read: int | None
    """Those of them that D read itself; None where the connector does not count."""
    streamed: int | None
    """Requests of which KV was offered while P still computed; None as above."""
    sliced: int | None
    """Those of them whose last chunk was begun by layers; None as above."""
    quarantined: int
    leaked: int
    """Blocks still held on P and D, together, after the drain."""
    negative_control: Control
    seconds: float

    @property
    def good(self) -> bool:
        return (
            0 < self.requests == self.identical
            and self.external_tokens == self.prompt_tokens
            and self.recomputed_tokens == 0
            and self.recomputed_requests in (0, None)
            and self.kv_bytes_received >= self.kv_bytes_expected > 0
            and self.moved_as_asked
            and self.quarantined == self.leaked == 0
            and self.negative_control.good
        )

    @property
    def moved_as_asked(self) -> bool:
        """The KV went the way that the mode says, as far as the connector counts."""
        reads = self.kv_bytes_received if self.mode == "pull" else 0
        layers = self.mode == "push-layers"
        streams = layers or self.mode == "push-stream"
        return self.kv_bytes_read in (None, reads) and all(
            count is None or (count > 0) == asked
            for count, asked in ((self.streamed, streams), (self.sliced, layers))
        )

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps({"good": self.good, **attrs.asdict(self)})


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that should hold after a fault, and whether it did."""

    what: str
    ok: bool
    seen: str = ""

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'} {self.what}" + (f": {self.seen}" * bool(self.seen))


@attrs.frozen(kw_only=True)
class ProbeReport:
    """One probe. Without findings nothing was shown, which is not good."""

    probe: str
    policy: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def good(self) -> bool:
        return bool(self.findings) and all(finding.ok for finding in self.findings)

    def line(self) -> str:
        """One line of JSON."""
        failed = [str(finding) for finding in self.findings if not finding.ok]
        return json.dumps(
            {
                "probe": self.probe,
                "policy": self.policy,
                "good": self.good,
                "findings": len(self.findings),
                "failed": failed,
                "seconds": round(self.seconds, 1),
            }
        )


def total_line(connector: str, reports: Sequence[ProbeReport]) -> str:
    """One line of JSON over all probes."""
    failed = [f"{report.probe}/{report.policy}" for report in reports if not report.good]
    return json.dumps(
        {
            "connector": connector,
            "probes": len(reports),
            "passed": len(reports) - len(failed),
            "failed": failed,
            "good": bool(reports) and not failed,
            "seconds": round(sum(report.seconds for report in reports), 1),
        }
    )
