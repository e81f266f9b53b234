"""vLLM's own Scheduler, driven by hand, with our connector in it; needs vLLM, no model weights.

These are the rules of research on which the adapter rests: an unknown id ends the
engine, a parked request's blocks come back only after its report, and a failed load
under the policy 'recompute' is computed in the same engine.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_real_engine import PROMPT, Engine, worker_connector, write_config

from kvxfer.driver import Initiator
from kvxfer.errors import BadValue, LocalFault
from kvxfer_vllm.ledger import Report

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),
    # The first test of a process imports vLLM, which takes minutes on a busy machine.
    pytest.mark.timeout(600),
]
pytest.importorskip("vllm")

CONSUME = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
    "tp_size": 1,
}
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_config(tmp_path)
    return tmp_path


@pytest.fixture
def consumer(folder: Path) -> Engine:
    return Engine(folder, "kv_consumer", "fail", "NixlPushConnector")


@pytest.fixture
def producer(folder: Path) -> Engine:
    return Engine(folder, "kv_producer", "fail", "KvxferConnector")


def names(orders: list[Any]) -> list[str]:
    return [type(order).__name__ for order in orders]


def test_a_load_that_lands(consumer: Engine) -> None:
    free = consumer.free_blocks()
    consumer.add("cmpl-a-0-0badcafe", CONSUME, max_tokens=2)
    orders, outputs, scheduled = consumer.step()
    assert names(orders) == ["Receive"]
    register = orders[0].register
    # 40 tokens are 3 blocks of 16; vLLM's CPU backend packs blocks, so they go whole.
    assert (register.token_start, register.token_stop) == (0, len(PROMPT))
    assert len(register.tables[0].blocks) == 3
    assert scheduled == {}
    assert consumer.free_blocks() == free - 3

    consumer.step(finished_recving={"cmpl-a-0-0badcafe"})
    orders, outputs, scheduled = consumer.step()
    # Only the last token is computed again: the rest was loaded.
    assert scheduled == {"cmpl-a-0-0badcafe": 1}
    assert outputs[0].new_token_ids == [7]
    consumer.step()
    assert consumer.free_blocks() == free
    assert not consumer.scheduler.connector.scheduler_side._consumers


@pytest.mark.parametrize("name", ["NixlConnector", "NixlPullConnector", "KvxferPullConnector"])
def test_a_pull_connector_asks_to_read(folder: Path, name: str) -> None:
    engine = Engine(folder, "kv_consumer", "fail", name)
    engine.add("cmpl-a-0-0badcafe", CONSUME)
    (receive,), _, _ = engine.step()
    assert receive.register.initiator is Initiator.CONSUMER


def test_a_neutral_name_takes_the_mode_from_the_option(folder: Path) -> None:
    engine = Engine(folder, "kv_consumer", "fail", "NixlConnector", mode="push")
    engine.add("cmpl-a-0-0badcafe", CONSUME)
    (receive,), _, _ = engine.step()
    assert receive.register.initiator is Initiator.PRODUCER


def test_streaming_needs_the_blocks_of_running_requests(folder: Path) -> None:
    """vLLM before 0.29 does not show them; it is refused at the start, not in mid-stream."""
    from vllm.v1.core.sched.output import SchedulerOutput

    if hasattr(SchedulerOutput, "kv_connector_block_state"):
        Engine(folder, "kv_producer", "fail", "NixlPushConnector", stream=True)
        return
    with pytest.raises(LocalFault, match="stream"):
        Engine(folder, "kv_producer", "fail", "NixlPushConnector", stream=True)


def test_an_option_against_the_name_stops_the_start(folder: Path) -> None:
    with pytest.raises(BadValue, match="mode"):
        Engine(folder, "kv_consumer", "fail", "NixlPushConnector", mode="pull")


def test_an_aborted_load_frees_its_blocks_only_after_the_report(consumer: Engine) -> None:
    from vllm.v1.request import RequestStatus

    free = consumer.free_blocks()
    consumer.add("cmpl-a-0-0badcafe", CONSUME)
    consumer.step()
    consumer.scheduler.finish_requests("cmpl-a-0-0badcafe", RequestStatus.FINISHED_ABORTED)
    orders, _, _ = consumer.step()
    assert names(orders) == ["Drop"]
    assert consumer.free_blocks() == free - 3
    assert consumer.scheduler.has_requests()
    consumer.step(**consumer.failed("cmpl-a-0-0badcafe"))
    assert consumer.free_blocks() == free


def test_an_abort_before_the_first_step_declines(consumer: Engine) -> None:
    from vllm.v1.request import RequestStatus

    consumer.add("cmpl-a-0-0badcafe", CONSUME)
    consumer.scheduler.finish_requests("cmpl-a-0-0badcafe", RequestStatus.FINISHED_ABORTED)
    assert consumer.scheduler.has_requests()
    orders, _, _ = consumer.step()
    assert names(orders) == ["Decline"]


def test_a_failed_load_ends_the_request_by_policy(consumer: Engine) -> None:
    free = consumer.free_blocks()
    consumer.add("cmpl-a-0-0badcafe", CONSUME)
    consumer.step()
    _, outputs, _ = consumer.step(**consumer.failed("cmpl-a-0-0badcafe"))
    assert outputs[0].finish_reason.name == "ERROR"
    assert consumer.free_blocks() == free


def test_a_lost_load_ends_its_request_at_once_and_its_blocks_stay(consumer: Engine) -> None:
    free = consumer.free_blocks()
    consumer.add("cmpl-a-0-0badcafe", CONSUME)
    orders, _, _ = consumer.step()
    blocks = set(orders[0].register.tables[0].blocks.tolist())
    _, outputs, _ = consumer.step(invalid_block_ids=blocks)
    assert outputs[0].finish_reason.name == "ERROR"
    orders, _, _ = consumer.step()
    assert names(orders) == ["Drop"]
    assert consumer.free_blocks() == free - 3
    consumer.step(**consumer.failed("cmpl-a-0-0badcafe"))
    assert consumer.free_blocks() == free


def test_a_failed_load_is_computed_here_by_the_other_policy(folder: Path) -> None:
    engine = Engine(folder, "kv_consumer", "recompute", "KvxferPushConnector")
    engine.add("cmpl-a-0-0badcafe", CONSUME)
    engine.step()
    engine.step(**engine.failed("cmpl-a-0-0badcafe"))
    orders, outputs, scheduled = engine.step()
    assert names(orders) == []
    assert scheduled == {"cmpl-a-0-0badcafe": len(PROMPT)}
    assert outputs[0].new_token_ids == [7]


def test_a_worker_tells_a_failure_by_request_and_by_blocks(consumer: Engine) -> None:
    """vLLM before 0.30 asks `get_finished` and then for blocks; later ones ask for the results."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    import kvxfer_vllm

    config, caches = consumer.config, consumer.scheduler.kv_cache_config
    worker = worker_connector(kvxfer_vllm.NixlPushConnector, config, caches)
    report = Report(
        sent=frozenset({"s"}),
        received=frozenset({"r", "f"}),
        failed=frozenset({"f"}),
        failed_blocks=frozenset({5, 6}),
    )
    worker._worker = SimpleNamespace(take_report=lambda: report, take_bad_blocks=lambda: {9})
    assert worker.get_finished(set()) == ({"s"}, {"r", "f"})
    assert worker.get_block_ids_with_load_errors() == {5, 6, 9}
    assert worker.get_block_ids_with_load_errors() == {9}
    if not hasattr(base, "KVConnectorTransferResults"):
        return
    results = worker.get_transfer_results(set())
    assert (results.finished_recving, results.failed_recving) == ({"r", "f"}, {"f"})
    assert worker.get_block_ids_with_load_errors() == {9}


