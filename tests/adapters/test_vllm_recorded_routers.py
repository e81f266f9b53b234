"""What the routers of others send, replayed against both sides of the connector.

`recorded_routers/` holds a request pair for each router, written down from its sources in our
own words, or taken from the running router where `seen` says so. A pair is replayed with the
answer that our P really gives, so the test shows that the two legs name one transfer, and that
D finds P; it does not show the router itself at work.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from vllm_settings import settings_for

from kvxfer.driver import Role
from kvxfer_router import Coordinates
from kvxfer_router.legs import COMPLETIONS, Names, prefill_body, pull_decode_body, push_decode_body
from kvxfer_vllm.metadata import Expect, Receive, Send
from kvxfer_vllm.params import Leg, parse_params
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import GroupBlocks, Tables

FOLDER = Path(__file__).with_name("recorded_routers")
LISTS = {"other_connectors", "in_tree_answers"}
PAIRS = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem not in LISTS)
PROMPT = list(range(100, 140))
BLOCKS = ([3, 4, 5],)


def recorded(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def side(role: Role) -> SchedulerSide:
    settings = settings_for(role=role)
    return SchedulerSide(settings, Tables(groups=(GroupBlocks(tokens_per_block=16),)))


def engine_id_of(leg: dict[str, Any], suffix: str) -> str:
    """The request id that vLLM's server makes of a leg; without a header it makes up its own."""
    headers = {name.lower(): value for name, value in leg["headers"].items()}
    given = headers.get("x-request-id", f"made-up-{suffix}")
    if leg["path"] == "engine":
        return f"{given}-{suffix}"
    chat = leg["path"].endswith("/chat/completions")
    return f"chatcmpl-{given}-{suffix}" if chat else f"cmpl-{given}-0-{suffix}"


@attrs.define
class Engine:
    """One engine's scheduler side with one request."""

    scheduler: SchedulerSide
    request: Any

    @classmethod
    def begin(cls, role: Role, leg: dict[str, Any], params: object, suffix: str) -> Engine:
        """The leg has come to this engine; `suffix` is what vLLM appends to its id."""
        request = SimpleNamespace(
            request_id=engine_id_of(leg, suffix),
            kv_transfer_params=json.loads(json.dumps(params)),
            prompt_token_ids=PROMPT,
            num_prompt_tokens=len(PROMPT),
            num_computed_tokens=len(PROMPT),
            status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
        )
        scheduler = side(role)
        scheduler.on_new_request(request)
        return cls(scheduler, request)

    def orders(self) -> Any:
        return self.scheduler.take_orders().orders


def prefill(leg: dict[str, Any], suffix: str = "0badcafe") -> tuple[Expect, dict[str, Any]]:
    """Run P's leg to its end: what its workers expect, and the parameters of its answer."""
    engine = Engine.begin(Role.PRODUCER, leg, leg["body"]["kv_transfer_params"], suffix)
    (expect,) = engine.orders()
    held, answer = engine.scheduler.request_finished(engine.request, BLOCKS)
    (send,) = engine.orders()
    assert isinstance(expect, Expect)
    assert isinstance(send, Send)
    assert held
    assert send.offer.transfer_id == expect.transfer_id
    return expect, json.loads(json.dumps(answer))


def decode(leg: dict[str, Any], params: object) -> Receive:
    """Admit D's leg: the registration that leaves for its workers."""
    engine = Engine.begin(Role.CONSUMER, leg, params, "5ca1ab1e")
    assert engine.scheduler.matched_tokens(engine.request, 0) == (len(PROMPT), True)
    engine.scheduler.after_alloc(engine.request, ([7, 8, 9],), len(PROMPT))
    (receive,) = engine.orders()
    assert isinstance(receive, Receive)
    return receive


def filled_in(params: Any, answer: dict[str, Any]) -> Any:
    """Recorded parameters with P's answer where the router puts it.

    {"$answer": {...}} is the whole answer with these fields replaced, {"$answer": "name"} one
    field of it.
    """
    if not isinstance(params, dict):
        return params
    if "$answer" not in params:
        return {name: filled_in(value, answer) for name, value in params.items()}
    wanted = params["$answer"]
    return answer | wanted if isinstance(wanted, dict) else answer[wanted]


