"""The bodies of the legs, field by field."""

from __future__ import annotations

import json

import pytest

from kvxfer_router.config import Coordinates
from kvxfer_router.legs import (
    CHAT,
    COMPLETIONS,
    Names,
    coordinates_of_params,
    params_of_answer,
    prefill_body,
    pull_decode_body,
    push_decode_body,
    reason_not_to_split,
    without_peers,
)

NAMES = Names(transfer_id="ab" * 16, request_id="req-7-abab")
KNOWN = Coordinates(engine_id="eng-P", kv_host="10.0.0.5", kv_port=5610, tp_size=2, pp_size=3)

COMPLETION = json.loads("""{
  "model": "tiny", "prompt": "one two", "max_tokens": 64, "min_tokens": 5, "temperature": 0,
  "stream": true, "stream_options": {"include_usage": true}, "cache_salt": "s"
}""")

COMPLETION_PREFILL = json.loads("""{
  "model": "tiny", "prompt": "one two", "max_tokens": 1, "temperature": 0,
  "stream": false, "cache_salt": "s",
  "kv_transfer_params": {
    "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
    "remote_block_ids": null, "remote_host": null, "remote_port": null,
    "transfer_id": "abababababababababababababababab"
  }
}""")

COMPLETION_PUSH_DECODE = json.loads("""{
  "model": "tiny", "prompt": "one two", "max_tokens": 64, "min_tokens": 5, "temperature": 0,
  "stream": true, "stream_options": {"include_usage": true}, "cache_salt": "s",
  "kv_transfer_params": {
    "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "eng-P",
    "remote_host": "10.0.0.5", "remote_port": 5610, "tp_size": 2, "pp_size": 3,
    "remote_request_id": "cmpl-req-7-abab-0",
    "transfer_id": "abababababababababababababababab", "attempt": 1
  }
}""")

CHAT_BODY = json.loads("""{
  "model": "tiny", "messages": [{"role": "user", "content": "hi"}],
  "max_completion_tokens": 9, "tools": []
}""")

CHAT_PREFILL = json.loads("""{
  "model": "tiny", "messages": [{"role": "user", "content": "hi"}],
  "max_completion_tokens": 1, "max_tokens": 1, "stream": false, "tools": [],
  "kv_transfer_params": {
    "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
    "remote_block_ids": null, "remote_host": null, "remote_port": null,
    "transfer_id": "abababababababababababababababab"
  }
}""")


def test_prefill_leg_of_a_completion() -> None:
    assert prefill_body(COMPLETIONS, COMPLETION, NAMES.transfer_id) == COMPLETION_PREFILL


def test_prefill_leg_of_a_chat_bounds_both_token_fields() -> None:
    assert prefill_body(CHAT, CHAT_BODY, NAMES.transfer_id) == CHAT_PREFILL


def test_push_decode_leg_keeps_the_client_s_request() -> None:
    assert push_decode_body(COMPLETIONS, COMPLETION, NAMES, KNOWN) == COMPLETION_PUSH_DECODE


def test_push_decode_leg_of_a_chat_names_the_chat_id() -> None:
    leg = push_decode_body(CHAT, CHAT_BODY, NAMES, KNOWN)
    assert leg["kv_transfer_params"]["remote_request_id"] == "chatcmpl-req-7-abab"


def test_building_legs_changes_no_client_body() -> None:
    before = json.dumps(COMPLETION)
    prefill_body(COMPLETIONS, COMPLETION, "x")
    push_decode_body(COMPLETIONS, COMPLETION, NAMES, KNOWN)
    pull_decode_body(COMPLETION, {"a": 1}, "x")
    assert json.dumps(COMPLETION) == before


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"remote_block_ids": [[1]]}, "ours"),
        ({"remote_block_ids": [[1]], "transfer_id": None}, "ours"),
        ({"remote_block_ids": [[1]], "transfer_id": "of P"}, "of P"),
    ],
)
def test_pull_decode_leg_is_p_s_answer_with_a_transfer_id(
    params: dict[str, object], named: str
) -> None:
    leg = pull_decode_body({"prompt": "x"}, params, "ours")
    assert leg == {"prompt": "x", "kv_transfer_params": {**params, "transfer_id": named}}


