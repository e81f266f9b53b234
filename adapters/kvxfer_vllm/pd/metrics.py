"""Reads an engine's Prometheus text into numbers that can be subtracted.

Owns the parsing and the names of the series that prove a transfer. Invariant: a series
that is not there counts as 0, since engines publish some only after the first event;
`has` tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from prometheus_client.parser import text_string_to_metric_families

from kvxfer.errors import RemoteFault

Sample = tuple[str, frozenset[tuple[str, str]]]

BY_SOURCE = "vllm:prompt_tokens_by_source_total"
EXTERNAL = "external_kv_transfer"
LOCAL = "local_compute"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
PREFILL_COMPUTED = "vllm:request_prefill_kv_computed_tokens"
USAGE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG = "vllm:cache_config_info"
BYTES_RECEIVED = "vllm:kvxfer_bytes_received_total"
BYTES_READ = "vllm:kvxfer_bytes_read_total"
STREAMED = "vllm:kvxfer_streamed_total"
SLICED = "vllm:kvxfer_sliced_total"
QUARANTINED = "vllm:kvxfer_quarantined"


@attrs.frozen(kw_only=True)
class Snapshot:
    """All samples of one scrape, by name and labels."""

    samples: Mapping[Sample, float]

    def has(self, name: str) -> bool:
        """True where at least one sample has this name."""
        return any(sample == name for sample, _ in self.samples)

    def value(self, name: str, **labels: str) -> float:
        """Sum over all samples of this name that carry these labels; 0 where there is none."""
        wanted = labels.items()
        return sum(
            value
            for (sample, its_labels), value in self.samples.items()
            if sample == name and wanted <= dict(its_labels).items()
        )

    def label(self, name: str, label: str) -> str:
        """A label's text on the first sample of this name. Raises RemoteFault without one."""
        for sample, its_labels in self.samples:
            if sample == name and label in dict(its_labels):
                return dict(its_labels)[label]
        raise RemoteFault(name, None, f"a sample with the label {label}")


def parse(text: str) -> Snapshot:
    """Read the text format. Raises RemoteFault where it is not that."""
    samples: dict[Sample, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name, frozenset(sample.labels.items())] = float(sample.value)
    except (ValueError, KeyError) as bad:
        raise RemoteFault("/metrics", text[:40], f"Prometheus text ({bad})") from bad
    return Snapshot(samples=samples)


def blocks_in_use(snapshot: Snapshot) -> int:
    """KV blocks that are held. The gauge is a share of all blocks but the null block."""
    blocks = int(snapshot.label(CACHE_CONFIG, "num_gpu_blocks")) - 1
    return round(snapshot.value(USAGE) * blocks)


@attrs.frozen(kw_only=True)
class Received:
    """What a decode engine did between two scrapes with the prompts it was given."""

    external_tokens: int
    """Prompt tokens whose KV came from another engine."""
    external_hits: int
    """The same as the scheduler counted them when it admitted the requests."""
    local_tokens: int
    """Prompt tokens that the engine computed itself."""
    finished_requests: int
    recomputed_requests: int
    """Finished requests of which more than one prompt token was computed here."""
    bytes_received: int | None
    """As counted by the connector; None where it does not count."""
    bytes_read: int | None = None
    """Those that this engine read itself; 0 where they were written into it."""


def received_between(before: Snapshot, after: Snapshot) -> Received:
    """The difference of two scrapes of one engine."""

    def grown(name: str, **labels: str) -> int:
        return round(after.value(name, **labels) - before.value(name, **labels))

    finished = grown(PREFILL_COMPUTED + "_count")
    # The lowest bucket; that nothing at all was computed is told by `local_tokens`.
    at_most_one = grown(PREFILL_COMPUTED + "_bucket", le="1.0")
    counted = after.has(BYTES_RECEIVED)
    return Received(
        external_tokens=grown(BY_SOURCE, source=EXTERNAL),
        external_hits=grown(EXTERNAL_HITS),
        local_tokens=grown(BY_SOURCE, source=LOCAL),
        finished_requests=finished,
        recomputed_requests=finished - at_most_one,
        bytes_received=grown(BYTES_RECEIVED) if counted else None,
        bytes_read=grown(BYTES_READ) if counted else None,
    )
