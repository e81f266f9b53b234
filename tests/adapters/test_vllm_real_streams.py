"""Streams under vLLM's own schedulers: what is offered while steps are in flight, and preempted.

The rule that matters: a token is offered only after the step that computed it was given
back, and a preempted request's stream is halted in the very plan that frees its blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_real_engine import BLOCK, Engine, write_config

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),
    # The first test of a process imports vLLM, which takes minutes on a busy machine.
    pytest.mark.timeout(600),
]
output = pytest.importorskip("vllm.v1.core.sched.output")
if not hasattr(output.SchedulerOutput, "kv_connector_block_state"):
    pytest.skip("vLLM before 0.29 shows no running request's blocks", allow_module_level=True)

PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
ID, OTHER = "cmpl-a-0-0badcafe", "cmpl-b-0-0badcafe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_config(tmp_path)
    return tmp_path


def producer(folder: Path, **changes: Any) -> Engine:
    return Engine(folder, "kv_producer", "fail", "NixlPushConnector", stream=True, **changes)


def orders(plan: Any) -> list[Any]:
    return list(plan.kv_connector_metadata.orders)


def names(plan: Any) -> list[str]:
    return [type(order).__name__ for order in orders(plan)]


def offered(plan: Any) -> list[Any]:
    """Offers and what they grow by."""
    return [o.grow if hasattr(o, "grow") else o.offer for o in orders(plan) if is_offer(o)]


def is_offer(order: Any) -> bool:
    return type(order).__name__ in ("Stream", "Extend", "Seal", "Send")


@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_is_offered_before_its_step_was_given_back(folder: Path, depth: int) -> None:
    engine = producer(folder, step_tokens=32, async_scheduling=depth > 1)
    free = engine.free_blocks()
    request = engine.add(ID, PRODUCE, prompt=range(100))
    flying: list[Any] = []
    processed, seen = 0, []
    for _ in range(12):
        plan = engine.scheduler.schedule()
        for offer in offered(plan):
            seen.append((offer.token_count, offer.sealed))
            assert offer.sealed or offer.token_count <= processed
            assert len(offer.tables[0].blocks) == -(-offer.token_count // BLOCK)
        flying.append(plan)
        while len(flying) >= depth:
            done = flying.pop(0)
            engine.end_step(done)
            processed += done.num_scheduled_tokens.get(ID, 0)
        if request.is_finished() and not flying:
            break
    plan = engine.scheduler.schedule()
    seen += [(offer.token_count, offer.sealed) for offer in offered(plan)]
    # With two steps in flight the third chunk is known to be there only at the end.
    early = [32, 64, 96][: 4 - depth]
    assert seen == [*((tokens, False) for tokens in early), (100, True)]
    engine.end_step(plan, finished_sending={ID})
    assert engine.free_blocks() == free


def test_an_abort_in_mid_stream_frees_its_blocks_only_after_the_report(folder: Path) -> None:
    from vllm.v1.request import RequestStatus

    engine = producer(folder, step_tokens=32)
    free = engine.free_blocks()
    engine.add(ID, PRODUCE, prompt=range(100))
    engine.step()
    engine.step()
    engine.scheduler.finish_requests(ID, RequestStatus.FINISHED_ABORTED)
    held = free - engine.free_blocks()
    assert held > 0
    (abort,), _, _ = engine.step()
    assert abort.held
    assert engine.free_blocks() == free - held
    engine.step(finished_sending={ID})
    assert engine.free_blocks() == free
    assert not engine.scheduler.has_requests()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("tokens", "window"), [(100, 0), (30, 0), (100, 40)])
def test_the_last_chunk_is_told_in_the_plan_that_computes_it(
    folder: Path, depth: int, tokens: int, window: int
) -> None:
    engine = producer(
        folder, step_tokens=32, async_scheduling=depth > 1, layer_slices=2, window=window
    )
    free = engine.free_blocks()
    request = engine.add(ID, PRODUCE, prompt=range(tokens))
    flying: list[Any] = []
    planned = 0
    told: list[str] = []
    for _ in range(12):
        plan = engine.scheduler.schedule()
        told += names(plan)
        chunks = [o for o in orders(plan) if type(o).__name__ == "LastChunk"]
        before, planned = planned, planned + plan.num_scheduled_tokens.get(ID, 0)
        # vLLM computes one token less of a prompt of which D has to compute one.
        end = request.num_prompt_tokens
        assert bool(chunks) == (before < end <= planned)
        for chunk in chunks:
            assert (chunk.tokens_before, chunk.grow.token_count) == (before // 32 * 32, end)
            full, *windows = chunk.grow.tables
            assert len(full.blocks) == -(-end // BLOCK)
            assert 0 not in full.blocks.tolist()
            # What D's window reaches has not been given back by then.
            reach = -(-(window - 1) // BLOCK)
            assert all(0 not in table.blocks.tolist()[-reach:] for table in windows)
        flying.append(plan)
        while len(flying) >= depth:
            engine.end_step(flying.pop(0))
        if request.is_finished() and not flying:
            break
    plan = engine.scheduler.schedule()
    told += names(plan)
    assert told[-2:] == ["LastChunk", "Seal"]
    assert told.count("LastChunk") == 1
    engine.end_step(plan, finished_sending={ID})
    assert engine.free_blocks() == free


def test_a_prefill_that_decodes_on_is_offered_at_its_end(folder: Path) -> None:
    engine = producer(folder, layer_slices=2)
    engine.add(ID, PRODUCE, max_tokens=3)
    told = [name for _ in range(4) for name in map(_name, engine.step()[0])]
    assert told == ["Expect", "Send"]


def _name(order: Any) -> str:
    return type(order).__name__


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preemption_halts_the_stream_in_the_plan_that_frees_its_blocks(
    folder: Path, depth: int
) -> None:
    engine = producer(folder, step_tokens=11, async_scheduling=depth > 1)
    # A plain request that decodes on and on takes the blocks; the later one is preempted.
    engine.add(OTHER, None, max_tokens=150)
    while engine.step()[2].get(OTHER) != 1:
        pass
    request = engine.add(ID, PRODUCE, prompt=range(240))
    flying: list[Any] = []
    halted = False
    for _ in range(60):
        plan = engine.scheduler.schedule()
        preempted = plan.preempted_req_ids or set()
        assert ("Halt" in names(plan)) == (ID in preempted)
        # After it the same blocks may be anybody's: nothing more is offered of the stream.
        assert not halted or set(names(plan)) <= {"Halt", "Expect", "Send"}
        halted |= ID in preempted
        flying.append(plan)
        while len(flying) >= depth:
            engine.end_step(flying.pop(0))
        if halted and request.num_computed_tokens == 0:
            break
    assert halted