@pytest.mark.parametrize("name", PAIRS)
def test_both_legs_name_one_transfer_and_d_finds_p(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair = recorded(name)
    with caplog.at_level(logging.WARNING):
        expect, answer = prefill(pair["prefill"])
        params = filled_in(pair["decode"]["body"]["kv_transfer_params"], answer)
        receive = decode(pair["decode"], params)
    assert receive.register.transfer_id == expect.transfer_id
    (producer,) = receive.register.producers
    assert attrs.asdict(producer) == pair["producer"] | {"rank": 0}
    assert (receive.register.token_start, receive.register.token_stop) == (0, len(PROMPT))
    assert caplog.messages == []


def test_without_any_id_from_the_router_p_s_answer_tells_dispatches_apart() -> None:
    pair = recorded("vllm_disagg_proxy_demo")
    assert "X-Request-Id" not in pair["prefill"]["headers"]
    transfers = []
    for suffix in ("0badcafe", "deadbeef"):
        expect, answer = prefill(pair["prefill"], suffix)
        params = filled_in(pair["decode"]["body"]["kv_transfer_params"], answer)
        assert decode(pair["decode"], params).register.transfer_id == expect.transfer_id
        transfers.append(expect.transfer_id)
    assert len(set(transfers)) == 2


@pytest.mark.parametrize("name", ["llm_d_sidecar_nixl_push", "vllm_router_push"])
def test_p_s_answer_has_what_others_need_to_send_both_legs_at_once(name: str) -> None:
    pair = recorded(name)
    _, answer = prefill(pair["prefill"])
    sent = pair["decode"]["body"]["kv_transfer_params"]
    assert answer["transfer_mode"] == "push"
    for field in pair["identity"]:
        assert answer[field] == sent[field], field


def test_p_s_answer_names_blocks_per_group_for_readers_that_count_them() -> None:
    _, answer = prefill(recorded("vllm_toy_proxy_server")["prefill"])
    assert [len(group) for group in answer["remote_block_ids"]] == [3]
    assert answer["remote_num_tokens"] == len(PROMPT)


@pytest.mark.parametrize("case", recorded("in_tree_answers"), ids=lambda case: case["engine"])
def test_answers_of_vllm_s_own_connectors_are_read(case: dict[str, Any]) -> None:
    read = parse_params(case["params"])
    assert (read.leg, read.problem) == (Leg.CONSUME, "")
    assert (read.remote_engine_id, read.remote_port) == ("eng-P", 5600)


@pytest.mark.parametrize("case", recorded("other_connectors"), ids=lambda case: case["router"])
def test_parameters_for_other_connectors_are_told_by_field(case: dict[str, Any]) -> None:
    read = parse_params(case["params"])
    assert read.leg is Leg.CONSUME
    assert case["named"] in read.problem


@pytest.mark.parametrize("order", ["together", "series"])
def test_our_own_router_s_legs(order: str) -> None:
    names = Names(transfer_id="t" * 32, request_id=f"mine-{'t' * 32}")
    client = {"model": "tiny", "prompt": "one two three", "max_tokens": 8}
    headers = {"X-Request-Id": names.request_id}
    p_leg = {
        "path": COMPLETIONS,
        "headers": headers,
        "body": prefill_body(COMPLETIONS, client, names.transfer_id),
    }
    expect, answer = prefill(p_leg)
    if order == "together":
        place = Coordinates(engine_id="eng-P", kv_host="127.0.0.1", kv_port=5610)
        body = push_decode_body(COMPLETIONS, client, names, place)
    else:
        body = pull_decode_body(client, answer, names.transfer_id)
    receive = decode({"path": COMPLETIONS, "headers": headers}, body["kv_transfer_params"])
    assert receive.register.transfer_id == expect.transfer_id
