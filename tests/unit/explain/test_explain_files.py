"""Descriptor files: what was written is read, and nonsense is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvxfer.explain.files import BadDescriptor, dump_shards, load_shards
from kvxfer.layout.geometry import Shard
from kvxfer.layout.orders import engine_shards


def shards(tp: int = 1) -> tuple[Shard, ...]:
    return engine_shards(
        bases=[(rank + 1) << 40 for rank in range(tp)],
        layers=["l0", "l1"],
        blocks=8,
        tokens_per_block=16,
        heads_total=4,
        content_bytes=64,
        null_block=0,
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_round_trip(tmp_path: Path, tp: int) -> None:
    path = tmp_path / "a.json"
    path.write_text(dump_shards(shards(tp)))
    assert load_shards(path) == shards(tp)
    assert isinstance(json.loads(path.read_text()), list) == (tp > 1)


def test_ranks_are_ordered(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(dump_shards(shards(4)[::-1]))
    assert [shard.rank for shard in load_shards(path)] == [0, 1, 2, 3]


def changed(key: str, value: Any) -> str:
    plain = json.loads(dump_shards(shards()))
    plain["groups"][0][key] = value
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "shards = 0: from 1 to"),
        ("3", "shard = 3: a map"),
        (changed("stride_head", "x"), "stride_head = 'x': an integer"),
        (changed("stride_head", 8), "stride_head"),
        (changed("head_stop", 9), "head_stop = 9: from 1 to 4"),
        (dump_shards(shards() * 2), "every rank once"),
        (dump_shards((shards(1)[0], shards(2)[1])), "another rank map"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(BadDescriptor) as caught:
        load_shards(path)
    assert says in str(caught.value)
    assert "wrong.json" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadDescriptor, match="cannot be read"):
        load_shards(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(BadDescriptor, match="cannot be read"):
        load_shards(tmp_path / "bytes.json")
