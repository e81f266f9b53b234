"""The exported metrics: names, labels, sums, several agents, the endpoint."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from kvxfer import observe
from kvxfer.core.ids import Role, TransferId
from kvxfer.driver import Agent
from kvxfer.observe.names import BASE_LABELS, METRICS, Kind
from kvxfer.record.phases import PHASES

sys.path.insert(0, str(Path(__file__).parents[1] / "driver"))
from driver_rig import Side, config, new_memory, offer, register, until


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    made = []
    for name, role, seed in (("P", Role.PRODUCER, 1), ("D", Role.CONSUMER, None)):
        memory = new_memory(seed)
        made.append(Side(Agent.start(config(name, role, memory)), memory))
    yield made[0], made[1]
    for side in made:
        side.agent.close(0.5)


def scraped(*agents: Agent) -> dict[str, Family]:
    registry = CollectorRegistry()
    registry.register(observe.AgentCollector(*agents))
    return {family.name: family for family in registry.collect()}


def value(families: dict[str, Family], series: str, **labels: str) -> float:
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == series and labels.items() <= sample.labels.items()
    ]
    return sum(found)


def test_every_metric_of_the_table_is_exported_and_no_other(sides: tuple[Side, Side]) -> None:
    p, d = sides
    register(d, p, "t", 1)
    offer(p, "t", 2)
    d.collect(2)
    p.collect(1)
    until(lambda: not p.agent.outcomes().live["producer"])
    families = scraped(p.agent, d.agent)
    assert set(families) == {metric.name for metric in METRICS}
    for metric in METRICS:
        family = families[metric.name]
        assert family.type == metric.kind.value
        assert family.documentation == metric.meaning
        labels = {*BASE_LABELS, *metric.labels}
        if metric.kind is Kind.HISTOGRAM:
            assert all({*s.labels} - {"le"} == labels for s in family.samples)
        else:
            assert {s.name for s in family.samples} == set(metric.series)
            assert all({*s.labels} == labels for s in family.samples)


def test_outcomes_of_a_scrape_add_up_and_bytes_are_those_that_moved(
    sides: tuple[Side, Side],
) -> None:
    p, d = sides
    register(d, p, "good", 1, 2)
    offer(p, "good", 1, 2)
    register(d, p, "cancelled", 3)
    d.agent.cancel(TransferId("cancelled"), "cancelled")
    register(d, p, "bad", 4, digest=b"x")
    offer(p, "bad", 4, digest=b"y")
    register(d, p, "waits", 5)
    d.collect(6)
    until(lambda: d.agent.outcomes().started["consumer"] == 4)
    found = scraped(d.agent, p.agent)
    for engine, side in (("D", "consumer"), ("P", "producer")):
        labels = {"engine": engine, "rank": "0", "side": side}
        started = value(found, "kvxfer_transfers_started_total", **labels)
        ended = value(found, "kvxfer_transfers_ended_total", **labels)
        live = value(found, "kvxfer_transfers_live", **labels)
        assert started == ended + live > 0
    ended = {
        (s.labels["outcome"], s.labels["reason"]): s.value
        for s in found["kvxfer_transfers_ended"].samples
        if (s.labels["engine"], s.labels["side"]) == ("D", "consumer")
    }
    assert ended == {
        ("landed", ""): 1,
        ("cancelled", "cancelled_by_consumer"): 1,
        ("failed", "digest_mismatch"): 1,
    }
    moved = d.block(1).nbytes * 2
    assert value(found, "kvxfer_received_bytes_total", engine="D") == moved
    assert value(found, "kvxfer_written_bytes_total", engine="P") == moved


def test_histograms_are_cumulative_and_name_every_phase(sides: tuple[Side, Side]) -> None:
    p, d = sides
    register(d, p, "t", 1)
    offer(p, "t", 1)
    d.collect(2)
    samples = scraped(d.agent)["kvxfer_phase_seconds"].samples
    for phase in PHASES:
        mine = [s for s in samples if s.labels["phase"] == phase]
        buckets = [s.value for s in mine if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        (count,) = [s.value for s in mine if s.name.endswith("_count")]
        assert count == buckets[-1] == (1 if phase in ("granted", "landed", "ready") else 0)


def test_the_endpoint_serves_the_text_format_on_loopback(sides: tuple[Side, Side]) -> None:
    server = observe.serve(sides[0].agent, port=0)
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {metric.name for metric in METRICS} <= names


def test_a_closed_agent_keeps_its_last_numbers(sides: tuple[Side, Side]) -> None:
    p, d = sides
    register(d, p, "t", 1)
    d.agent.close(0.5)
    found = scraped(d.agent)
    assert value(found, "kvxfer_transfers_ended_total", side="consumer", reason="shutdown") == 1
    assert value(found, "kvxfer_transfers_live") == 0
