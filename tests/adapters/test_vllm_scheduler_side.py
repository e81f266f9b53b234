"""The scheduler side, driven as vLLM's scheduler drives it, with stand-ins for requests."""

from __future__ import annotations

import pickle
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm_settings import settings_for

from kvxfer.driver import Role
from kvxfer_vllm.digest import prompt_digest
from kvxfer_vllm.metadata import Abort, Decline, Drop, Expect, Receive, Refuse, Send
from kvxfer_vllm.params import TRANSFER_NAME_KEY
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import GroupBlocks, Tables

T = 16
PROMPT = list(range(100, 140))

PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
CONSUME = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
    "tp_size": 1,
}


class Status(Enum):
    """Names of vLLM's request states."""

    WAITING = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_ERROR = auto()


def side(
    role: Role = Role.BOTH, *, fail: bool = True, digest: bool = True, grain: int = 1
) -> SchedulerSide:
    return SchedulerSide(
        settings_for(role=role, check_digest=digest, fail_on_load_failure=fail),
        Tables(groups=(GroupBlocks(tokens_per_block=T),), grain=grain),
    )


def request(
    params: object, request_id: str = "cmpl-x-0-0badcafe", prompt: list[int] | None = None
) -> Any:
    tokens = PROMPT if prompt is None else prompt
    return SimpleNamespace(
        request_id=request_id,
        kv_transfer_params=params,
        prompt_token_ids=tokens,
        num_prompt_tokens=len(tokens),
        num_computed_tokens=0,
        status=Status.WAITING,
    )


def orders(scheduler: SchedulerSide) -> list[Any]:
    """The step's orders, as the worker gets them: pickled and unpickled."""
    return list(pickle.loads(pickle.dumps(scheduler.take_orders())).orders)


def parked(scheduler: SchedulerSide, req: Any, local_hit: int = 0) -> Receive:
    """Admit a decode request and give the registration that left for the workers."""
    scheduler.on_new_request(req)
    wanted, is_async = scheduler.matched_tokens(req, local_hit)
    assert is_async
    scheduler.after_alloc(req, ([5, 6, 7],), wanted)
    (order,) = orders(scheduler)
    assert isinstance(order, Receive)
    return order


def test_a_plain_request_is_left_alone() -> None:
    scheduler, req = side(), request(None)
    scheduler.on_new_request(req)
    assert scheduler.matched_tokens(req, 0) == (0, False)
    scheduler.after_alloc(req, ([1],), 0)
    assert scheduler.request_finished(req, ([1],)) == (False, None)
    assert not scheduler.has_orders()
    assert orders(scheduler) == []


def test_a_decode_request_registers_its_blocks() -> None:
    register = parked(side(), request(CONSUME)).register
    assert register.transfer_id == "r:cmpl-x-0"
    assert register.tag == "cmpl-x-0-0badcafe"
    assert (register.token_start, register.token_stop) == (0, 40)
    assert register.deadline_ms == 60_000
    assert register.digest == prompt_digest(PROMPT)
    (table,) = register.tables
    assert table.first_token == 0
    assert table.blocks.tolist() == [5, 6, 7]
    (producer,) = register.producers
    assert (producer.engine_id, producer.host, producer.port) == ("eng-P", "127.0.0.1", 5610)


def test_a_local_hit_is_not_asked_for() -> None:
    register = parked(side(), request(CONSUME), local_hit=T).register
    assert (register.token_start, register.token_stop) == (16, 40)
    assert register.tables[0].first_token == 16
    assert register.tables[0].blocks.tolist() == [6, 7]


def test_asking_changes_nothing() -> None:
    scheduler, req = side(), request(CONSUME)
    scheduler.on_new_request(req)
    assert [scheduler.matched_tokens(req, 0) for _ in range(3)] == [(40, True)] * 3
    assert scheduler.matched_tokens(req, 32) == (8, True)
    assert not scheduler.has_orders()


def test_after_the_load_nothing_more_is_asked_for() -> None:
    scheduler, req = side(), request(CONSUME)
    parked(scheduler, req)
    scheduler.reported({req.request_id})
    scheduler.after_alloc(req, ([5, 6, 7],), 0)
    # The request is preempted now and comes back with nothing computed.
    assert scheduler.matched_tokens(req, 0) == (0, False)
    scheduler.after_alloc(req, ([8, 9, 4],), 0)
    req.status = Status.FINISHED_STOPPED
    assert scheduler.request_finished(req, ([8, 9, 4],)) == (False, None)
    assert not scheduler.has_orders()


