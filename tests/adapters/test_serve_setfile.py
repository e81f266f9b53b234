"""The set file of `kvxfer pd`: what it stands for, and how it is refused."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import kvxfer_vllm.serve
from kvxfer.errors import BadValue
from kvxfer_vllm.serve.lines import lines_of
from kvxfer_vllm.serve.setfile import Kind, PdSet, read_set, set_of

SMALL: dict[str, Any] = {"model": "m", "prefill": [{}], "decode": [{}], "router": {}}
TWO_HOSTS: dict[str, Any] = {
    "model": "m",
    "name": "chat",
    "args": ["--all"],
    "env": {"A": "1", "B": "1"},
    "hosts": {"a": "10.0.0.1", "b": "10.0.0.2"},
    "prefill": [{"count": 2, "args": ["--p"]}, {"host": "b", "env": {"B": "2"}}],
    "decode": [{"host": "b"}],
    "connector": {"options": {"key_file": "/keys"}, "device": "cpu"},
}


def of(plain: dict[str, Any], **changes: Any) -> PdSet:
    return set_of(plain | changes, Path("/folder"))


def test_the_smallest_file_is_a_pair_with_a_router_on_loopback() -> None:
    found = of(SMALL)
    assert [member.name for member in found.members] == ["P0", "D0", "router"]
    assert set(found.hosts.values()) == {"127.0.0.1"}
    assert found.run == Path("/folder/.kvxfer/pd")
    prefill, decode, router = lines_of(found)
    assert prefill.words[:3] == ("vllm", "serve", "m")
    config = json.loads(prefill.words[prefill.words.index("--kv-transfer-config") + 1])
    assert config == {
        "kv_connector": "NixlPushConnector",
        "kv_connector_module_path": "kvxfer_vllm",
        "kv_role": "kv_producer",
        "engine_id": "pd-p0",
        "kv_load_failure_policy": "fail",
    }
    assert '"kv_consumer"' in decode.shell()
    said = dict(zip(router.words[1::2], router.words[2::2], strict=True))
    assert said["--prefill"] == "http://127.0.0.1:8100"
    assert (said["--prefill-engine-id"], said["--prefill-kv-port"]) == ("pd-p0", "15600")


def test_entries_hosts_and_what_is_common_to_all() -> None:
    found = of(TWO_HOSTS)
    places = [(e.name, e.host, e.port, e.kv_port) for e in found.engines]
    assert places == [
        ("P0", "a", 8100, 15600),
        ("P1", "a", 8101, 15616),
        ("P2", "b", 8100, 15600),
        ("D0", "b", 8200, 17600),
    ]
    assert found.engines[0].args == ("--all", "--p")
    assert found.engines[2].env == {"A": "1", "B": "2"}
    assert [line.member.name for line in lines_of(found, "b")] == ["P2", "D0"]
    with pytest.raises(BadValue, match="one of a, b"):
        lines_of(found, "c")


def test_the_router_is_told_of_every_engine_in_order() -> None:
    words = lines_of(of(TWO_HOSTS, router={"args": ["--retries", "2"]}))[-1].words
    said = list(zip(words[1::2], words[2::2], strict=True))
    ids = [value for option, value in said if option == "--prefill-engine-id"]
    assert ids == ["chat-p0", "chat-p1", "chat-p2"]
    ports = [value for option, value in said if option == "--prefill-kv-port"]
    assert ports == ["15600", "15616", "15600"]
    urls = [value for option, value in said if option == "--prefill"]
    assert urls == ["http://10.0.0.1:8100", "http://10.0.0.1:8101", "http://10.0.0.2:8100"]
    assert [value for option, value in said if option == "--decode"] == ["http://10.0.0.2:8200"]
    assert words[-2:] == ("--retries", "2")


def test_a_line_typed_by_hand_is_what_is_started() -> None:
    line = lines_of(of(TWO_HOSTS))[2]
    typed = shlex.split(line.shell())
    assert typed == [*(f"{key}={value}" for key, value in line.env.items()), *line.words]
    assert line.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"


def test_the_example_can_be_read_with_and_without_its_comments(tmp_path: Path) -> None:
    text = (Path(kvxfer_vllm.serve.__file__).parent / "example.toml").read_text()
    file = tmp_path / "pd.toml"
    file.write_text(text)
    as_it_is = read_set(file)
    assert [member.name for member in as_it_is.members] == ["P0", "D0", "router"]
    shown = "\n".join(line.removeprefix("# ") for line in text.splitlines()[1:])
    file.write_text(shown)
    plain = tomllib.loads(shown)
    assert set(plain) >= {"hosts", "connector", "env", "serve"}
    assert as_it_is.start_s == read_set(file).start_s == 600


def test_the_file_for_a_cpu_can_be_read() -> None:
    found = read_set(Path(__file__).parents[2] / "docs/examples/pd-cpu.toml")
    assert [member.name for member in found.members] == ["P0", "D0", "router"]
    prefill = lines_of(found)[0]
    assert prefill.words[: len(found.serve) + 1] == (*found.serve, ".pd/model")
    assert '"kv_buffer_device": "cpu"' in prefill.shell()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model"),
        ({"modell": "m"}, "modell"),
        ({"mode": "shove"}, "mode.*push, pull, push-stream"),
        ({"name": "Big Name"}, "name"),
        ({"prefill": []}, "prefill.*from 1 to"),
        ({"decode": {"port": 1}}, "decode.*tables"),
        ({"decode": [{"port": 70000}]}, r"decode\[0\]\.port.*65535"),
        ({"decode": [{"port": True}]}, r"decode\[0\]\.port"),
        ({"decode": [{"port": 65535, "count": 2}]}, "D1.port.*at most 65535"),
        ({"decode": [{"port": 8100}]}, "D0.port.*that P0 does not have"),
        ({"decode": [{"kv_port": 8200}]}, "D0.kv_port"),
        ({"decode": [{"host": "z"}]}, r"decode\[0\]\.host"),
        ({"decode": [{"count": 0}]}, r"decode\[0\]\.count"),
        ({"args": "--all"}, "args.*list"),
        ({"env": {"A": 1}}, r"env\.A"),
        ({"hosts": 3}, "hosts.*table"),
        ({"start_s": 0}, "start_s"),
        ({"router": {"ports": 1}}, r"router\.ports"),
        ({"connector": {"on_load_failure": "hope"}}, r"connector\.on_load_failure"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    plain = {key: value for key, value in (SMALL | change).items() if value is not None}
    with pytest.raises(BadValue, match=message):
        set_of(plain, Path("/folder"))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="can be read"):
        read_set(tmp_path / "none.toml")
    file = tmp_path / "pd.toml"
    file.write_text("a = ")
    with pytest.raises(BadValue, match="TOML"):
        read_set(file)


def test_kinds_are_counted_each() -> None:
    assert len(of(TWO_HOSTS).of(Kind.PREFILL)) == 3
