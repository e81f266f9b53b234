"""Agents as a Prometheus collector.

Owns the reading of agents at each scrape. Needs prometheus_client (the extra
`metrics`). Invariants: a scrape costs the writer thread nothing; an agent that is
closed keeps its last numbers; one that has died does not spoil the scrape of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from wsgiref.simple_server import WSGIServer

import attrs
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from kvxfer.core.ids import Reason
from kvxfer.driver.agent import Agent
from kvxfer.driver.watch import CONSUMER, PRODUCER, SIDES
from kvxfer.observe.names import (
    BASE_LABELS,
    CPU,
    ENDED,
    LAG,
    LIVE,
    LOST_STEPS,
    METRICS,
    PHASE,
    PLAIN,
    POST_CPU,
    STARTED,
    TURN,
    Kind,
    Metric,
)
from kvxfer.record.histogram import Snapshot

Labels = tuple[str, ...]

_NONE_YET: Final = {
    (CONSUMER, "landed", Reason.NONE): 0,
    (PRODUCER, "sent", Reason.NONE): 0,
}
"""Series that are there from the start, so that a rate has a first point."""


@attrs.define
class Server:
    """The running metrics endpoint of `serve`."""

    server: WSGIServer
    port: int

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


class AgentCollector:
    """Shows agents under their engine id and rank. Register it in any registry.

    Several ranks of one process go into one collector, since a registry refuses a
    family that two collectors name.
    """

    def __init__(self, *agents: Agent) -> None:
        self._agents = agents

    def describe(self) -> Iterable[Family]:
        """Families without samples, so that registering asks no agent."""
        return list(_families().values())

    def collect(self) -> Iterator[Family]:
        families = _families()
        for agent in self._agents:
            _read(agent, families)
        yield from families.values()


def serve(*agents: Agent, port: int, host: str = "127.0.0.1") -> Server:
    """Serve the metrics of these agents on http://host:port/metrics, in a thread.

    Loopback unless another host is given: the page names engines and is open to
    whoever reaches it. Port 0 takes a free one, see `Server.port`. OSError where the
    address cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(AgentCollector(*agents))
    server, _ = start_http_server(port, addr=host, registry=registry)
    return Server(server, server.server_port)


def _families() -> dict[str, Family]:
    kinds = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    return {
        m.name: kinds[m.kind](m.name, m.meaning, labels=(*BASE_LABELS, *m.labels)) for m in METRICS
    }


def _read(agent: Agent, families: dict[str, Family]) -> None:
    base = (agent.config.engine_id, str(agent.config.shard.rank))
    watch, counters, outcomes = agent.watch, agent.counters(), agent.outcomes()

    def put(metric: Metric, value: float, *labels: str) -> None:
        families[metric.name].add_metric((*base, *labels), value)

    for side in SIDES:
        put(STARTED, outcomes.started.get(side, 0), side)
        put(LIVE, outcomes.live.get(side, 0), side)
    for (side, outcome, reason), count in sorted({**_NONE_YET, **outcomes.ended}.items()):
        put(ENDED, count, side, outcome, "" if reason is Reason.NONE else reason.name.lower())
    for phase, histogram in watch.phases.histograms.items():
        _put_histogram(families[PHASE.name], (*base, phase), histogram.snapshot())
    _put_histogram(families[LAG.name], base, watch.meter.lag.snapshot())
    _put_histogram(families[TURN.name], base, watch.meter.turn.snapshot())
    put(CPU, watch.meter.cpu_s)
    put(POST_CPU, watch.meter.post_cpu_s)
    put(LOST_STEPS, watch.tap.dropped if watch.tap is not None else 0)
    for metric in PLAIN:
        put(metric, counters.get(metric.counter, 0))


def _put_histogram(family: Family, labels: Labels, seen: Snapshot) -> None:
    buckets, running = [], 0
    for bound, count in zip((*map(str, seen.bounds), "+Inf"), seen.counts, strict=True):
        running += count
        buckets.append((bound, running))
    assert isinstance(family, HistogramMetricFamily)
    family.add_metric(labels, buckets=buckets, sum_value=seen.total)
