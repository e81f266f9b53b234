"""Transfer statistics of one worker, in the shape of vLLM's nixl connectors.

Owns the keys. Knows no vLLM type. Invariant: every key is always there and holds a
list of numbers, as vLLM's own aggregation expects; lists are empty where nothing
happened. The first nine keys are those of vLLM 0.32's nixl statistics; a consumer
fills them too, which the in-tree push connector does not, so that what it received
can be read from its own metrics. The time to post is 0: it is spent in the writer
thread, not in the engine. The other keys become `vllm:kvxfer_*` metrics.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kvxfer.driver import Reason
from kvxfer.driver.results import Landed, Lost, Result, Sent, Unsent

IN_TREE_KEYS = (
    "transfer_duration",
    "post_duration",
    "bytes_transferred",
    "num_descriptors",
    "num_failed_transfers",
    "num_failed_notifications",
    "num_failed_handshakes",
    "num_kv_expired_reqs",
    "num_notifications_after_expiry",
)

COUNTERS = (
    "registered",
    "landed",
    "lost",
    "cancelled",
    "offered",
    "sent",
    "unsent",
    "protocol_faults",
    "writer_cpu_us",
    "posting_cpu_us",
    "bytes_received",
    "bytes_written",
    "bytes_read",
    "descriptors_posted",
    "streamed",
    "sliced",
)
"""Counters that only grow, the agent's but for the last two; published as differences."""

GAUGES = (
    "quarantined",
    "live",
    "links",
    "consumer_live",
    "producer_live",
    "registrations_held",
    "grants_held",
)
"""Counters of the agent that go up and down; published as they are."""

KVXFER_PREFIX = "kvxfer_"

_FAILURE_KEYS = ("num_failed_transfers", "num_failed_handshakes", "num_failed_notifications")

_HANDSHAKE_REASONS = frozenset(
    {
        Reason.UNREACHABLE,
        Reason.LAYOUT_REFUSED,
        Reason.VERSION_MISMATCH,
        Reason.WRONG_PEER,
        Reason.TRANSPORT_MISMATCH,
        Reason.ROLE_MISMATCH,
    }
)

_TINY_S = 1e-6
"""vLLM divides by the sum of durations."""

Data = dict[str, list[float]]


def empty_data() -> Data:
    """All keys, no values."""
    data: Data = {key: [] for key in IN_TREE_KEYS}
    data.update({KVXFER_PREFIX + name: [] for name in (*COUNTERS, *GAUGES)})
    return data


def is_empty(data: Mapping[str, list[float]]) -> bool:
    """True where no key has a value."""
    return not any(data.values())


def add_up(total: Data, more: Mapping[str, list[float]]) -> None:
    """Append the lists of `more` to those of `total`."""
    for key, values in more.items():
        total.setdefault(key, []).extend(values)


def summary(data: Mapping[str, list[float]]) -> dict[str, int | float]:
    """A few numbers for vLLM's log line: transfers that went well, their time and size."""
    seconds, sizes = data["transfer_duration"], data["bytes_transferred"]
    count = len(seconds)
    numbers: dict[str, int | float] = {
        "Num successful transfers": count,
        "Num failed transfers": sum(len(data[key]) for key in _FAILURE_KEYS),
        "Num KV expired reqs": len(data["num_kv_expired_reqs"]),
    }
    if count:
        numbers["Avg xfer time (ms)"] = round(1000 * sum(seconds) / count, 3)
        numbers["Max xfer time (ms)"] = round(1000 * max(seconds), 3)
        numbers["Avg MB per transfer"] = round(sum(sizes) / count / 2**20, 3)
    return numbers


def is_failure(reason: Reason) -> bool:
    """True where a transfer ended although neither engine wanted it to end."""
    return reason not in (Reason.CANCELLED_BY_CONSUMER, Reason.PRODUCER_ABORTED, Reason.NONE)


@attrs.define
class StatsCollector:
    """Collects between two calls of `take`. One thread only."""

    streamed: int = 0
    """Offers that were begun while their prefill ran."""
    sliced: int = 0
    """Those of them whose last chunk was begun while its later layers were computed."""
    _data: Data = attrs.field(factory=empty_data)
    _published: dict[str, int] = attrs.field(factory=dict)

    def add(self, result: Result) -> None:
        """Enter one result of the agent. A source that was read, in pull, moved nothing itself."""
        match result:
            case Landed():
                self._transfer(result.elapsed_ms, result.bytes_received, result.descriptors)
            case Sent() if result.bytes_written:
                self._transfer(result.elapsed_ms, result.bytes_written, result.descriptors)
            case Lost(reason=reason) | Unsent(reason=reason):
                self._failure(reason)
            case _:
                pass

    def take(self, counters: Mapping[str, int]) -> Data | None:
        """What is new since the last call, None where nothing is. `counters` are the agent's."""
        values = {**counters, "streamed": self.streamed, "sliced": self.sliced}
        for name in (*COUNTERS, *GAUGES):
            value = values.get(name, 0)
            before = self._published.get(name, 0)
            if value != before:
                self._data[KVXFER_PREFIX + name].append(value if name in GAUGES else value - before)
                self._published[name] = value
        if is_empty(self._data):
            return None
        data, self._data = self._data, empty_data()
        return data

    def _transfer(self, elapsed_ms: float, size: int, descriptors: int) -> None:
        self._data["transfer_duration"].append(max(elapsed_ms / 1000, _TINY_S))
        self._data["post_duration"].append(0.0)
        self._data["bytes_transferred"].append(size)
        self._data["num_descriptors"].append(descriptors)

    def _failure(self, reason: Reason) -> None:
        if reason is Reason.OFFER_EXPIRED:
            self._data["num_kv_expired_reqs"].append(1)
        elif reason in _HANDSHAKE_REASONS:
            self._data["num_failed_handshakes"].append(1)
        elif is_failure(reason):
            self._data["num_failed_transfers"].append(1)
