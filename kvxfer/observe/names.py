"""Every metric of an agent: its name, kind, labels and meaning.

Owns the names. Knows no metrics library. Invariant: what is exported, what the page
docs/observe.md lists, and what the dashboard and the alert rules ask for are all
checked against this table.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


BASE_LABELS: Final = ("engine", "rank")
"""On every series: which agent it is."""


@attrs.frozen(kw_only=True)
class Metric:
    """One family. `labels` come after BASE_LABELS."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    counter: str = ""
    """The agent's counter that it shows; empty where the collector works it out."""

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series, as an expression may use them."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.name}_total",)
            case Kind.GAUGE:
                return (self.name,)
            case Kind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum")


def _count(name: str, meaning: str, counter: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, meaning=meaning, counter=counter)


def _gauge(name: str, meaning: str, counter: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, meaning=meaning, counter=counter)


STARTED: Final = Metric(
    name="kvxfer_transfers_started",
    kind=Kind.COUNTER,
    labels=("side",),
    meaning="Transfers that the engine asked for: registrations (side=consumer) and offers "
    "(side=producer).",
)
ENDED: Final = Metric(
    name="kvxfer_transfers_ended",
    kind=Kind.COUNTER,
    labels=("side", "outcome", "reason"),
    meaning="Transfers that ended, each once: outcome landed or sent; cancelled by an engine; "
    "refused before it began; failed. `reason` is empty where it went well.",
)
LIVE: Final = Metric(
    name="kvxfer_transfers_live",
    kind=Kind.GAUGE,
    labels=("side",),
    meaning="Transfers that started and have not ended. Started = the sum of ended + live.",
)
PHASE: Final = Metric(
    name="kvxfer_phase_seconds",
    kind=Kind.HISTOGRAM,
    labels=("phase",),
    meaning="Time that a phase took, named after the milestone that ends it. D: granted (from "
    "registered), landed (from granted), ready (from landed to the engine's taking of it). "
    "P: matched (from offered), posted (from matched), sent (from posted).",
)
LAG: Final = Metric(
    name="kvxfer_writer_lag_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From a command of the engine to the writer thread's taking it.",
)
TURN: Final = Metric(
    name="kvxfer_writer_turn_seconds",
    kind=Kind.HISTOGRAM,
    meaning="One turn of the writer's loop that moved something; nobody else is served meanwhile.",
)
CPU: Final = Metric(
    name="kvxfer_writer_cpu_seconds",
    kind=Kind.COUNTER,
    meaning="CPU time of the writer thread: an upper bound of the time in which it held the "
    "interpreter lock.",
)
POST_CPU: Final = Metric(
    name="kvxfer_posting_cpu_seconds",
    kind=Kind.COUNTER,
    meaning="The part of it inside the transport's posting calls, where a library that "
    "gives the lock away does not hold it.",
)
LOST_STEPS: Final = Metric(
    name="kvxfer_steps_dropped",
    kind=Kind.COUNTER,
    meaning="Steps that a recording or a trace exporter was too slow to take.",
)

PLAIN: Final = (
    _gauge(
        "kvxfer_quarantined_edges",
        "Edges whose blocks nobody may reuse: no proof yet that the peer can not write.",
        "quarantined",
    ),
    _gauge("kvxfer_links", "Control connections that are up.", "links"),
    _gauge(
        "kvxfer_registrations_held",
        "Registrations of D that have not let go, those that ended included.",
        "registrations_held",
    ),
    _gauge("kvxfer_sources_held", "Transfers that P knows and has not released.", "sources_held"),
    _gauge("kvxfer_grants_held", "Grants (leases) of consumers that P holds.", "grants_held"),
    _gauge("kvxfer_loans_held", "Of these, what P has lent to consumers that read.", "loans_held"),
    _gauge("kvxfer_operations_open", "Parts queued or posted and not ended.", "operations_open"),
    _count("kvxfer_written_bytes", "Bytes posted as writes.", "bytes_written"),
    _count("kvxfer_read_bytes", "Bytes posted as reads.", "bytes_read"),
    _count("kvxfer_received_bytes", "Bytes of transfers that landed.", "bytes_received"),
    _count("kvxfer_descriptors_posted", "Byte ranges posted.", "descriptors_posted"),
    _count("kvxfer_pairs_refused", "Grants that met an offer and did not fit.", "pairs_refused"),
    _count("kvxfer_grants_refused", "Grants that P did not take.", "grants_refused"),
    _count("kvxfer_protocol_faults", "Messages that broke the protocol.", "protocol_faults"),
    _count("kvxfer_late_messages", "Messages about what has ended.", "late_messages"),
    _count("kvxfer_stale_messages", "Messages of or for another life.", "stale_messages"),
    _count("kvxfer_reads_after_lease", "Reads that ended after their lease.", "reads_after_lease"),
    _count("kvxfer_forged_notices", "Notices that no peer can have sent.", "forged_notices"),
    _count("kvxfer_flood_pauses", "Rests of the writer thread under a flood.", "flood_pauses"),
    _count("kvxfer_stalls", "Times the writer thread did not run for 1 s or more.", "stalls"),
)

METRICS: Final = (STARTED, ENDED, LIVE, PHASE, LAG, TURN, CPU, POST_CPU, LOST_STEPS, *PLAIN)


def table() -> str:
    """All metrics as a table in Markdown, for docs/observe.md."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        name = metric.series[0] if metric.kind is not Kind.HISTOGRAM else metric.name
        labels = ", ".join(metric.labels)
        lines.append(f"| `{name}` | {metric.kind.value} | {labels} | {metric.meaning} |")
    return "\n".join(lines) + "\n"
