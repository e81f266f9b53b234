"""Fixed bytes with a verdict: spec/vectors/codec.json against the codec and the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pycddl import Schema, ValidationError

from kvxfer.conformance.vectors import load
from kvxfer.conformance.vectors_plain import to_numbers
from kvxfer.core.messages import MessageType
from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits
from kvxfer.wire.codec import UnknownMessage, decode, encode
from kvxfer.wire.schema import BY_CLASS

SPEC = Path(__file__).resolve().parents[3] / "spec"
VECTORS = load(SPEC / "vectors" / "codec.json").cases
SCHEMA = Schema((SPEC / "kvxfer-1.cddl").read_text(encoding="utf-8"))
LIMITS = Limits()
APPENDED = "unknown-items-behind-layers"
"""CDDL validators give an array a fixed length, so items of a newer version are prose there."""


def of(verdict: str) -> list[Any]:
    return [pytest.param(v, id=v["id"]) for v in VECTORS if v["verdict"] == verdict]


def test_the_file_is_whole() -> None:
    ids = [v["id"] for v in VECTORS]
    assert len(set(ids)) == len(ids)
    assert len(of("accept")) >= 12
    assert len(of("reject")) >= len(of("accept"))
    accepted = {v["type"] for v in VECTORS if v["verdict"] == "accept"}
    assert accepted == {layout.number.name for layout in BY_CLASS.values()}


@pytest.mark.parametrize("vector", of("accept"))
def test_accepted(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    message = decode(data, LIMITS)
    assert BY_CLASS[type(message)].number is MessageType[vector["type"]]
    assert to_numbers(message) == vector["message"]
    assert (encode(message) == data) is vector["canonical"]
    if vector["id"] != APPENDED:
        SCHEMA.validate_cbor(data)


@pytest.mark.parametrize("vector", of("reject"))
def test_rejected(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    with pytest.raises(RemoteFault) as caught:
        decode(data, LIMITS)
    assert not isinstance(caught.value, UnknownMessage)
    if "schema" in vector["flags"]:
        with pytest.raises(ValidationError):
            SCHEMA.validate_cbor(data)


@pytest.mark.parametrize("vector", of("skip"))
def test_skipped(vector: dict[str, Any]) -> None:
    with pytest.raises(UnknownMessage):
        decode(bytes.fromhex(vector["hex"]), LIMITS)
