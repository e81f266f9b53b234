"""A peer's descriptor with anything wrong in it: refused, or served within its own areas.

The other tests of hostile descriptors start from plain shapes; here every field is in use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvxfer.errors import BadValue, LayoutMismatch, RemoteFault
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import Shard
from kvxfer.layout.parts import edges_in, part_boxes
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.layout.staging import Side, Staging
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

sys.path.insert(0, str(Path(__file__).parent))
from layout_shapes import Case, cases

LIMITS = Limits()
ODD: list[Any] = [
    0,
    1,
    2,
    3,
    4,
    7,
    12,
    255,
    1 << 32,
    1 << 40,
    (1 << 40) + 1,
    (1 << 64) - 1,
    1 << 64,
]
ODD += [-1, None, True, "x", "", "kv", b"", 1.5, [], {}, [0], ["a"], [1 << 63], [[]], [{}]]


def paths(obj: Any, prefix: tuple = ()) -> list[tuple]:
    found = []
    for key, value in obj.items() if isinstance(obj, dict) else enumerate(obj):
        found.append((*prefix, key))
        if isinstance(value, dict | list):
            found += paths(value, (*prefix, key))
    return found


@st.composite
def spoilt(draw: st.DrawFn, shard: Shard) -> dict[str, Any]:
    """A descriptor in which one to three values are something else, kept consistent or not."""
    plain = shard_to_plain(shard)
    group, own = plain["groups"][0], plain["ranks"][shard.rank]["holdings"][0]
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(group)))
        group[key] = draw(st.sampled_from(ODD))
        # The rank map often says the same: else nothing but that would be found.
        if key in own:
            own[key] = group[key]
    path = draw(st.sampled_from(paths(plain)))
    place = plain
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = draw(st.sampled_from(ODD))
    return plain


def inside(shard: Shard, address: Any, length: Any) -> bool:
    spans = [(area.base, area.base + area.length) for area in shard.areas]
    return all(
        any(low <= at and at + size <= high for low, high in spans)
        for at, size in zip(address.tolist(), length.tolist(), strict=True)
    )


@settings(max_examples=500, deadline=None, derandomize=True)
@given(cases(), st.data())
def test_refused_or_served_inside_its_areas(case: Case, data: st.DataObject) -> None:
    producer = data.draw(st.sampled_from(case.producers))
    consumer = data.draw(st.sampled_from(case.consumers))
    consumer_is_hostile = data.draw(st.booleans())
    plain = data.draw(spoilt(consumer if consumer_is_hostile else producer))
    try:
        hostile = shard_from_plain(plain, LIMITS)
        source, target = (producer, hostile) if consumer_is_hostile else (hostile, consumer)
        edges = edges_between(source, target)
        pair = (source.rank, target.rank)
        mine = [e for e in edges if (e.producer_rank, e.consumer_rank) == pair]
        boxes = part_boxes(source, target, mine, case.start, case.stop, grid_tokens=4)
    except (RemoteFault, LayoutMismatch):
        return
    event("accepted")
    tables = (case.source, case.target)
    for box in boxes:
        for edge in edges_in(source, mine, box):
            geometry = EdgeGeometry.build(source, target, edge)
            span = (box.token_start, box.token_stop)
            try:
                plan = geometry.plan(*tables, *span, descriptors_max=1 << 14)
                rows = geometry.plan_strided(*tables, *span, descriptors_max=1 << 14)
                staging = Staging.build(geometry, Side.PRODUCER, 0, 1 << 20)
                staging.range_count(*tables, *span)
            except (BadValue, LayoutMismatch):
                continue
            event("served")
            assert inside(source, plan.src, plan.length)
            assert inside(target, plan.dst, plan.length)
            assert rows.bytes_total == plan.bytes_total
            order = plan.dst.argsort()
            ends = (plan.dst + plan.length)[order]
            assert (ends[:-1] <= plan.dst[order][1:]).all()
