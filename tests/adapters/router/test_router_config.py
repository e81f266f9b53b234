"""What an operator may set, and the command that takes it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from kvxfer.errors import BadValue
from kvxfer_router.cli import main
from kvxfer_router.config import Coordinates, EngineSpec, Mode, RouterConfig

GOOD: dict[str, Any] = {
    "mode": Mode.PULL,
    "prefills": (EngineSpec(url="http://p:1/base"),),
    "decodes": (EngineSpec(url="https://d"),),
}


def test_a_good_configuration_is_taken() -> None:
    assert RouterConfig(**GOOD).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefills", ()),
        ("decodes", (EngineSpec(url="http://d"), EngineSpec(url="http://d"))),
        ("host", ""),
        ("port", -1),
        ("port", 65536),
        ("body_mib_max", 0),
        ("connect_timeout_s", 0.0),
        ("idle_timeout_s", float("nan")),
        ("drain_s", -1.0),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadValue, match=field) as caught:
        RouterConfig(**{**GOOD, field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("engine_id", ""), ("kv_host", ""), ("kv_port", 0), ("tp_size", 0), ("pp_size", True)],
)
def test_a_bad_coordinate_is_refused_by_name(field: str, value: object) -> None:
    good: dict[str, Any] = {"engine_id": "e", "kv_host": "h", "kv_port": 1}
    with pytest.raises(BadValue) as caught:
        Coordinates(**{**good, field: value})
    # True is a number to Python; as a size it is a mistake.
    assert caught.value.field == field


def test_push_needs_p_s_coordinates() -> None:
    with pytest.raises(BadValue, match="coordinates"):
        RouterConfig(**{**GOOD, "mode": Mode.PUSH})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--decode", "http://d"], "prefills"),
        (["--prefill", "http://p", "--decode", "d"], "url"),
        (["--prefill", "http://p", "--decode", "http://d"], "coordinates"),
        (
            ["--prefill", "http://p", "--decode", "http://d", "--prefill-kv-port", "5"],
            "engine_id",
        ),
        (["--prefill", "http://p", "--decode", "http://d", "--mode", "shove"], "shove"),
    ],
)
def test_a_wrong_option_is_told_by_name(options: list[str], told: str) -> None:
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert told in result.output


@contextmanager
def running_command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as a process of its own, and the URL that it says it serves."""
    command = [sys.executable, "-m", "kvxfer_router", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield (
                process,
                next(word for word in line.split() if word.startswith("http")).rstrip(","),
            )
        finally:
            process.kill()


def test_the_command_serves_until_a_signal(down_url: str) -> None:
    options = ["--mode", "pull", "--prefill", down_url, "--decode", down_url]
    with running_command(*options) as (process, url):
        with urllib.request.urlopen(url + "/health", timeout=30) as response:
            assert json.load(response) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_port_in_use_is_told(down_url: str) -> None:
    port = down_url.rpartition(":")[2]
    result = CliRunner().invoke(
        main, ["--mode", "pull", "--prefill", down_url, "--decode", down_url, "--port", port]
    )
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output
