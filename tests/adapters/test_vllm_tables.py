"""Which tokens and blocks are handed over: per cache group, and alike at both engines."""

from __future__ import annotations

import pytest

from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import GroupKind
from kvxfer_vllm.cache_groups import CacheGroup
from kvxfer_vllm.place import Place
from kvxfer_vllm.tables import Tables


def group(kind: GroupKind, tokens: int, reach: int | None = None) -> CacheGroup:
    return CacheGroup(
        layers=("l",), tokens_per_block=tokens, manager_blocks=8, kind=kind, reach=reach
    )


FULL = group(GroupKind.FULL, 16)
WINDOW = group(GroupKind.WINDOW, 24, 30)
STATE = group(GroupKind.STATE, 4096, 1)


def test_a_dense_prompt_is_handed_over_whole() -> None:
    tables = Tables.of([FULL], [0], packed=False)
    assert (tables.left_out, tables.handed_over(40), tables.grain) == (0, 40, 1)
    assert Tables.of([FULL], [0], packed=True).grain == 16


@pytest.mark.parametrize("other", [WINDOW, STATE])
def test_the_last_token_is_left_out_where_it_would_be_seen_twice(other: CacheGroup) -> None:
    tables = Tables.of([FULL, other], [0, 1], packed=False)
    assert [tables.handed_over(n) for n in (1, 2, 40)] == [0, 1, 39]


def test_streams_end_at_blocks_of_all_attention_groups() -> None:
    assert Tables.of([FULL, WINDOW, STATE], [0, 1, 2], packed=True).stream_grain == 48


def test_every_group_has_a_table_of_its_own_blocks() -> None:
    tables = Tables.of([FULL, WINDOW, STATE], [0, 2, 3], packed=False)
    ids = [[3, 1, 4, 7], [99], [0, 6, 8], [5, 11]]
    full, window, state = tables.cut(ids, 17, 49)
    assert (full.group, full.first_token, full.blocks.tolist()) == (0, 16, [1, 4, 7])
    assert (window.group, window.first_token, window.blocks.tolist()) == (1, 0, [0, 6, 8])
    # What follows the state's own block is scratch space for drafts.
    assert (state.group, state.first_token, state.blocks.tolist()) == (2, 0, [5])


def test_ranks_are_numbered_stage_by_stage() -> None:
    places = [Place(tensor_rank=t, tensor_size=2, stage=s) for s in (0, 1) for t in (0, 1)]
    assert [place.rank for place in places] == [0, 1, 2, 3]


def test_heads_are_shared_out_or_held_twice() -> None:
    def heads(total: int, size: int) -> list[tuple[int, int]]:
        return [Place(tensor_rank=n, tensor_size=size).heads_of(total) for n in range(size)]

    assert heads(4, 2) == [(2, 0), (2, 2)]
    assert heads(2, 4) == [(1, 0), (1, 0), (1, 1), (1, 1)]
    with pytest.raises(LayoutMismatch, match="3 KV heads cannot be shared out over 2 ranks"):
        heads(3, 2)
