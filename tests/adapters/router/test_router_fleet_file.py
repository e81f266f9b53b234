"""The engines from a file and from repeated options, with their data-parallel ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvxfer.errors import BadValue
from kvxfer_router.cli import config_of
from kvxfer_router.config import Coordinates, EngineSpec
from kvxfer_router.fleet_file import engines_of_options, read_fleet

GOOD = """
[[prefill]]
url = "http://p0:8100"
engine_id = "p0"
kv_host = "10.0.0.1"
kv_port = 5600

[[prefill]]
url = "http://p1:8100"
engine_id = "p1"
kv_host = "10.0.0.2"
kv_port = 5600
tp_size = 2
dp_size = 2

[[decode]]
url = "http://d0:8200"

[[decode]]
url = "http://d1:8200"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_a_file_names_both_kinds(tmp_path: Path) -> None:
    prefills, decodes = read_fleet(written(tmp_path, GOOD))
    second = Coordinates(engine_id="p1", kv_host="10.0.0.2", kv_port=5600, tp_size=2)
    assert prefills == (
        EngineSpec(
            url="http://p0:8100",
            coordinates=Coordinates(engine_id="p0", kv_host="10.0.0.1", kv_port=5600),
        ),
        EngineSpec(url="http://p1:8100", dp_rank=0, coordinates=second.of_rank(0)),
        EngineSpec(url="http://p1:8100", dp_rank=1, coordinates=second.of_rank(1)),
    )
    assert decodes == (EngineSpec(url="http://d0:8200"), EngineSpec(url="http://d1:8200"))


def test_a_rank_has_the_engine_id_and_the_port_that_vllm_gives_it() -> None:
    (_, second) = engines_of_options(
        ["http://p"],
        {"engine_id": ["p"], "kv_host": ["h"], "kv_port": [5600], "dp_size": [2]},
    )
    assert second.coordinates is not None
    assert (second.coordinates.engine_id, second.coordinates.kv_port) == ("p_dp1", 5601)
    assert second.name == "http://p dp1"


@pytest.mark.parametrize(
    ("text", "field", "told"),
    [
        ("[[prefill", "fleet.toml", "not TOML"),
        ("[[proxy]]\nurl = 'http://x'", "proxy", "not known"),
        ("prefill = 3", "prefill", "must be tables"),
        ("[[decode]]\n", "decode[0].url", "must be given"),
        ("[[decode]]\nurl = 5", "decode[0].url", "type str"),
        ("[[decode]]\nurl = 'http://d'\nsize = 1", "decode[0].size", "not known"),
        ("[[decode]]\nurl = 'http://d'\ndp_size = true", "decode[0].dp_size", "type int"),
        ("[[prefill]]\nurl = 'http://p'\nengine_id = 'p'", "kv_host", "together"),
        ("[[prefill]]\nurl = 'p'", "url", "http://host"),
        ("[[prefill]]\nurl = 'http://p'\ndp_size = -2", "dp_size", "at least 1"),
    ],
)
def test_a_bad_file_is_told_by_field(tmp_path: Path, text: str, field: str, told: str) -> None:
    with pytest.raises(BadValue, match=told) as caught:
        read_fleet(written(tmp_path, text))
    assert field in caught.value.field


def test_an_option_is_given_for_each_url_or_for_none() -> None:
    with pytest.raises(BadValue, match="once for each of 2") as caught:
        engines_of_options(["http://a", "http://b"], {"engine_id": ["a"]})
    assert caught.value.field == "engine_id"


def test_a_file_stands_in_the_place_of_the_options(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "mode": "auto",
        "on_prefill_failure": "fail",
        "engines": written(tmp_path, GOOD),
        "prefill": (),
        "decode": (),
        "decode_dp_size": (),
        "prefill_engine_id": (),
    }
    assert len(config_of(**options).prefills) == 3
    with pytest.raises(BadValue, match="no option may add"):
        config_of(**{**options, "decode": ("http://d",)})
