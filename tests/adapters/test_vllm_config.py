"""Settings: in-tree keys are understood, wrong values stop the start with their name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvxfer.core.ids import Initiator, Role
from kvxfer.driver import TlsFiles
from kvxfer.errors import BadValue
from kvxfer_vllm.config import Settings, cache_order, check_parallel, port_of_rank, read_settings
from kvxfer_vllm.digest import prompt_digest


def settings(extra: dict[str, Any] | None = None, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "engine_id": "e",
        "kv_role": "kv_producer",
        "failure_policy": "fail",
        "host": "127.0.0.1",
        "port": 5600,
        "data_parallel_index": 0,
        "randomized_ids": True,
    }
    return read_settings(extra or {}, **(values | changes))


def test_defaults() -> None:
    read = settings()
    assert (read.transport, read.offer_lease_ms, read.deadline_ms) == ("nixl", 30_000, 60_000)
    assert read.check_digest
    assert read.role is Role.PRODUCER
    assert not read.allow_unauthenticated


def test_in_tree_keys_are_read_or_left_alone() -> None:
    read = settings(
        {
            "kv_lease_duration": 12,
            "push_registration_timeout": 7.5,
            "backends": ["UCX"],
            "num_threads": 4,
            "bidirectional_kv_xfer": True,
            "kv_recompute_threshold": 64,
        }
    )
    assert (read.offer_lease_ms, read.deadline_ms) == (12_000, 7_500)
    assert (read.bidirectional, read.kept_ms, read.load_tokens_min) == (True, 480_000, 64)


def test_read_back_needs_both_ends_of_every_engine() -> None:
    assert settings(kv_role="kv_consumer").role is Role.CONSUMER
    both = settings({"bidirectional_kv_xfer": True}, kv_role="kv_consumer")
    assert both.role is Role.BOTH


def test_our_deadline_wins_over_the_in_tree_one() -> None:
    read = settings({"push_registration_timeout": 480, "kvxfer_deadline_s": 5})
    assert read.deadline_ms == 5_000


def test_data_parallel_ranks_listen_on_ports_of_their_own() -> None:
    assert settings(data_parallel_index=3).port == 5603


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_lease_duration", 0),
        ("kv_lease_duration", "30"),
        ("kvxfer_deadline_s", True),
        ("kvxfer_deadline_s", 1e9),
        ("push_registration_timeout", float("nan")),
        ("check_prompt_digest", 1),
        ("allow_unauthenticated", "no"),
        ("require_authentication", "no"),
        ("key_file", 7),
        ("tls_cert", None),
        ("transport", 3),
        ("mode", "sideways"),
        ("mode", None),
        ("stream", "yes"),
        ("layer_slices", 0),
        ("layer_slices", True),
        ("layer_slices", 1025),
        ("layer_slices", "4"),
        ("split_kv", 1),
        ("bidirectional_kv_xfer", 1),
        ("kv_recompute_threshold", -1),
        ("kv_recompute_threshold", 6.5),
        ("decoder_kv_blocks_ttl", 0),
        ("transport_options", ["UCX"]),
    ],
)
def test_a_wrong_value_names_its_key(key: str, value: object) -> None:
    with pytest.raises(BadValue, match=key):
        settings({key: value})


def test_the_mode_is_push_unless_the_name_or_the_option_says_pull() -> None:
    assert (settings().mode, settings().initiator_of("")) == ("push", Initiator.PRODUCER)
    assert settings({"mode": "pull"}).initiator_of("") is Initiator.CONSUMER
    assert settings(named_mode="pull").mode == "pull"


def test_a_names_default_gives_way_to_the_option() -> None:
    assert settings(default_mode="pull").mode == "pull"
    assert settings({"mode": "push"}, default_mode="pull").mode == "push"


def test_an_option_against_the_connectors_name_is_refused() -> None:
    with pytest.raises(BadValue, match="mode = 'push'"):
        settings({"mode": "push"}, named_mode="pull")


def test_streaming_is_off_unless_asked_for() -> None:
    assert settings(step_tokens=512).stream_tokens == 0
    assert settings({"stream": True}, step_tokens=512).stream_tokens == 512


@pytest.mark.parametrize(
    ("step_tokens", "block", "part"), [(512, 128, 512), (500, 128, 384), (64, 128, 128)]
)
def test_streamed_parts_are_whole_blocks(step_tokens: int, block: int, part: int) -> None:
    read = settings({"stream": True}, step_tokens=step_tokens).on_blocks(block)
    assert read.stream_tokens == part


@pytest.mark.parametrize("key", ["stream", "bidirectional_kv_xfer"])
def test_nothing_that_rests_on_the_check_of_the_prompt_without_it(key: str) -> None:
    with pytest.raises(BadValue, match=key):
        settings({key: True, "check_prompt_digest": False}, step_tokens=512)


def test_layers_are_cut_where_asked_for_and_only_of_a_stream() -> None:
    assert settings({"stream": True}, step_tokens=512).layer_slices == 1
    both = {"stream": True, "layer_slices": 4}
    assert settings(both, step_tokens=512).layer_slices == 4
    assert settings({"layer_slices": 1}).layer_slices == 1
    with pytest.raises(BadValue, match=r"layer_slices = 4: .*stream"):
        settings({"layer_slices": 4}, step_tokens=512)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(BadValue, match="kv_role"):
        settings(kv_role="kv_neither")


def test_context_parallelism_is_refused() -> None:
    check_parallel(decode_context_parallel_size=1)
    with pytest.raises(BadValue, match="decode_context_parallel_size = 2"):
        check_parallel(decode_context_parallel_size=2)


def test_a_request_may_say_who_moves_its_kv_where_the_name_does_not() -> None:
    assert settings().initiator_of("pull") is Initiator.CONSUMER
    assert settings(named_mode="push").initiator_of("pull") is Initiator.PRODUCER


def test_pages_travel_whole_or_in_slots() -> None:
    assert not settings().slots
    assert settings({"pages": "slots"}).slots
    with pytest.raises(BadValue, match="pages"):
        settings({"pages": "halves"})


def test_an_order_of_the_cache_may_be_asked_for() -> None:
    assert cache_order({}, latent=False) == "LBHNC"
    assert cache_order({}, latent=True) is None
    assert cache_order({"cache_order": "BLHNC"}, latent=False) == "BLHNC"
    with pytest.raises(BadValue, match="cache_order = 'NHD'"):
        cache_order({"cache_order": "NHD"}, latent=False)


def test_ports_of_replicas_and_of_ranks_do_not_meet() -> None:
    ports = {
        port_of_rank(settings(data_parallel_index=n).port, rank)
        for n in range(4)
        for rank in range(4)
    }
    assert len(ports) == 16


def test_digest_tells_prompts_apart() -> None:
    # SHA-256 of struct.pack("<QII", 2, 1, 2).
    assert prompt_digest([1, 2]).hex() == (
        "1066d714b87c7e4579867e8ea219fa264cd2b30c7b0bc897fd071f16354d4865"
    )
    assert prompt_digest([1, 2]) != prompt_digest([2, 1])
    assert prompt_digest([0]) != prompt_digest([0, 0])
    assert prompt_digest([1, 2]) == prompt_digest((1, 2))


def test_a_prompt_without_token_ids_has_no_digest() -> None:
    assert prompt_digest(None) == b""
    assert prompt_digest([]) == b""


def test_keys_and_certificates_are_files(tmp_path: Path) -> None:
    assert settings().key_file == ""
    assert settings().tls is None
    assert settings({"key_file": "/etc/keys"}).key_file == "/etc/keys"
    three = {f"tls_{name}": str(tmp_path / name) for name in ("cert", "key", "ca")}
    read = settings({**three, "tls_check_hostname": False}).tls
    assert read == TlsFiles(
        cert=tmp_path / "cert", key=tmp_path / "key", ca=tmp_path / "ca", check_hostname=False
    )
    for name in three:
        with pytest.raises(BadValue, match=name):
            settings({key: value for key, value in three.items() if key != name})


def test_k_and_v_are_split_where_asked_for() -> None:
    assert not settings().split_kv
    assert settings({"split_kv": True}).split_kv
