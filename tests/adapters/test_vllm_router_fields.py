"""The parameters that known routers send: P's leg, P's answer as they pass it on, D's leg.

As their sources had it in 2026: what each router adds, keeps and overwrites. The requests
themselves go through vLLM's toy proxy in `make upstream-tests`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from vllm_loopback_pair import TABLES, Status, request
from vllm_settings import settings_for

from kvxfer.driver import Role
from kvxfer_vllm.metadata import Expect, Receive, Send
from kvxfer_vllm.scheduler_side import SchedulerSide

PROMPT = list(range(100, 140))
Params = dict[str, Any]

USUAL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""vLLM's proxies, the llm-d sidecar, vllm-router and Dynamo send this to P."""


@attrs.frozen(kw_only=True)
class Router:
    """What reaches the engines. Ids are vLLM's own, made of the header X-Request-Id."""

    prefill_id: str
    decode_id: str
    prefill: Params
    pass_on: Callable[[Params], Params]
    """P's answer, or nothing of it, to D's parameters."""


def host_overwritten(answer: Params) -> Params:
    return answer | {"remote_host": "10.0.0.7"}


def plain_json_only(answer: Params) -> Params:
    return answer | {"remote_prefill_cached_tokens": 16}


def without_the_answer(_: Params) -> Params:
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_engine_id": "eng-P",
        "remote_host": "127.0.0.1",
        "remote_port": 5610,
        "tp_size": 1,
        "pp_size": 1,
        "remote_request_id": "cmpl-4f1c-0",
    }


LONG = "___prefill_addr_10.0.0.1:8100___decode_addr_10.0.0.2:8200_9c0a7d"

ROUTERS = {
    "vLLM's toy proxy": Router(
        prefill_id="cmpl-4f1c-0-0badcafe",
        decode_id="cmpl-4f1c-0-12345678",
        prefill=USUAL,
        pass_on=dict,
    ),
    "vLLM's demo proxy": Router(
        prefill_id="cmpl-4f1c-0-0badcafe",
        decode_id="cmpl-4f1c-0-12345678",
        prefill=USUAL,
        pass_on=host_overwritten,
    ),
    "vLLM's push demo proxy": Router(
        prefill_id="cmpl-4f1c-0-0badcafe",
        decode_id="cmpl-4f1c-0-12345678",
        prefill=USUAL,
        pass_on=without_the_answer,
    ),
    "vLLM's push demo proxy, with transfer_id": Router(
        prefill_id="cmpl-4f1c-0-0badcafe",
        decode_id="cmpl-other-0-12345678",
        prefill=USUAL | {"transfer_id": "4f1c"},
        pass_on=lambda answer: without_the_answer(answer) | {"transfer_id": "4f1c"},
    ),
    "llm-d sidecar": Router(
        prefill_id="chatcmpl-4f1c-0badcafe",
        decode_id="chatcmpl-4f1c-12345678",
        prefill=USUAL,
        pass_on=plain_json_only,
    ),
    "vllm-router": Router(
        prefill_id=f"cmpl-{LONG}-0-0badcafe",
        decode_id=f"cmpl-{LONG}-0-12345678",
        prefill=USUAL,
        pass_on=dict,
    ),
    "Dynamo": Router(
        prefill_id="0b1e-0badcafe",
        decode_id="77aa-12345678",
        prefill={"do_remote_decode": True},
        pass_on=dict,
    ),
}


def side(role: Role, mode: str) -> SchedulerSide:
    settings = settings_for(role=role, mode=mode)
    return SchedulerSide(settings, TABLES)


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("name", ROUTERS)
def test_both_legs_come_together(name: str, mode: str) -> None:
    router = ROUTERS[name]
    producer, consumer = side(Role.PRODUCER, mode), side(Role.CONSUMER, mode)
    prefill = request(router.prefill, router.prefill_id, PROMPT)
    producer.on_new_request(prefill)
    prefill.num_computed_tokens, prefill.status = len(PROMPT), Status.FINISHED_LENGTH_CAPPED
    held, answer = producer.request_finished(prefill, ([3, 1, 2],))
    assert held
    assert answer is not None
    expect, send = producer.take_orders().orders
    assert isinstance(expect, Expect)
    assert isinstance(send, Send)

    decode = request(router.pass_on(answer), router.decode_id, PROMPT)
    consumer.on_new_request(decode)
    assert consumer.matched_tokens(decode, 0) == (len(PROMPT), True)
    consumer.after_alloc(decode, ([4, 5, 6],), len(PROMPT))
    (receive,) = consumer.take_orders().orders
    assert isinstance(receive, Receive)
    assert receive.register.transfer_id == send.offer.transfer_id == expect.transfer_id
    assert receive.register.digest == send.offer.digest
    (place,) = receive.register.producers
    assert (place.engine_id, place.port) == ("eng-P", 5610)


def test_what_vllms_own_tests_look_for_is_in_the_answer() -> None:
    producer = side(Role.PRODUCER, "pull")
    prefill = request(USUAL, "cmpl-4f1c-0-0badcafe", PROMPT)
    producer.on_new_request(prefill)
    prefill.num_computed_tokens, prefill.status = len(PROMPT), Status.FINISHED_LENGTH_CAPPED
    _, answer = producer.request_finished(prefill, ([3, 1, 2],))
    assert answer is not None
    assert set(answer) == {
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "pp_size",
        "dcp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
        "kvx_transfer",
    }
    assert (answer["remote_block_ids"], answer["remote_num_tokens"]) == ([[3, 1, 2]], len(PROMPT))
