"""Layers of the last chunk: what is released is written, and nothing is released twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.core.ids import Part, TransferId
from kvxfer.core.sends import Source
from kvxfer.driver.commands import Grow
from kvxfer.driver.grid import Grid, cut_parts
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, Group, GroupKind, Shard, holding_of
from kvxfer.layout.orders import engine_shards
from kvxfer_vllm.layers import Layers, part_layers
from kvxfer_vllm.metadata import LastChunk

TABLE = BlockTable(group=0, first_token=0, blocks=np.array([1, 2], dtype=np.int64))
BEFORE, WANTED = 32, 50


def shard(*groups: Sequence[str], states: Sequence[str] = ()) -> Shard:
    """A shard with these layers in its groups; `states` are one more."""
    (plain,) = engine_shards(
        bases=[0], layers=("x",), blocks=8, tokens_per_block=16, heads_total=1, content_bytes=2
    )
    (group,) = plain.groups
    found = [attrs.evolve(group, name=f"g{i}", layers=tuple(g)) for i, g in enumerate(groups)]
    if states:
        found.append(attrs.evolve(group, name="s", layers=tuple(states), kind=GroupKind.STATE))
    holdings = tuple(holding_of(group) for group in found)
    ranks = (attrs.evolve(plain.ranks[0], holdings=holdings),)
    return attrs.evolve(plain, groups=tuple(found), ranks=ranks)


def chunk(tag: str = "a", before: int = BEFORE) -> LastChunk:
    grow = Grow(
        transfer_id=TransferId(tag), tables=(TABLE,), token_count=WANTED, sealed=True, tag=tag
    )
    return LastChunk(request_id=tag, tokens_before=before, grow=grow)


@attrs.define
class Step:
    """One worker's layers, and what it has released."""

    of: Shard
    slices: int
    released: list[Grow] = attrs.field(factory=list)
    layers: Layers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        step = part_layers(self.of, self.slices)
        self.layers = Layers.of(self.of, step, self.released.append)

    def begin(self, *chunks: LastChunk) -> None:
        self.layers.begin_step()
        for one in chunks:
            self.layers.add(one)

    def saved(self, layers: str | Sequence[str]) -> list[tuple[str, int, int, int, bool]]:
        """The calls of a forward pass, in order; what they released."""
        for layer in layers:
            self.layers.saved(layer)
        seen = [
            (g.tag, g.token_count, g.token_ahead, g.layers_final, g.sealed) for g in self.released
        ]
        self.released.clear()
        return seen


def ahead(layers: int, tag: str = "a", before: int = BEFORE) -> tuple[str, int, int, int, bool]:
    return (tag, before, WANTED, layers, False)


def end(tag: str = "a") -> tuple[str, int, int, int, bool]:
    return (tag, WANTED, 0, 0, True)


def test_a_slice_leaves_with_its_last_layer_and_the_end_with_the_last_of_all() -> None:
    step = Step(shard("abcdefgh"), 4)
    step.begin(chunk())
    assert step.saved("a") == []
    assert step.saved("b") == [ahead(2)]
    assert step.saved("cde") == [ahead(4)]
    assert step.saved("fg") == [ahead(6)]
    assert step.saved("h") == [end()]
    assert step.layers.begun == 1


def test_every_last_chunk_of_a_step_leaves() -> None:
    step = Step(shard("abcd"), 2)
    step.begin(chunk("a"), chunk("b", before=0))
    assert step.saved("ab") == [ahead(2), ahead(2, "b", 0)]
    assert step.saved("cd") == [end("a"), end("b")]
    assert step.layers.begun == 2


def test_a_step_without_a_last_chunk_releases_nothing() -> None:
    step = Step(shard("abcd"), 2)
    step.begin()
    assert step.saved("abcd") == []


def test_calls_of_an_earlier_step_do_not_count() -> None:
    step = Step(shard("abcd"), 2)
    step.begin(chunk())
    step.saved("abc")
    step.begin(chunk("b"))
    assert step.saved("d") == []
    assert step.saved("ab") == [ahead(2, "b")]


def test_a_layer_that_is_called_twice_counts_once() -> None:
    step = Step(shard("abcd"), 2)
    step.begin(chunk())
    assert step.saved("aab") == [ahead(2)]
    assert step.saved("abcabd") == [end()]
    assert step.saved("abcd") == []


def test_layers_of_no_cache_do_not_count() -> None:
    step = Step(shard("abcd"), 2)
    step.begin(chunk())
    assert step.saved("axyb") == [ahead(2)]


