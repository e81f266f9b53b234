"""Which hooks vLLM calls on a connector, in which order: a record per version, compared.

A version without a record fails; `KVXFER_RECORD_HOOKS=1` writes it, to be read before it is
committed. vLLM's own scheduler plans the steps, its own runner mixin makes the worker's
part of one; there are no weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_real_engine import Engine, worker_connector, write_config

from kvxfer_vllm.ledger import Report

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),
    # The first test of a process imports vLLM, which takes minutes on a busy machine.
    pytest.mark.timeout(600),
]
pytest.importorskip("vllm")

RECORDS = Path(__file__).parent / "hooks"
CONSUME = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
}
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
A, B = "cmpl-a-0-0badcafe", "cmpl-b-0-0badcafe"

Scenario = Callable[[Callable[..., Engine]], None]


def _write(title: str, engine: Engine, **report: set[Any]) -> Any:
    from vllm_hook_recorder import RECORD

    RECORD.append(f"  {title}")
    return engine.step(**report)


def load_lands(make: Callable[..., Engine]) -> None:
    engine = make("kv_consumer")
    engine.add(A, CONSUME, max_tokens=2)
    _write("step: admitted", engine)
    _write("step: the load is reported", engine, finished_recving={A})
    _write("step: the last token is computed", engine)
    _write("step: the end", engine)


def load_fails_by_policy(make: Callable[..., Engine]) -> None:
    engine = make("kv_consumer")
    engine.add(A, CONSUME)
    _write("step: admitted", engine)
    _write("step: the failure is reported", engine, **engine.failed(A))
    _write("step: empty", engine)


def load_fails_and_is_computed(make: Callable[..., Engine]) -> None:
    engine = make("kv_consumer", "recompute")
    engine.add(A, CONSUME)
    _write("step: admitted", engine)
    _write("step: the failure is reported", engine, **engine.failed(A))
    _write("step: computed here", engine)
    _write("step: empty", engine)


def abort_while_parked(make: Callable[..., Engine]) -> None:
    from vllm.v1.request import RequestStatus

    engine = make("kv_consumer")
    engine.add(A, CONSUME)
    _write("step: admitted", engine)
    engine.scheduler.finish_requests(A, RequestStatus.FINISHED_ABORTED)
    _write("step: aborted before", engine)
    _write("step: let go", engine, **engine.failed(A))


def abort_before_admission(make: Callable[..., Engine]) -> None:
    from vllm.v1.request import RequestStatus

    engine = make("kv_consumer")
    engine.add(A, CONSUME)
    engine.scheduler.finish_requests(A, RequestStatus.FINISHED_ABORTED)
    _write("step: empty", engine)


def prefill_by_chunks(make: Callable[..., Engine]) -> None:
    engine = make("kv_producer", step_tokens=32)
    engine.add(A, PRODUCE)
    _write("step: first chunk", engine)
    _write("step: last chunk, the end", engine)
    _write("step: empty", engine)
    _write("step: reported as sent", engine, finished_sending={A})


def hit_in_the_prefix_cache(make: Callable[..., Engine]) -> None:
    engine = make("kv_consumer", prefix_caching=True)
    engine.add(A, None)
    _write("step: a plain request", engine)
    engine.add(B, CONSUME)
    _write("step: the same prompt, to be loaded", engine)
    _write("step: the load is reported", engine, finished_recving={B})
    _write("step: the end", engine)


def preemption_of_a_loaded_request(make: Callable[..., Engine]) -> None:
    """19 blocks are there, and two requests that grow want more than that."""
    engine = make("kv_consumer")
    engine.add(A, None, max_tokens=200, prompt=range(112))
    _write("step: a plain request", engine)
    engine.add(B, CONSUME, max_tokens=200, prompt=range(112))
    _write("step: another one is to be loaded", engine)
    _write("step: the load is reported", engine, finished_recving={B})
    from vllm_hook_recorder import RECORD

    for _ in range(60):
        before = len(RECORD)
        plan = engine.scheduler.schedule()
        preempted = bool(plan.preempted_req_ids)
        engine.end_step(plan)
        if not preempted:
            del RECORD[before:]
            continue
        RECORD.insert(before, "  step: preempted")
        return
    raise AssertionError("nothing was preempted")


def workers_part_of_a_step(make: Callable[..., Engine]) -> None:
    from vllm.distributed.kv_transfer import kv_transfer_state
    from vllm.forward_context import set_forward_context
    from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin
    from vllm_hook_recorder import RECORD, HookRecorder

    engine = make("kv_consumer")
    engine.add(A, CONSUME)
    plan = engine.scheduler.schedule()
    caches = engine.scheduler.kv_cache_config
    connector = worker_connector(HookRecorder, engine.config, caches)
    connector._worker = _idle_worker()
    before = kv_transfer_state._KV_CONNECTOR_AGENT
    kv_transfer_state._KV_CONNECTOR_AGENT = connector
    RECORD[:] = ["  step: with a forward pass"]
    try:
        with (
            set_forward_context(None, engine.config),
            KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(plan),
        ):
            RECORD.append("(forward pass)")
        RECORD.append("  step: empty")
        KVConnectorModelRunnerMixin.kv_connector_no_forward(plan, engine.config)
    finally:
        kv_transfer_state._KV_CONNECTOR_AGENT = before


def _idle_worker() -> Any:
    nothing: frozenset[Any] = frozenset()
    report = Report(sent=nothing, received=nothing, failed=nothing, failed_blocks=nothing)
    return SimpleNamespace(
        deliver=lambda _: None,
        take_report=lambda: report,
        take_bad_blocks=set,
        take_stats=lambda: None,
    )


SCENARIOS: tuple[Scenario, ...] = (
    load_lands,
    load_fails_by_policy,
    load_fails_and_is_computed,
    abort_while_parked,
    abort_before_admission,
    prefill_by_chunks,
    hit_in_the_prefix_cache,
    preemption_of_a_loaded_request,
    workers_part_of_a_step,
)


def record(folder: Path) -> str:
    """All scenarios, one line for each call, indented by scenario and step."""
    from vllm_hook_recorder import RECORD

    def make(role: str, policy: str = "fail", **changes: Any) -> Engine:
        connector, module = "HookRecorder", "vllm_hook_recorder"
        return Engine(folder, role, policy, connector, module=module, **changes)

    lines = []
    for scenario in SCENARIOS:
        RECORD.clear()
        scenario(make)
        lines.append(scenario.__name__)
        lines += [line if line.startswith(" ") else f"    {line}" for line in RECORD]
    RECORD.clear()
    return "\n".join(lines) + "\n"


def version() -> str:
    """Major and minor number of the vLLM that is imported."""
    import vllm

    return ".".join(vllm.__version__.split("+")[0].split(".")[:2])


def test_hooks_come_in_the_order_that_was_recorded(tmp_path: Path) -> None:
    write_config(tmp_path)
    found = record(tmp_path)
    stored = RECORDS / f"{version()}.txt"
    if os.environ.get("KVXFER_RECORD_HOOKS"):
        stored.write_text(found)
    assert stored.exists(), f"vLLM {version()} has no record yet: KVXFER_RECORD_HOOKS=1 writes it"
    assert found == stored.read_text()
