"""What a load leaves of its blocks is zeroed in vLLM's own tensors, and nothing else is."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from kvxfer.driver import TransferId
from kvxfer.driver.commands import Register
from kvxfer.errors import LayoutMismatch
from kvxfer.layout.geometry import BlockTable, GroupKind, Shard
from kvxfer_vllm.geometry import CacheGroup, describe_groups
from kvxfer_vllm.tails import Tails

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
torch = pytest.importorskip("torch")

BLOCKS, HEADS, T, CONTENT = 12, 2, 16, 8
WINDOW = 20


def cache(kernel_block: int = T) -> Any:
    """All ones, with heads inside of slots, as many GPU backends have it."""
    return torch.ones(BLOCKS * T // kernel_block, kernel_block, HEADS, CONTENT).transpose(1, 2)


def shard_of(caches: dict[str, Any], *groups: CacheGroup) -> Shard:
    shard, _ = describe_groups(caches, groups, HEADS)
    return shard


def group(layer: str, **changes: Any) -> CacheGroup:
    plain = CacheGroup(name=layer, layers=(layer,), tokens_per_block=T, manager_blocks=BLOCKS)
    return attrs.evolve(plain, **changes)


def load(start: int, stop: int, *tables: tuple[int, list[int]]) -> Register:
    return Register(
        transfer_id=TransferId("t"),
        producers=(),
        tables=tuple(
            BlockTable(group=index, first_token=first, blocks=np.array(blocks))
            for index, (first, blocks) in enumerate(tables)
        ),
        token_start=start,
        token_stop=stop,
        tag="r",
    )


def zeros(view: Any) -> set[tuple[int, int]]:
    """Block and slot of what is zero in all heads; nothing may be zero in part."""
    empty = (view == 0).all(dim=3)
    assert torch.equal(empty.any(dim=1), empty.all(dim=1))
    return {(int(b), int(s)) for b, s in empty.all(dim=1).nonzero()}


@pytest.mark.parametrize("kernel_block", [T, 4])
def test_slots_behind_the_last_token(kernel_block: int) -> None:
    caches = {"full": cache(kernel_block)}
    tails = Tails.of(shard_of(caches, group("full")), caches)
    tails.note(load(16, 37, (16, [5, 3])))
    assert zeros(caches["full"]) == set()
    tails.clean("r")
    places = {divmod(3 * T + slot, kernel_block) for slot in range(5, T)}
    assert zeros(caches["full"]) == places
    assert len(tails) == 0


def test_a_load_that_fills_its_blocks_leaves_nothing() -> None:
    caches = {"full": cache()}
    tails = Tails.of(shard_of(caches, group("full")), caches)
    tails.note(load(0, 32, (0, [5, 3])))
    tails.clean("r")
    assert zeros(caches["full"]) == set()


def test_slots_before_a_window_too() -> None:
    caches = {"full": cache(), "window": cache()}
    window = group("window", kind=GroupKind.WINDOW, reach=WINDOW - 1)
    tails = Tails.of(shard_of(caches, group("full"), window), caches)
    tails.note(load(0, 50, (0, [5, 3, 7, 9]), (0, [0, 4, 6, 8])))
    tails.clean("r")
    assert zeros(caches["full"]) == {(9, slot) for slot in range(2, T)}
    # Tokens 31 to 49: the last slot of block 4, all of 6, two of 8.
    before, behind = {(4, slot) for slot in range(15)}, {(8, slot) for slot in range(2, T)}
    assert zeros(caches["window"]) == before | behind


def test_a_lost_load_is_left_alone() -> None:
    caches = {"full": cache()}
    tails = Tails.of(shard_of(caches, group("full")), caches)
    tails.note(load(0, 5, (0, [5])))
    tails.forget("r")
    tails.clean("r")
    assert zeros(caches["full"]) == set()


def test_pages_of_a_kernel_are_refused_in_slots_and_left_alone_whole() -> None:
    caches = {"full": torch.ones(BLOCKS, HEADS, T, 2 * CONTENT)}
    made = {
        slots: describe_groups(caches, [group("full")], HEADS, "cpu-vec", slots=slots)[0]
        for slots in (True, False)
    }
    with pytest.raises(LayoutMismatch, match="can only be zeroed whole"):
        Tails.of(made[True], caches)
    tails = Tails.of(made[False], caches)
    tails.note(load(0, 5, (0, [5])))
    tails.clean("r")
    assert zeros(caches["full"]) == set()


def test_the_comparison_can_fail() -> None:
    view = cache()
    view[2, :, 3].zero_()
    assert zeros(view) == {(2, 3)}
