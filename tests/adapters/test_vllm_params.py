"""Reading kv_transfer_params: what routers send is understood, anything else never raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer_vllm.names import derived_name, explicit_name, is_transfer_name, kept_name
from kvxfer_vllm.params import (
    MODE_KEY,
    RANKS_MAX,
    STREAM_KEY,
    TEXT_BYTES_MAX,
    TOKENS_DIGEST_KEY,
    TRANSFER_NAME_KEY,
    Leg,
    parse_params,
)

PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

DECODE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
    "tp_size": 1,
    "pp_size": 1,
    "remote_request_id": "cmpl-abc-0",
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def test_no_parameters_means_no_transfer() -> None:
    for params in (None, {}, {"do_remote_prefill": False, "do_remote_decode": None}):
        read = parse_params(params)
        assert read.leg is Leg.NONE
        assert not read.problem


def test_prefill_leg_of_the_usual_routers() -> None:
    read = parse_params(PREFILL)
    assert (read.leg, read.transfer_id, read.problem) == (Leg.PRODUCE, None, "")
    assert parse_params(PREFILL | {"transfer_id": "t1"}).transfer_id == "t1"


def test_decode_leg_of_the_concurrent_router() -> None:
    read = parse_params(DECODE)
    assert read.leg is Leg.CONSUME
    assert (read.remote_engine_id, read.remote_host, read.remote_port) == (
        "eng-P",
        "127.0.0.1",
        5610,
    )
    assert not read.problem


def test_sizes_may_be_left_out() -> None:
    params = {k: v for k, v in DECODE.items() if k not in ("tp_size", "pp_size")}
    assert not parse_params(params).problem


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_engine_id", None),
        ("remote_engine_id", ""),
        ("remote_engine_id", 7),
        ("remote_engine_id", "x" * (TEXT_BYTES_MAX + 1)),
        ("remote_engine_id", "lone \ud800 surrogate"),
        ("remote_host", ["127.0.0.1"]),
        ("remote_host", "two\nlines"),
        ("remote_port", "5610"),
        ("remote_port", 0),
        ("remote_port", 65536),
        ("remote_port", True),
        ("remote_port", 5610.0),
        ("tp_size", 0),
        ("tp_size", RANKS_MAX + 1),
        ("tp_size", "1"),
        ("pp_size", True),
        ("dcp_size", 4),
        ("transfer_id", 9),
        ("transfer_id", ""),
        (TRANSFER_NAME_KEY, "no-prefix"),
        (TRANSFER_NAME_KEY, 5),
        (MODE_KEY, "both"),
        (MODE_KEY, ["pull"]),
        ("do_remote_prefill", "yes"),
        ("do_remote_decode", True),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    read = parse_params(DECODE | {field: value})
    assert read.leg is Leg.CONSUME
    assert field in read.problem


def test_what_is_no_object_is_a_problem() -> None:
    assert "not an object" in parse_params([1, 2]).problem


def test_all_ranks_of_the_producer_are_counted() -> None:
    assert parse_params(DECODE | {"tp_size": 2, "pp_size": 3}).remote_ranks == 6
    too_high = parse_params(DECODE | {"tp_size": 8, "remote_port": 65535 - 7 * 64 + 1})
    assert "8 ranks would have ports above 65535" in too_high.problem


def test_a_leg_may_say_how_its_kv_moves() -> None:
    assert parse_params(DECODE | {MODE_KEY: "pull"}).mode == "pull"
    prefill = {"do_remote_decode": True}
    assert parse_params(prefill).streams
    assert not parse_params(prefill | {STREAM_KEY: False}).streams
    assert STREAM_KEY in parse_params(prefill | {STREAM_KEY: "no"}).problem


@given(JSON)
def test_any_json_gives_a_record(value: object) -> None:
    parse_params(value)


@given(
    st.dictionaries(
        st.sampled_from([*DECODE, "transfer_id", TRANSFER_NAME_KEY, "dcp_size"]), JSON, max_size=12
    )
)
def test_any_value_in_a_known_field_gives_a_record(changes: dict[str, object]) -> None:
    read = parse_params(DECODE | changes)
    if not read.problem and read.leg is Leg.CONSUME:
        assert read.remote_engine_id
        assert 0 < read.remote_port < 65536


KEPT = PREFILL | {
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "eng-D",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
    "remote_request_id": "cmpl-abc-0",
    "remote_num_tokens": 20,
}


def test_what_a_decode_engine_kept_comes_with_the_prefill_leg() -> None:
    read = parse_params(KEPT | {TOKENS_DIGEST_KEY: "ab" * 32})
    assert (read.leg, read.problem, read.kept_problem) == (Leg.PRODUCE, "", "")
    assert read.kept is not None
    assert (read.kept.request_id, read.kept.token_count) == ("cmpl-abc-0", 20)
    assert read.kept.digest == b"\xab" * 32
    assert parse_params(PREFILL).kept is None


@given(
    st.dictionaries(st.sampled_from([*KEPT, "tp_size", TOKENS_DIGEST_KEY]), JSON, max_size=12),
)
def test_any_value_in_those_fields_gives_a_record(changes: dict[str, object]) -> None:
    read = parse_params(KEPT | changes)
    if read.kept is not None:
        assert read.kept.token_count > 0
        assert is_transfer_name(kept_name(read.kept.request_id))


@pytest.mark.parametrize("request_id", ["cmpl-x", "x" * 2000, "a\nb"])
def test_the_name_of_what_was_kept_is_sound(request_id: str) -> None:
    assert is_transfer_name(kept_name(request_id))


def test_a_long_value_is_cut_in_the_text() -> None:
    assert len(parse_params(DECODE | {"remote_host": [1] * 1000}).problem) < 200


def test_both_legs_derive_the_same_name() -> None:
    one = derived_name("cmpl-7f3a-0-0badcafe", randomized=True)
    other = derived_name("cmpl-7f3a-0-12345678", randomized=True)
    assert one == other == "r:cmpl-7f3a-0"


def test_only_the_engines_own_suffix_is_stripped() -> None:
    assert derived_name("chatcmpl-x-deadbeef", randomized=False) == "r:chatcmpl-x-deadbeef"
    assert derived_name("chatcmpl-x-deadbeef-0badcafe", randomized=True) == (
        "r:chatcmpl-x-deadbeef"
    )


def test_prompts_of_one_request_get_names_of_their_own() -> None:
    names = {
        explicit_name("t", request_id, randomized=True)
        for request_id in (
            "cmpl-x-0-0badcafe",
            "cmpl-x-1-0badcafe",
            "1_cmpl-x-0-0badcafe",
            "1_cmpl-x-1-0badcafe",
        )
    }
    assert len(names) == 4


def test_chat_and_completions_agree_on_an_explicit_id() -> None:
    assert explicit_name("t", "chatcmpl-x-0badcafe", randomized=True) == explicit_name(
        "t", "cmpl-x-0-12345678", randomized=True
    )


def test_explicit_and_derived_never_collide() -> None:
    assert explicit_name("r:a", "a-0badcafe", randomized=True) != derived_name(
        "a-0badcafe", randomized=True
    )


@given(st.text(max_size=2000), st.booleans())
def test_every_derived_name_is_a_sound_name(request_id: str, randomized: bool) -> None:
    name = derived_name(request_id, randomized=randomized)
    assert is_transfer_name(name) or request_id == ""
    assert name == derived_name(request_id, randomized=randomized)
    json.dumps(name)


@given(st.text(max_size=TEXT_BYTES_MAX))
def test_the_producers_answer_is_accepted_back(transfer_id: str) -> None:
    read = parse_params(PREFILL | {"transfer_id": transfer_id})
    if read.problem or read.transfer_id is None:
        return
    name = explicit_name(read.transfer_id, "cmpl-x-3-0badcafe", randomized=True)
    back = parse_params(DECODE | {TRANSFER_NAME_KEY: name})
    assert (back.transfer_name, back.problem) == (name, "")
