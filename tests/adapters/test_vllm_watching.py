"""The adapter's options for metrics, recordings and traces, on real agents."""

from __future__ import annotations

import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from vllm_loopback_pair import Engine, request

from kvxfer.driver import Role
from kvxfer.errors import BadValue
from kvxfer.record import read_recordings
from kvxfer_vllm.config import Settings, read_settings
from kvxfer_vllm.params import parse_params, traceparent_of

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def settings(**extra: Any) -> Settings:
    return read_settings(
        extra,
        engine_id="e",
        kv_role="kv_both",
        failure_policy="fail",
        host="127.0.0.1",
        port=5600,
        data_parallel_index=2,
        randomized_ids=True,
    )


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def test_the_options_are_read() -> None:
    read = settings(traces=True, record_dir="/tmp/x", metrics_address="10.0.0.1:9400")
    assert (read.traces, read.record_dir, read.metrics_address) == (
        True,
        "/tmp/x",
        ("10.0.0.1", 9402),
    )
    plain = settings()
    assert (plain.traces, plain.record_dir, plain.metrics_address) == (False, "", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("traces", "yes"),
        ("record_dir", 3),
        ("metrics_address", 9400),
        ("metrics_address", "9400"),
        ("metrics_address", "host:"),
        ("metrics_address", "host:0"),
        ("metrics_address", "host:70000"),
        ("metrics_address", "host:x"),
    ],
)
def test_wrong_values_stop_the_start(key: str, value: object) -> None:
    with pytest.raises(BadValue, match=key):
        settings(**{key: value})


def test_metrics_are_served_and_the_recording_is_written(tmp_path: Path) -> None:
    port = free_port()
    address = ("127.0.0.1", port)
    engine = Engine.start(
        "P", Role.PRODUCER, metrics_address=address, record_dir=str(tmp_path), traces=True
    )
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        with pytest.raises(BadValue, match="metrics_address"):
            Engine.start("P2", Role.PRODUCER, metrics_address=address)
    finally:
        engine.close()
    assert 'kvxfer_transfers_live{engine="P",rank="0",side="producer"} 0.0' in text
    (track,) = read_recordings(tmp_path.iterdir()).tracks
    assert track.header.engine_id == "P"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_traces_without_the_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvxfer.observe.spans", None)
    with pytest.raises(BadValue, match="traces"):
        Engine.start("P", Role.PRODUCER, traces=True)


def test_the_context_comes_from_the_parameters_or_from_the_headers() -> None:
    produce = {"do_remote_decode": True}
    bare = request(produce, "r", [1])
    assert traceparent_of(bare, parse_params(produce)) == ""
    bare.trace_headers = {"traceparent": PARENT}
    assert traceparent_of(bare, parse_params(produce)) == PARENT
    other = PARENT.replace("a", "c")
    assert traceparent_of(bare, parse_params({**produce, "traceparent": other})) == other
    for wrong in (3, ["x"], "x" * 1000):
        assert parse_params({**produce, "traceparent": wrong}).problem == ""
        assert traceparent_of(bare, parse_params({**produce, "traceparent": wrong})) == PARENT
