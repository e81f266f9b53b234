"""The explanation over every cache shape: it says something of each pair, and nothing false."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given, settings

from kvxfer.errors import BadValue
from kvxfer.explain.cells import Key
from kvxfer.explain.files import dump_shards, load_shards
from kvxfer.explain.picture import picture_of
from kvxfer.explain.report import explain
from kvxfer.explain.svg import draw
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import GroupKind

sys.path.insert(0, str(Path(__file__).parent))
from layout_shapes import Case, cases

SHAPES = settings(max_examples=120, deadline=None, derandomize=True)


@SHAPES
@given(case=cases())
def test_every_edge_is_explained(case: Case) -> None:
    report = explain(case.producers, case.consumers)
    assert report.refused == ()
    edges = edges_between(case.producers[0], case.consumers[0])
    assert {one.edge for one in report.edges} == set(edges)
    for one in report.edges:
        if one.range_bytes is None:
            assert one.missing
            continue
        assert one.bytes_total is not None
        assert 0 < one.range_bytes[0] <= one.range_bytes[1] <= one.bytes_total
        for join in one.joins:
            assert join.planes
            assert join.run_bytes % join.content_bytes == 0
            assert all(left.count > 1 and left.reason for left in join.left)


@SHAPES
@given(case=cases())
def test_what_is_drawn_is_the_same_at_both_ends(case: Case) -> None:
    for consumer in case.consumers:
        try:
            shown = picture_of(case.producers, consumer, consumer.groups[0].name)
        except BadValue:
            # A pool may be too small for a whole block of the other side.
            continue
        ElementTree.fromstring(draw(shown))
        slots = _pages if shown.group.kind is GroupKind.STATE else _slots
        for source in shown.sources:
            if shown.target.rows_hidden or source.panel.rows_hidden:
                continue
            assert slots(source.taken) == slots(source.written)
            for arrow in source.arrows:
                ends = [{cell.key for cell in end} for end in (arrow.source, arrow.target)]
                assert slots(ends[0]) == slots(ends[1])


def _slots(keys: Collection[Key]) -> set[tuple[str, str, int, int]]:
    """Without the byte: one side may show elements where the other shows whole slots."""
    return {key[:-1] for key in keys}


def _pages(keys: Collection[Key]) -> set[tuple[str, str, int]]:
    """Nor the token: a state is called by its page's first one, and pages differ in length."""
    return {key[:3] for key in keys}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=cases())
def test_files_hold_every_shape(tmp_path_factory: object, case: Case) -> None:
    path = tmp_path_factory.mktemp("shards") / "a.json"  # type: ignore[attr-defined]
    path.write_text(dump_shards(case.producers))
    assert load_shards(path) == case.producers