def test_unusable_parameters_fail_the_request_and_nothing_else(consumer: Engine) -> None:
    consumer.add("cmpl-a-0-0badcafe", CONSUME | {"remote_port": None})
    orders, _, _ = consumer.step()
    assert names(orders) == ["Refuse"]
    _, outputs, _ = consumer.step(**consumer.failed("cmpl-a-0-0badcafe"))
    assert outputs[0].finish_reason.name == "ERROR"


def test_a_prefill_is_offered_and_its_blocks_held(producer: Engine) -> None:
    free = producer.free_blocks()
    producer.add("cmpl-a-0-0badcafe", PRODUCE)
    orders, outputs, _ = producer.step()
    assert names(orders) == ["Expect"]
    answer = outputs[0].kv_transfer_params
    assert answer["remote_num_tokens"] == len(PROMPT)
    assert len(answer["remote_block_ids"][0]) == 3
    assert producer.free_blocks() == free - 3
    assert producer.scheduler.has_requests()
    orders, _, _ = producer.step()
    assert names(orders) == ["Send"]
    assert orders[0].offer.token_count == len(PROMPT)
    producer.step(finished_sending={"cmpl-a-0-0badcafe"})
    assert producer.free_blocks() == free
    producer.step()
    assert not producer.scheduler.has_requests()


def test_an_aborted_prefill_is_withdrawn(producer: Engine) -> None:
    from vllm.v1.request import RequestStatus

    producer.add("cmpl-a-0-0badcafe", PRODUCE)
    producer.scheduler.finish_requests("cmpl-a-0-0badcafe", RequestStatus.FINISHED_ABORTED)
    assert producer.scheduler.has_requests()
    orders, _, _ = producer.step()
    assert names(orders) == ["Expect", "Abort"]
    producer.step()
    assert not producer.scheduler.has_requests()


def test_a_report_that_nobody_asked_for_would_end_the_engine(consumer: Engine) -> None:
    """The reason for the ledger: this is what vLLM does with such an id."""
    with pytest.raises(AssertionError):
        consumer.step(finished_recving={"nobody"})


def test_statistics_pass_through_vllms_own_classes() -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from vllm.config import VllmConfig

    import kvxfer_vllm
    from kvxfer_vllm.stats import empty_data

    registry = CollectorRegistry()

    def of(kind: type) -> Any:
        return lambda **given: kind(registry=registry, **given)

    data = empty_data()
    data["bytes_transferred"], data["num_descriptors"] = [100], [2]
    data["transfer_duration"], data["post_duration"] = [0.5], [0.0]
    data["kvxfer_landed"], data["kvxfer_quarantined"] = [1, 1], [3, 0]
    cls = kvxfer_vllm.NixlPushConnector
    # From the worker to EngineCore it is pickled, from there on it is plain data.
    sent = pickle.loads(pickle.dumps(cls.build_kv_connector_stats(data)))
    plain = sent.to_dict() if hasattr(sent, "to_dict") else sent.data
    total = cls.build_kv_connector_stats().aggregate(cls.build_kv_connector_stats(plain))
    assert total.reduce()["Num successful transfers"] == 1
    metrics = cls.build_prom_metrics(
        VllmConfig(),
        {Counter: of(Counter), Gauge: of(Gauge), Histogram: of(Histogram)},
        ["engine"],
        {0: ["0"]},
    )
    metrics.observe(total.data)
    assert registry.get_sample_value("vllm:nixl_bytes_transferred_sum", {"engine": "0"}) == 100
    assert registry.get_sample_value("vllm:kvxfer_landed_total", {"engine": "0"}) == 2
    assert registry.get_sample_value("vllm:kvxfer_quarantined", {"engine": "0"}) == 0
