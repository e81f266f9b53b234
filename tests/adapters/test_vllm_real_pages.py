"""How vLLM's CPU kernels arrange a page, found by writing through the kernels themselves.

Every element that is written has a value of its own, so that its place can be looked up:
a slot of the description must hold the elements of its own tokens and no others.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from kvxfer.layout.check import check_shard
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, GroupKind, Plane, Shard
from kvxfer.layout.grid import grid_of
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import plan_edge
from kvxfer.limits import Limits
from kvxfer_vllm.geometry import CacheGroup, describe_groups

# Warnings of vLLM and torch are theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

HEADS, ELEMENTS, BLOCKS = 2, 32, 6
KERNELS = [
    ("vec", "float32"),
    ("vec", "bfloat16"),
    ("vec16", "float32"),
    ("vec16", "float16"),
    ("amx", "bfloat16"),
]
INTEGERS = {"float32": "int32", "bfloat16": "int16", "float16": "int16"}


class Cache:
    """A cache of one layer, its description, and the kernel that writes it."""

    def __init__(self, kernel: str, dtype: str, block: int) -> None:
        self.kernel, self.dtype, self.block = kernel, dtype, block
        shape = (BLOCKS, HEADS, block, 2 * ELEMENTS)
        self.tensor = torch.zeros(shape, dtype=getattr(torch, dtype))

    @property
    def shard(self) -> Shard:
        group = CacheGroup(layers=("l0",), tokens_per_block=self.block, manager_blocks=BLOCKS)
        packing = f"cpu-{self.kernel}"
        shard, _ = describe_groups({"l0": self.tensor}, [group], HEADS, packing, slots=True)
        check_shard(shard, Limits())
        return shard

    def write(self, keys: Any, values: Any, blocks: list[int]) -> None:
        """Tokens 0, 1, ... of a request into its blocks, by vLLM's kernel."""
        from vllm import _custom_ops as ops

        tokens = torch.arange(keys.shape[0])
        slots = torch.tensor(blocks)[tokens // self.block] * self.block + tokens % self.block
        pages = self.tensor.view(BLOCKS, HEADS, 2 * self.block, -1)
        at_k, at_v = pages.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(keys, values, at_k, at_v, slots, self.kernel)

    def state(self, plane: Plane, block: int, head: int, token: int) -> np.ndarray:
        """The elements of the slot that holds `token` of a block, as integers, sorted."""
        (group,) = self.shard.groups
        grid = grid_of(self.shard, group, plane)
        size = self.tensor.element_size()
        flat = self.tensor.view(getattr(torch, INTEGERS[self.dtype])).reshape(-1).numpy()
        start = plane.offset + block * grid.stride_block + head * grid.stride_head
        start += token // grid.tokens_per_state * grid.stride_slot
        starts = start + np.arange(grid.elements) * grid.stride_element
        inside = np.arange(grid.element_bytes // size)
        return np.sort(flat[(starts[:, None] // size + inside).ravel()])


def elements(dtype: str, tokens: int) -> tuple[Any, Any]:
    """Keys and values of (tokens, heads, elements), no two bit patterns alike."""
    integers = getattr(torch, INTEGERS[dtype])
    count = tokens * HEADS * ELEMENTS
    both = torch.arange(1, 2 * count + 1).to(integers).reshape(2, tokens, HEADS, ELEMENTS)
    keys, values = both.view(getattr(torch, dtype))
    return keys, values


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
@pytest.mark.parametrize("block", [32, 96])
def test_a_slot_holds_its_own_tokens(kernel: str, dtype: str, block: int) -> None:
    cache = Cache(kernel, dtype, block)
    tokens = 2 * block
    keys, values = elements(dtype, tokens)
    blocks = [4, 1]
    cache.write(keys, values, blocks)
    (group,) = cache.shard.groups
    assert group.kind is GroupKind.FULL
    integers = getattr(torch, INTEGERS[dtype])
    for plane in group.planes:
        written = (keys if plane.name == "k" else values).view(integers).numpy()
        step = plane.tokens_per_state or 1
        for head in range(HEADS):
            for token in range(0, tokens, step):
                found = cache.state(plane, blocks[token // block], head, token % block)
                expected = np.sort(written[token : token + step, head].ravel())
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
@pytest.mark.parametrize(("at_p", "at_d"), [(128, 64), (32, 96), (64, 64)])
@pytest.mark.parametrize("tokens", [1, 31, 130])
def test_moved_by_plan_it_is_as_if_written_there(
    kernel: str, dtype: str, at_p: int, at_d: int, tokens: int
) -> None:
    p, d, oracle = (Cache(kernel, dtype, block) for block in (at_p, at_d, at_d))
    keys, values = elements(dtype, tokens)
    source, target = [5, 2, 3, 1, 4][: -(-tokens // at_p)], [2, 4, 1, 5, 3][: -(-tokens // at_d)]
    p.write(keys, values, source)
    oracle.write(keys, values, target)
    move(p.shard, d.shard, source, target, tokens)
    integers = getattr(torch, INTEGERS[dtype])
    assert torch.equal(d.tensor.view(integers), oracle.tensor.view(integers))


def move(src: Shard, dst: Shard, source: list[int], target: list[int], tokens: int) -> None:
    here, there = (
        BlockTable(group=0, first_token=0, blocks=np.array(ids)) for ids in (source, target)
    )
    plans = [plan_edge(src, dst, e, here, there, 0, tokens) for e in edges_between(src, dst)]
    plan = Plan.concat(plans)
    columns = (plan.src.tolist(), plan.dst.tolist(), plan.length.tolist())
    for start_src, start_dst, length in zip(*columns, strict=True):
        ctypes.memmove(start_dst, start_src, length)