def test_an_abort_while_parked_is_passed_on_and_the_blocks_stay() -> None:
    scheduler, req = side(), request(CONSUME)
    parked(scheduler, req)
    req.status = Status.FINISHED_ABORTED
    assert scheduler.request_finished(req, ([5, 6, 7],)) == (False, None)
    assert orders(scheduler) == [Drop(request_id=req.request_id, transfer_id="r:cmpl-x-0")]
    scheduler.reported({req.request_id})
    assert not scheduler.has_orders()


def test_an_abort_before_admission_is_told_to_the_producer() -> None:
    scheduler, req = side(), request(CONSUME)
    scheduler.on_new_request(req)
    req.status = Status.FINISHED_ABORTED
    assert scheduler.request_finished(req, ([],)) == (False, None)
    assert scheduler.has_orders()
    (order,) = orders(scheduler)
    assert isinstance(order, Decline)
    assert order.producers[0].port == 5610


def test_a_full_local_hit_is_told_to_the_producer() -> None:
    scheduler, req = side(), request(CONSUME)
    scheduler.on_new_request(req)
    scheduler.after_alloc(req, ([5, 6, 7],), 0)
    (order,) = orders(scheduler)
    assert isinstance(order, Decline)
    assert scheduler.matched_tokens(req, 0) == (0, False)


def test_bad_parameters_fail_the_load_by_policy() -> None:
    scheduler, req = side(), request(CONSUME | {"remote_port": "x"})
    scheduler.on_new_request(req)
    assert scheduler.matched_tokens(req, 0) == (40, True)
    scheduler.after_alloc(req, ([5, 6, 7],), 40)
    (order,) = orders(scheduler)
    assert isinstance(order, Refuse)
    assert "remote_port" in order.why


def test_what_was_found_here_is_not_named_as_bad() -> None:
    """Before vLLM 0.30 failures are told by block, and other requests use the blocks of a hit."""
    scheduler, req = side(), request(CONSUME | {"remote_port": "x"})
    scheduler.on_new_request(req)
    wanted, _ = scheduler.matched_tokens(req, T)
    scheduler.after_alloc(req, ([5, 6, 7],), wanted)
    (order,) = orders(scheduler)
    assert [list(group) for group in order.blocks] == [[6, 7]]


def test_bad_parameters_are_computed_here_by_the_other_policy() -> None:
    scheduler, req = side(fail=False), request(CONSUME | {"remote_port": "x"})
    scheduler.on_new_request(req)
    assert scheduler.matched_tokens(req, 0) == (0, False)
    scheduler.after_alloc(req, ([5, 6, 7],), 0)
    assert scheduler.request_finished(req, ([5, 6, 7],)) == (False, None)
    assert orders(scheduler) == []


@pytest.mark.parametrize(("role", "params"), [(Role.PRODUCER, CONSUME), (Role.CONSUMER, PRODUCE)])
def test_a_leg_of_the_wrong_role_is_not_served(role: Role, params: dict[str, Any]) -> None:
    scheduler, req = side(role, fail=False), request(params)
    scheduler.on_new_request(req)
    assert scheduler.matched_tokens(req, 0) == (0, False)
    req.status = Status.FINISHED_LENGTH_CAPPED
    req.num_computed_tokens = 40
    assert scheduler.request_finished(req, ([1, 2, 3],)) == (False, None)
    assert orders(scheduler) == []


@pytest.mark.parametrize("status", [Status.FINISHED_LENGTH_CAPPED, Status.FINISHED_STOPPED])
def test_a_prefill_is_offered(status: Status) -> None:
    scheduler, req = side(), request(PRODUCE)
    scheduler.on_new_request(req)
    assert orders(scheduler) == [Expect(request_id="cmpl-x-0-0badcafe", transfer_id="r:cmpl-x-0")]
    req.status, req.num_computed_tokens = status, 41
    delay, answer = scheduler.request_finished(req, ([3, 1, 2, 9],))
    assert delay
    (order,) = orders(scheduler)
    assert isinstance(order, Send)
    assert (order.request_id, order.offer.tag) == (req.request_id, req.request_id)
    assert order.offer.token_count == 40
    assert order.offer.tables[0].blocks.tolist() == [3, 1, 2]
    assert order.offer.digest == prompt_digest(PROMPT)
    assert answer is not None
    assert answer["remote_block_ids"] == [[3, 1, 2]]
    assert answer["do_remote_prefill"] is True
    assert answer["remote_num_tokens"] == 40


