"""The picture: rows in the order of memory, ranges of the plan, one well-formed file."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from explain_pairs import engine
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.explain.cells import memory_order
from kvxfer.explain.picture import Picture, picture_of
from kvxfer.explain.svg import draw, layer_label
from kvxfer.layout.orders import ORDERS

orders = st.sampled_from(ORDERS)


def picture(here: str = "LBHNC", there: str = "LBHNC", tp: int = 1) -> Picture:
    return picture_of(engine(here, tp), engine(there, 1, 2)[0], "kv", 0)


@given(order=orders)
def test_rows_are_in_the_order_of_memory(order: str) -> None:
    panel = picture(order, order).target
    cells = [cell for row in panel.rows for cell in row.cells]
    assert [c.address for c in cells] == sorted(c.address for c in cells)
    # Two of three layers are shown; every cell once.
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 4 * 4
    for row in panel.rows:
        for before, after in zip(row.cells, row.cells[1:], strict=False):
            assert after.address == before.address + before.bytes


@given(here=orders, there=orders, tp=st.integers(1, 3))
def test_every_cell_of_the_target_has_one_range(here: str, there: str, tp: int) -> None:
    shown = picture(here, there, tp)
    target = {cell.key for row in shown.target.rows for cell in row.cells}
    landed = [cell.key for s in shown.sources for arrow in s.arrows for cell in arrow.target]
    assert len(landed) == len(set(landed))
    assert set(landed) == target
    for source in shown.sources:
        for arrow in source.arrows:
            assert {c.key for c in arrow.source} == {c.key for c in arrow.target}


def test_memory_order_in_words() -> None:
    (shard,) = engine("BHLNC")
    assert memory_order(shard, shard.groups[0]) == "block > head > layer > slot"
    (shard,) = engine("LBHNC", heads_total=1, layers=["l"])
    assert memory_order(shard, shard.groups[0]) == "block > slot"


def test_a_block_of_several_source_blocks() -> None:
    shown = picture_of(engine(tokens_per_block=4), engine(number=2, tokens_per_block=6)[0], "kv", 1)
    (source,) = shown.sources
    assert (shown.token_start, shown.token_stop) == (6, 12)
    assert len(source.panel.blocks) == 2
    tokens = {cell.token for row in source.panel.rows for cell in row.cells}
    assert tokens == set(range(4, 12))
    assert {token for _, _, _, token, _ in source.taken} == set(range(6, 12))


@given(here=orders, there=orders, tp=st.integers(1, 2))
def test_the_file_is_well_formed_and_self_contained(here: str, there: str, tp: int) -> None:
    shown = picture(here, there, tp)
    text = draw(shown)
    root = ElementTree.fromstring(text)
    frames = [e for e in root.iter() if e.get("class") == "f"]
    assert len(frames) >= sum(len(source.arrows) for source in shown.sources)
    assert "<script" not in text
    assert "href" not in text
    assert text == draw(shown)


def test_names_are_escaped() -> None:
    names = ["<l0>", "l1&", 'l"2']
    shown = picture_of(engine(layers=names), engine(number=2, layers=names)[0], "kv", 0)
    ElementTree.fromstring(draw(shown))


def test_a_producer_that_is_not_at_hand_is_named() -> None:
    shown = picture_of(engine(tp=2)[:1], engine(number=2)[0], "kv", 0)
    assert shown.unknown == ("heads 2 to 3: from producer rank 1",)
    assert "heads 2 to 3: from producer rank 1" in draw(shown)
    with pytest.raises(LayoutMismatch, match="none of their shards"):
        picture_of(engine(tp=2)[:1], engine(tp=2, number=2)[1], "kv", 0)


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(LayoutMismatch, match="no group 'x'"):
        picture_of(engine(), engine(number=2)[0], "x", 0)
    with pytest.raises(BadValue):
        picture_of(engine(), engine(number=2)[0], "kv", -1)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["model.layers.0.attn", "model.layers.12.attn"], ["layer 0", "layer 12"]),
        (["a.0.x", "a.1.y"], ["0.x", "1.y"]),
        (["model.layers.3.mixer"], ["model.layers.3.mixer"]),
        (["l", "l.1", "m"], ["l", "l.1", "m"]),
    ],
)
def test_layers_are_called_by_what_tells_them_apart(names: list[str], shown: list[str]) -> None:
    assert [layer_label(names, name) for name in names] == shown
