"""Staging worked out by hand: what it saves, how it is bounded, when it is taken."""

from __future__ import annotations

import numpy as np
import pytest

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.choice import Costs, Path, Room, choose
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.permute import Buffer, Permute, apply_permute
from kvxfer.layout.sheets import Axis
from kvxfer.layout.staging import Side, Staging
from kvxfer.layout.translate import EdgeGeometry

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 4, 6, 2, 4, 8
PAGE = HEADS * TOKENS * CONTENT
TABLE = BlockTable(group=0, first_token=0, blocks=np.array([1, 3, 5], np.int64))
SPAN = (TABLE, TABLE, 0, 3 * TOKENS)
COSTS = Costs(range_ns=1000, byte_ns=0.1, permuted_byte_ns=0.5)


def geometry(producer: str = "LBHNC", consumer: str = "LBNHC") -> EdgeGeometry:
    fields = {
        "layers": tuple("abcd"),
        "blocks": BLOCKS,
        "tokens_per_block": TOKENS,
        "heads_total": HEADS,
        "content_bytes": CONTENT,
    }
    (p,) = engine_shards(bases=[1 << 20], order=producer, **fields)
    (d,) = engine_shards(bases=[1 << 30], order=consumer, **fields)
    (edge,) = edges_between(p, d)
    return EdgeGeometry.build(p, d, edge)


@pytest.mark.parametrize("side", list(Side))
def test_ranges_are_as_long_as_the_far_side_allows(side: Side) -> None:
    """Slot by slot directly, page by page through the buffer."""
    direct = geometry()
    assert direct.plan(*SPAN).descriptor_count == LAYERS * 3 * HEADS * TOKENS
    staging = Staging.build(direct, side, 0, LAYERS * PAGE * 3)
    (only,) = staging.rounds(*SPAN)
    assert only.plan.length.tolist() == [PAGE] * (LAYERS * 3)
    assert staging.range_count(*SPAN) == LAYERS * 3


def test_pages_of_a_block_outermost_pool_stay_in_one_piece() -> None:
    staging = Staging.build(geometry("BLHNC", "BHLNC"), Side.CONSUMER, 0, 1 << 20)
    (only,) = staging.rounds(*SPAN)
    assert only.plan.length.tolist() == [LAYERS * PAGE] * 3


def test_a_small_buffer_is_used_in_rounds() -> None:
    staging = Staging.build(geometry(), Side.PRODUCER, 0, 2 * LAYERS * PAGE + 7)
    assert (staging.entries, staging.staging_bytes) == (2, 2 * LAYERS * PAGE)
    spans = [(turn.token_start, turn.token_stop) for turn in staging.rounds(*SPAN)]
    assert spans == [(0, 2 * TOKENS), (2 * TOKENS, 3 * TOKENS)]
    with pytest.raises(LayoutMismatch, match=f"has 255 bytes, one block needs {LAYERS * PAGE}"):
        Staging.build(geometry(), Side.PRODUCER, 0, LAYERS * PAGE - 1)


def test_many_tiny_ranges_are_staged_where_there_is_room() -> None:
    choice = choose(geometry(), *SPAN, room=Room(producer_bytes=1 << 20), costs=COSTS)
    total = LAYERS * 3 * PAGE
    assert choice.path is Path.STAGED_AT_PRODUCER
    assert (choice.direct_ranges, choice.staged_ranges) == (96, 12)
    assert choice.bytes_total == total
    assert choice.direct_ns == 96 * 1000 + total * 0.1
    assert choice.staged_ns == pytest.approx(12 * 1000 + total * 0.6)
    assert "12 ranges and a permute in place of 96" in choice.reason


@pytest.mark.parametrize(
    ("room", "path"),
    [
        (Room(), Path.DIRECT),
        (Room(consumer_bytes=LAYERS * PAGE), Path.STAGED_AT_CONSUMER),
        (Room(producer_bytes=LAYERS * PAGE - 1, consumer_bytes=1 << 20), Path.STAGED_AT_CONSUMER),
        (Room(producer_bytes=1 << 20, consumer_bytes=1 << 20), Path.STAGED_AT_PRODUCER),
    ],
)
def test_the_side_that_has_room_permutes_the_producer_first(room: Room, path: Path) -> None:
    assert choose(geometry(), *SPAN, room=room, costs=COSTS).path is path


def test_like_orders_go_directly_however_much_room_there_is() -> None:
    room = Room(producer_bytes=1 << 30, consumer_bytes=1 << 30)
    choice = choose(geometry("LBHNC", "LBHNC"), *SPAN, room=room, costs=COSTS)
    assert choice.path is Path.DIRECT
    assert choice.direct_ranges == choice.staged_ranges == 12
    assert "cheaper" in choice.reason


def test_too_many_ranges_force_staging_or_are_refused_with_both_reasons() -> None:
    cheap = Costs(range_ns=0, byte_ns=0, permuted_byte_ns=9)
    room = Room(consumer_bytes=1 << 20)
    forced = choose(geometry(), *SPAN, room=room, costs=cheap, descriptors_max=95)
    assert forced.path is Path.STAGED_AT_CONSUMER
    with pytest.raises(LayoutMismatch, match=r"96 ranges, at most 95 .* consumer has 0 bytes"):
        choose(geometry(), *SPAN, room=Room(), costs=cheap, descriptors_max=95)


def test_too_many_ranges_are_refused_where_staging_does_not_help_either() -> None:
    room = Room(consumer_bytes=1 << 20)
    with pytest.raises(LayoutMismatch, match="12 ranges even through a staging buffer"):
        choose(geometry(), *SPAN, room=room, costs=COSTS, descriptors_max=11)


def test_a_permute_outside_the_buffer_is_refused() -> None:
    at = np.array([100, 140], np.uint64)
    permute = Permute(src=at, dst=at, axes=(Axis(2, 10, 10),), item_bytes=4)
    assert permute.shape == (2, 2)
    assert permute.bytes_total == 16
    fits, short = (Buffer(100, np.zeros(size, np.uint8)) for size in (54, 53))
    apply_permute(permute, [short, fits], [fits])
    with pytest.raises(BadValue, match="buffers"):
        apply_permute(permute, [fits], [short])
