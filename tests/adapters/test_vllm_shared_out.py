"""Engines of several ranks, and prompts whose last token the decode engine computes."""

from __future__ import annotations

from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from vllm_settings import settings_for

from kvxfer.driver import Initiator
from kvxfer_vllm.digest import prompt_digest
from kvxfer_vllm.metadata import Abort, Receive, Refuse, Send
from kvxfer_vllm.params import MODE_KEY
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import GroupBlocks, Tables

T = 16
FULL = GroupBlocks(position=0, tokens_per_block=T)
STATE = GroupBlocks(position=1, tokens_per_block=4096)
DENSE = Tables(groups=(FULL,))
HYBRID = Tables(groups=(FULL, STATE), left_out=1)
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
CONSUME = {
    "do_remote_prefill": True,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
}
SETTINGS = settings_for(engine_id="eng", mode_open=True)


class Status(Enum):
    """Names of vLLM's request states."""

    WAITING = auto()
    FINISHED_LENGTH_CAPPED = auto()


def request(params: dict[str, Any], tokens: int) -> Any:
    prompt = list(range(100, 100 + tokens))
    return SimpleNamespace(
        request_id="cmpl-x-0-0badcafe",
        kv_transfer_params=params,
        prompt_token_ids=prompt,
        _all_token_ids=list(prompt),
        num_prompt_tokens=tokens,
        num_computed_tokens=0,
        max_tokens=7,
        status=Status.WAITING,
    )


def consumed(tables: Tables, tokens: int, **params: Any) -> Any:
    """What the workers of a decode engine are told of a request."""
    scheduler, req = SchedulerSide(SETTINGS, tables), request(CONSUME | params, tokens)
    scheduler.on_new_request(req)
    wanted, _ = scheduler.matched_tokens(req, 0)
    scheduler.after_alloc(req, ([5, 6, 7], [9]), wanted)
    (order,) = scheduler.take_orders().orders
    return order


def produced(tables: Tables, tokens: int, **changes: Any) -> tuple[Any, Any, dict[str, Any] | None]:
    """A prefill to its end: the request, the last order, the answer."""
    scheduler = SchedulerSide(attrs.evolve(SETTINGS, **changes), tables)
    req = request(PRODUCE, tokens)
    scheduler.on_new_request(req)
    req.num_computed_tokens, req.status = req.num_prompt_tokens, Status.FINISHED_LENGTH_CAPPED
    _, answer = scheduler.request_finished(req, ([5, 6, 7], [9]))
    return req, scheduler.take_orders().orders[-1], answer


def test_every_rank_of_the_producer_is_named() -> None:
    register = consumed(DENSE, 40, tp_size=2, pp_size=2).register
    assert [(p.rank, p.port) for p in register.producers] == [
        (0, 5610),
        (1, 5674),
        (2, 5738),
        (3, 5802),
    ]


def test_the_answer_says_how_the_producer_is_shared_out() -> None:
    _, _, answer = produced(DENSE, 40, tensor_ranks=2, pipeline_ranks=3)
    assert answer is not None
    assert (answer["tp_size"], answer["pp_size"]) == (2, 3)


def test_a_request_chooses_the_direction() -> None:
    assert consumed(DENSE, 40).register.initiator is Initiator.PRODUCER
    assert consumed(DENSE, 40, **{MODE_KEY: "pull"}).register.initiator is Initiator.CONSUMER


def test_a_direction_that_the_name_excludes_fails_the_load() -> None:
    scheduler = SchedulerSide(attrs.evolve(SETTINGS, mode_open=False), DENSE)
    req = request(CONSUME | {MODE_KEY: "pull"}, 40)
    scheduler.on_new_request(req)
    scheduler.after_alloc(req, ([5, 6, 7],), scheduler.matched_tokens(req, 0)[0])
    (order,) = scheduler.take_orders().orders
    assert isinstance(order, Refuse)
    assert MODE_KEY in order.why


def test_both_engines_leave_the_last_token_out() -> None:
    receive = consumed(HYBRID, 40)
    assert isinstance(receive, Receive)
    req, send, answer = produced(HYBRID, 40)
    assert isinstance(send, Send)
    assert (req.num_prompt_tokens, len(req._all_token_ids), req.max_tokens) == (39, 39, 1)
    assert receive.register.token_stop == send.offer.token_count == 39
    assert receive.register.digest == send.offer.digest == prompt_digest(range(100, 139))
    assert answer is not None
    assert answer["remote_num_tokens"] == 39
    assert answer["remote_block_ids"] == [[5, 6, 7], [9]]


def test_a_prompt_of_one_token_is_not_handed_over() -> None:
    scheduler, req = SchedulerSide(SETTINGS, HYBRID), request(CONSUME, 1)
    scheduler.on_new_request(req)
    assert scheduler.matched_tokens(req, 0) == (0, False)
    req, last, answer = produced(HYBRID, 1)
    assert (req.num_prompt_tokens, answer) == (1, None)
    assert isinstance(last, Abort)


@pytest.mark.parametrize(
    "changes",
    [{"prompt_token_ids": None}, {"get_skip_reading_prefix_cache": lambda: True}],
)
def test_a_prompt_that_cannot_be_shortened_is_not_handed_over(changes: dict[str, Any]) -> None:
    """Embeddings have no token ids; logprobs of the whole prompt are P's to tell."""
    p, d = (request(params, 40) for params in (PRODUCE, CONSUME))
    for req in (p, d):
        vars(req).update(changes)
    scheduler = SchedulerSide(SETTINGS, HYBRID)
    scheduler.on_new_request(d)
    assert scheduler.matched_tokens(d, 0) == (0, False)
    scheduler.on_new_request(p)
    p.num_computed_tokens, p.status = 40, Status.FINISHED_LENGTH_CAPPED
    assert scheduler.request_finished(p, ([5, 6, 7], [9])) == (False, None)
    assert p.num_prompt_tokens == 40


@pytest.mark.parametrize("tables", [DENSE, HYBRID])
def test_a_prompt_that_is_handed_over_whole_is_left_alone(tables: Tables) -> None:
    plain = attrs.evolve(tables, left_out=0)
    req, _, _ = produced(plain, 40)
    assert (req.num_prompt_tokens, req.max_tokens) == (40, 7)
