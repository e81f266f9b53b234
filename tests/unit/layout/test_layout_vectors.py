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

from kvxfer.errors import BadValue, KvxferError, LayoutMismatch, RemoteFault
from kvxfer.layout.coverage import uncovered
from kvxfer.layout.edges import edges_of
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.parts import edges_in, part_boxes
from kvxfer.layout.plain import shard_from_plain
from kvxfer.layout.plan import Plan, coalesce
from kvxfer.layout.table import check_table
from kvxfer.layout.tokens import wanted_tokens
from kvxfer.layout.translate import EdgeGeometry
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


def tables(vector: dict[str, Any], side: str) -> dict[int, BlockTable]:
    return {
        t["group"]: BlockTable(
            group=t["group"],
            first_token=t["first_token"],
            blocks=np.array(t["blocks"], np.int64),
        )
        for t in vector[f"{side}_tables"]
    }


def parts(vector: dict[str, Any]) -> list[dict[str, Any]]:
    """What we would write: as the file says it."""
    source, target = pair(vector)
    edges = edges_of(source, target, source.rank, target.rank)
    here, there = tables(vector, "source"), tables(vector, "target")
    found = []
    for box in part_boxes(source, target, edges, *vector["tokens"]):
        span = (box.token_start, box.token_stop)
        if box.group not in there:
            raise BadValue("tables", box.group, "a table of every group")
        plans = [
            EdgeGeometry.build(source, target, edge).plan(
                here[edge.producer_group], there[box.group], *span
            )
            for edge in edges_in(source, edges, box)
        ]
        part: dict[str, Any] = {
            "part": [source.rank, box.group, *span],
            "ranges": ranges(source, target, Plan.concat(plans)),
        }
        left = [
            [*place(target, at), size]
            for at, size in zip(
                *(c.tolist() for c in uncovered(target, there[box.group], *span)), strict=True
            )
        ]
        if left:
            part["uncovered"] = sorted(left)
        found.append(part)
    return found


def place(shard: Shard, at: int) -> tuple[int, int]:
    return next(
        (n, at - a.base) for n, a in enumerate(shard.areas) if a.base <= at < a.base + a.length
    )


def ranges(source: Shard, target: Shard, plan: Plan) -> list[list[int]]:
    """By (area, offset); joined as far as they join, but not over the border of an area."""
    assert coalesce(plan).bytes_total == plan.bytes_total
    rows = [
        [*place(source, s), *place(target, d), n]
        for s, d, n in zip(plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True)
    ]
    joined: list[list[int]] = []
    for row in sorted(rows, key=lambda r: (r[2], r[3])):
        last = joined[-1] if joined else None
        if last and [last[0], last[1] + last[4], last[2], last[3] + last[4]] == row[:4]:
            last[4] += row[4]
        else:
            joined.append(row)
    return joined


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
    assert parts(vector) == vector["parts"]


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
    source, target = pair(vector)
    good = "source" if vector["side"] == "target" else "target"
    shard = source if good == "source" else target
    span = wanted_tokens(target.groups[0], *vector["tokens"])
    check_table(shard, tables(vector, good)[0], *span)
    with pytest.raises(KvxferError):
        parts(vector)