def test_a_layer_out_of_order_holds_up_those_behind_it() -> None:
    step = Step(shard("abcd"), 4)
    step.begin(chunk())
    assert step.saved("bcd") == []
    assert step.saved("a") == [end()]


def test_layers_of_two_groups_leave_as_far_as_both_are_written() -> None:
    """The longer group is cut into two; the shorter one ends before its second border."""
    step = Step(shard("abcdef", "pqrs"), 2)
    assert step.layers.borders == (3, 4, 6)
    step.begin(chunk())
    assert step.saved("abcp") == []
    assert step.saved("qr") == [ahead(3)]
    assert step.saved("sd") == [ahead(4)]
    assert step.saved("ef") == [end()]


def test_with_states_the_end_waits_for_the_scheduler() -> None:
    step = Step(shard("abcd", states="st"), 2)
    step.begin(chunk())
    assert step.saved("ab") == [ahead(2)]
    assert step.saved("stcd") == [ahead(4)]
    assert not step.layers.take_sealed("a")


def test_the_end_is_told_once() -> None:
    step = Step(shard("ab"), 2)
    step.begin(chunk())
    step.saved("ab")
    assert step.layers.take_sealed("a")
    assert not step.layers.take_sealed("a")


@pytest.mark.parametrize(
    ("of", "slices", "expected"),
    [
        (shard("abcdefgh"), 1, 0),
        (shard("abcdefgh"), 3, 3),
        (shard("abcdefgh"), 100, 1),
        (shard("ab", "cdefg"), 2, 3),
        (shard("ab", states="cdefg"), 2, 1),
        (shard(states="cdefg"), 2, 0),
    ],
)
def test_the_longest_group_is_cut_into_slices(of: Shard, slices: int, expected: int) -> None:
    assert part_layers(of, slices) == expected


@pytest.mark.parametrize("of", [shard("abcd"), shard(states="st")])
def test_what_is_not_cut_waits_for_the_scheduler(of: Shard) -> None:
    step = Step(of, 1 if of.groups[0].kind is not GroupKind.STATE else 2)
    step.begin(chunk())
    assert step.saved("abcdst") == []


def test_layers_that_never_call_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    step = Step(shard("abcd", "ijklmn"), 2)
    for _ in range(2):
        step.begin(chunk())
        assert step.saved("abcd") == []
    step.begin()
    (record,) = caplog.records
    assert "was not called for 6 layers (i, j, k, l, ...)" in record.getMessage()


def test_a_chunk_of_which_every_layer_called_is_not_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Step(shard("abcd"), 2)
    step.begin(chunk())
    step.saved("abcd")
    step.begin()
    assert caplog.records == []


names = st.integers(1, 7)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(names, min_size=1, max_size=3), st.integers(0, 3), st.integers(2, 9), st.integers())
def test_a_part_is_final_only_when_its_own_layers_are_written_and_in_the_end_all_are(
    sizes: list[int], states: int, slices: int, seed: int
) -> None:
    """Against the core's own rule and the parts that a consumer makes of the grid.

    Layers come in any order, and some may never come: what is missing is for the seal.
    """
    groups = [[f"{i}.{n}" for n in range(size)] for i, size in enumerate(sizes)]
    of = shard(*groups, states=[f"s.{n}" for n in range(states)])
    step = Step(of, slices)
    parts = _parts(of, part_layers(of, slices))
    source = Source(transfer_id=TransferId("a"))
    order = [layer for layers in groups for layer in layers]
    draw = random.Random(seed)
    draw.shuffle(order)
    step.begin(chunk(before=0))
    written: set[str] = set()
    for layer in order:
        written.add(layer)
        step.layers.saved(layer)
        for grow in step.released:
            source.token_count = max(source.token_count, grow.token_count)
            source.token_ahead, source.layers_final = grow.token_ahead, grow.layers_final
        step.released.clear()
        for part in parts:
            group = of.groups[part.group]
            if source.is_final(part):
                assert set(_layers_of(part, group)) <= written
    cut = [part for part in parts if of.groups[part.group].kind is not GroupKind.STATE]
    assert all(source.is_final(part) for part in cut)
    assert all(source.is_final(part) for part in parts) == (not states)


def _parts(of: Shard, step: int) -> tuple[Part, ...]:
    edges = edges_between(of, of)
    assert {edge.consumer_group for edge in edges} == set(range(len(of.groups)))
    whole = [Part(0, index, 0, WANTED) for index in range(len(of.groups))]
    return cut_parts(whole, Grid(part_tokens=64, part_layers=step), of, edges, 1024)


def _layers_of(part: Part, group: Group) -> Sequence[str]:
    return group.layers[part.layer_start : part.layer_stop] if part.layer_stop else group.layers