def test_the_answer_leads_the_decode_leg_to_the_same_name() -> None:
    producer, consumer = side(), side()
    leg = request(PRODUCE | {"transfer_id": "t-1"}, "cmpl-x-2-0badcafe")
    producer.on_new_request(leg)
    leg.status, leg.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, 40
    _, answer = producer.request_finished(leg, ([3, 1, 2],))
    offered = orders(producer)[-1].offer.transfer_id
    assert answer is not None
    assert answer[TRANSFER_NAME_KEY] == offered == "x0.2:t-1"
    # The decode leg has another request id, as behind a router that makes its own.
    assert parked(consumer, request(answer, "chatcmpl-y-12345678")).register.transfer_id == offered


def test_concurrent_legs_come_to_the_same_name() -> None:
    producer, consumer = side(), side()
    producer.on_new_request(request(PRODUCE, "cmpl-x-0-0badcafe"))
    (expect,) = orders(producer)
    register = parked(consumer, request(CONSUME, "cmpl-x-0-12345678")).register
    assert register.transfer_id == expect.transfer_id


@pytest.mark.parametrize(
    ("status", "computed", "blocks"),
    [
        (Status.FINISHED_ABORTED, 20, [3, 1]),
        (Status.FINISHED_ERROR, 20, [3, 1]),
        (Status.FINISHED_LENGTH_CAPPED, 0, []),
    ],
)
def test_a_prefill_without_a_result_is_withdrawn(
    status: Status, computed: int, blocks: list[int]
) -> None:
    scheduler, req = side(), request(PRODUCE)
    scheduler.on_new_request(req)
    orders(scheduler)
    req.status, req.num_computed_tokens = status, computed
    assert scheduler.request_finished(req, (blocks,)) == (False, None)
    assert scheduler.has_orders()
    assert orders(scheduler) == [Abort(request_id="cmpl-x-0-0badcafe", transfer_id="r:cmpl-x-0")]


def test_a_prefill_that_stopped_short_offers_what_it_has() -> None:
    scheduler, req = side(), request(PRODUCE)
    scheduler.on_new_request(req)
    req.status, req.num_computed_tokens = Status.FINISHED_STOPPED, 20
    scheduler.request_finished(req, ([3, 1, 2],))
    offer = orders(scheduler)[-1].offer
    assert offer.token_count == 20
    assert offer.tables[0].blocks.tolist() == [3, 1]


@pytest.mark.parametrize(("computed", "offered"), [(41, 40), (40, 40), (39, 32), (16, 16)])
def test_the_end_of_a_packed_block_is_offered_with_the_prompts_end(
    computed: int, offered: int
) -> None:
    scheduler, req = side(grain=T), request(PRODUCE)
    scheduler.on_new_request(req)
    req.status, req.num_computed_tokens = Status.FINISHED_STOPPED, computed
    _, answer = scheduler.request_finished(req, ([3, 1, 2],))
    offer = orders(scheduler)[-1].offer
    assert offer.token_count == offered
    assert offer.tables[0].blocks.tolist() == [3, 1, 2][: -(-offered // T)]
    assert answer is not None
    assert answer["remote_num_tokens"] == offered


def test_a_packed_block_that_is_not_full_is_not_offered_alone() -> None:
    scheduler, req = side(grain=T), request(PRODUCE)
    scheduler.on_new_request(req)
    req.status, req.num_computed_tokens = Status.FINISHED_STOPPED, 15
    assert scheduler.request_finished(req, ([3],)) == (False, None)
    assert isinstance(orders(scheduler)[-1], Abort)


def test_as_many_tokens_are_asked_for_as_the_prompt_has() -> None:
    register = parked(side(grain=T), request(CONSUME), local_hit=T).register
    assert (register.token_start, register.token_stop) == (16, 40)
    assert register.tables[0].blocks.tolist() == [6, 7]


def test_the_digest_can_be_switched_off() -> None:
    assert parked(side(digest=False), request(CONSUME)).register.digest == b""


def test_a_prompt_of_embeddings_has_no_digest() -> None:
    req = request(CONSUME)
    req.prompt_token_ids = None
    assert parked(side(), req).register.digest == b""


def test_steps_are_numbered_and_fresh() -> None:
    scheduler = side()
    first, second = scheduler.take_orders(), scheduler.take_orders()
    assert (first.step, second.step) == (1, 2)
    assert second.orders == ()


def test_nothing_is_kept_for_finished_requests() -> None:
    scheduler = side()
    for i in range(50):
        req = request(CONSUME if i % 2 else PRODUCE, f"cmpl-{i}-0-0badcafe")
        scheduler.on_new_request(req)
        scheduler.after_alloc(req, (np.arange(3).tolist(),), 40)
        req.status, req.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, 40
        scheduler.request_finished(req, ([1, 2, 3],))
    scheduler.take_orders()
    assert not scheduler._consumers
    assert not scheduler._prefills