def test_a_client_names_no_peers() -> None:
    body = {
        "prompt": "x",
        "kv_transfer_params": {"remote_host": "evil"},
        "ec_transfer_params": {"remote_host": "evil"},
        "vllm_xargs": {"kv_transfer_params": "evil", "ec_transfer_params": "evil", "mine": 1},
    }
    assert without_peers(body) == {"prompt": "x", "vllm_xargs": {"mine": 1}}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (COMPLETIONS, {"prompt": "one"}, None),
        (COMPLETIONS, {"prompt": ["one"]}, None),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, None),
        (COMPLETIONS, {"prompt": [[1, 2, 3]]}, None),
        (COMPLETIONS, {"prompt": []}, None),
        (COMPLETIONS, {"prompt": "one", "n": 1, "best_of": 1, "echo": True}, None),
        (COMPLETIONS, {"prompt": "one", "logprobs": 2}, None),
        (COMPLETIONS, {"prompt": ["one", "two"]}, "several_prompts"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "several_prompts"),
        (COMPLETIONS, {"prompt": "one", "n": 2}, "several_answers"),
        (COMPLETIONS, {"prompt": "one", "n": "2"}, "several_answers"),
        (COMPLETIONS, {"prompt": "one", "best_of": 3}, "several_answers"),
        (COMPLETIONS, {"prompt": "one", "use_beam_search": True}, "several_answers"),
        (COMPLETIONS, {"prompt": "one", "prompt_logprobs": 0}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "one", "echo": True, "logprobs": 0}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_embeds": "AAAA"}, "prompt_embeds"),
        (CHAT, {"messages": [{}, {}]}, None),
        (CHAT, {"messages": [], "n": 2}, "several_answers"),
        (CHAT, {"messages": [], "prompt": ["a", "b"], "echo": True, "logprobs": True}, None),
    ],
)
def test_what_one_transfer_cannot_serve(
    path: str, body: dict[str, object], reason: str | None
) -> None:
    assert reason_not_to_split(path, body) == reason


@pytest.mark.parametrize("answer", [None, [], "x", {}, {"kv_transfer_params": None}])
def test_an_answer_without_params(answer: object) -> None:
    assert params_of_answer(answer) is None
    assert params_of_answer({"kv_transfer_params": {}}) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"remote_engine_id": "eng-Q"}, {"engine_id": "eng-Q"}),
        ({"remote_host": "10.0.0.9", "remote_port": 7}, {"kv_host": "10.0.0.9", "kv_port": 7}),
        ({"tp_size": 8}, {"tp_size": 8}),
        ({"pp_size": None}, {}),
        ({"remote_host": "localhost"}, {}),
        ({"remote_host": "127.0.0.1"}, {}),
        ({"remote_host": "::"}, {}),
    ],
)
def test_coordinates_from_p_s_answer(
    changes: dict[str, object], expected: dict[str, object]
) -> None:
    params = {
        "remote_engine_id": "eng-P",
        "remote_host": "10.0.0.5",
        "remote_port": 5610,
        "tp_size": 2,
        **changes,
    }
    fields = {"engine_id": "eng-P", "kv_host": "10.0.0.5", "kv_port": 5610, "tp_size": 2}
    wanted = Coordinates(**{**fields, "pp_size": 3, **expected})  # type: ignore[arg-type]
    assert coordinates_of_params(params, KNOWN) == wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_engine_id": None},
        {"remote_engine_id": ""},
        {"remote_host": 5},
        {"remote_port": "5610"},
        {"remote_port": True},
        {"remote_port": 0},
        {"remote_port": 70000},
        {"tp_size": 0},
    ],
)
def test_params_that_state_no_coordinates(changes: dict[str, object]) -> None:
    params = {"remote_engine_id": "eng-P", "remote_host": "h", "remote_port": 1, **changes}
    assert coordinates_of_params(params, KNOWN) is None


def test_the_first_coordinates_may_be_local() -> None:
    params = {"remote_engine_id": "e", "remote_host": "localhost", "remote_port": 1}
    assert coordinates_of_params(params, None) == Coordinates(
        engine_id="e", kv_host="localhost", kv_port=1
    )
