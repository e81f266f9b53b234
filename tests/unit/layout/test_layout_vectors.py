"""spec/vectors/layout.json against our own translation; the file is fresh and whole."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycddl import Schema

from kvxfer.conformance.vectors import Rejected
from kvxfer.conformance.vectors_layout import translate
from kvxfer.conformance.vectors_match import joined_ranges
from kvxfer.errors import LayoutMismatch, RemoteFault
from kvxfer.layout.edges import edges_of
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.plain import shard_from_plain
from kvxfer.layout.table import check_table
from kvxfer.layout.tokens import wanted_tokens
from kvxfer.limits import Limits
from kvxfer.wire.cbor import encode_plain

SPEC = Path(__file__).resolve().parents[3] / "spec"
VECTORS = json.loads((SPEC / "vectors" / "layout.json").read_text(encoding="utf-8"))["vectors"]
SCHEMA = Schema((SPEC / "kvxfer-1-layout.cddl").read_text(encoding="utf-8"))
LIMITS = Limits()


def of(verdict: str, stage: str | None = None) -> list[Any]:
    return [
        pytest.param(v, id=v["id"])
        for v in VECTORS
        if v["verdict"] == verdict and v.get("stage") == stage
    ]


def pair(vector: dict[str, Any]) -> tuple[Shard, Shard]:
    return (
        shard_from_plain(vector["source"], LIMITS),
        shard_from_plain(vector["target"], LIMITS),
    )


def test_the_file_is_whole() -> None:
    ids = [v["id"] for v in VECTORS]
    assert len(set(ids)) == len(ids) >= 60
    rejects = [v for v in VECTORS if v["verdict"] == "reject"]
    assert 2 * len(rejects) >= len(VECTORS)


def test_the_file_is_fresh() -> None:
    sys.path.insert(0, str(SPEC))
    layout = importlib.import_module("vectorgen.layout")
    text = (SPEC / "vectors" / "layout.json").read_text(encoding="utf-8")
    assert layout.text_of(layout.layout_file()) == text


@pytest.mark.parametrize("vector", of("accept"))
def test_accepted(vector: dict[str, Any]) -> None:
    for side in ("source", "target"):
        SCHEMA.validate_cbor(encode_plain(vector[side]))
    parts = translate(vector)
    for part in parts:
        part["ranges"] = [list(one) for one in joined_ranges(part["ranges"])]
    assert parts == vector["parts"]


@pytest.mark.parametrize("vector", of("reject", "descriptor"))
def test_descriptors_that_are_refused(vector: dict[str, Any]) -> None:
    good = "source" if vector["side"] == "target" else "target"
    shard_from_plain(vector[good], LIMITS)
    with pytest.raises(RemoteFault):
        shard_from_plain(vector[vector["side"]], LIMITS)


@pytest.mark.parametrize("vector", of("reject", "edges"))
def test_pairs_that_are_refused(vector: dict[str, Any]) -> None:
    source, target = pair(vector)
    with pytest.raises(LayoutMismatch):
        edges_of(source, target, source.rank, target.rank)


@pytest.mark.parametrize("vector", of("reject", "table"))
def test_tables_that_are_refused(vector: dict[str, Any]) -> None:
    """The pair itself is fine, and the other side's table too."""
    source, target = pair(vector)
    assert edges_of(source, target, source.rank, target.rank)
    good = "source" if vector["side"] == "target" else "target"
    (table,) = vector[f"{good}_tables"]
    blocks = np.array(table["blocks"], np.int64)
    check_table(
        source if good == "source" else target,
        BlockTable(group=0, first_token=table["first_token"], blocks=blocks),
        *wanted_tokens(target.groups[0], *vector["tokens"]),
    )
    with pytest.raises(Rejected, match="OUT_OF_BOUNDS"):
        translate(vector)
