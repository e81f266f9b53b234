"""Caches as engines allocate them, from their own arrays: what each reads is what the other wrote.

The shapes of NxDI (lines, K transposed, blocks in two orders), of the Neuron plugin of vLLM
and of vLLM itself, in small. A descriptor is made of nothing but addresses and strides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from kvxfer.layout.check import check_shard
from kvxfer.layout.coverage import check_exactly_once
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import (
    Area,
    BlockTable,
    Group,
    GroupKind,
    Plane,
    RankHolding,
    Shard,
    holding_of,
)
from kvxfer.layout.plan import Plan
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.limits import Limits

LAYERS, HEADS, DIM, TOKENS = 3, 2, 4, 11
START = 2
Array = npt.NDArray[np.uint16]


@attrs.frozen(eq=False)
class Cache:
    """K and V of every layer, each with the letters of its axes: B, H, N and D."""

    arrays: tuple[tuple[Array, Array], ...]
    axes: tuple[str, str]
    blocks: tuple[int, ...]
    """The request's blocks, or its line."""
    null_block: int | None = None

    def tokens(self, layer: int, plane: int) -> Array:
        """(tokens, heads, dim) of the request, by the array's own indices."""
        view = self.arrays[layer][plane]
        ordered = view.transpose([self.axes[plane].index(axis) for axis in "BNHD"])
        return ordered[list(self.blocks)].reshape(-1, HEADS, DIM)[:TOKENS]

    def shard(self) -> Shard:
        areas, planes = [], []
        size = dict(zip(self.axes[0], self.arrays[0][0].shape, strict=True))
        for number, name in enumerate(("k", "v")):
            view = self.arrays[0][number]
            step = dict(zip(self.axes[number], view.strides, strict=True))
            first = len(areas)
            # Where K and V are views of one tensor, both are described by all of it.
            owners = [v if v.base is None else v.base for v in (p[number] for p in self.arrays)]
            areas += [Area(base=o.ctypes.data, length=o.nbytes) for o in owners]
            planes.append(
                Plane(
                    name=name,
                    area=0,
                    offset=view.ctypes.data - areas[first].base,
                    content_bytes=DIM * 2,
                    element_bytes=2,
                    stride_element=step["D"],
                    stride_block=step["B"],
                    stride_head=step["H"],
                    stride_slot=step["N"],
                    layer_areas=tuple(range(first, first + LAYERS)),
                )
            )
        group = Group(
            name="kv",
            kind=GroupKind.FULL,
            tokens_per_block=size["N"],
            physical_per_block=1,
            physical_blocks=size["B"],
            heads_total=HEADS,
            head_start=0,
            head_stop=HEADS,
            layers=tuple(f"layers.{n}" for n in range(LAYERS)),
            planes=tuple(planes),
            stride_layer=0,
            stride_block=0,
            stride_head=0,
            stride_slot=0,
            null_block=self.null_block,
            fingerprint="bf16",
        )
        ranks = (RankHolding(rank=0, holdings=(holding_of(group),)),)
        shard = Shard(rank=0, areas=tuple(areas), groups=(group,), ranks=ranks)
        check_shard(shard, Limits())
        return shard

    @property
    def table(self) -> BlockTable:
        return BlockTable(group=0, first_token=0, blocks=np.array(self.blocks, np.int64))


def apart(k: tuple[int, ...], v: tuple[int, ...]) -> tuple[tuple[Array, Array], ...]:
    return tuple((np.zeros(k, np.uint16), np.zeros(v, np.uint16)) for _ in range(LAYERS))


def stacked(*shape: int) -> tuple[tuple[Array, Array], ...]:
    """One tensor a layer, K then V in its first axis."""
    whole = [np.zeros((2, *shape), np.uint16) for _ in range(LAYERS)]
    return tuple((one[0], one[1]) for one in whole)


LINE, BLOCK = 16, 4
CACHES: dict[str, Callable[[], Cache]] = {
    "nxdi-lines": lambda: Cache(
        apart((3, HEADS, LINE, DIM), (3, HEADS, LINE, DIM)), ("BHND", "BHND"), (1,)
    ),
    "nxdi-lines-masked": lambda: Cache(
        apart((4, HEADS, LINE + 8, DIM), (4, HEADS, LINE + 8, DIM)), ("BHND", "BHND"), (2,)
    ),
    "nxdi-k-transposed": lambda: Cache(
        apart((3, HEADS, DIM, LINE), (3, HEADS, LINE, DIM)), ("BHDN", "BHND"), (0,)
    ),
    "nxdi-blocks-nhd": lambda: Cache(
        apart((6, BLOCK, HEADS, DIM), (6, BLOCK, HEADS, DIM)), ("BNHD", "BNHD"), (3, 0, 4), 5
    ),
    "nxdi-blocks-hnd": lambda: Cache(
        apart((6, HEADS, BLOCK, DIM), (6, HEADS, BLOCK, DIM)), ("BHND", "BHND"), (1, 2, 5)
    ),
    "neuron-stacked": lambda: Cache(
        stacked(5, HEADS, 6, DIM), ("BHND", "BHND"), (4, 2), null_block=0
    ),
    "vllm-hnd": lambda: Cache(
        tuple(
            (one[..., :DIM], one[..., DIM:])
            for one in (np.zeros((5, HEADS, BLOCK, 2 * DIM), np.uint16) for _ in range(LAYERS))
        ),
        ("BHND", "BHND"),
        (2, 1, 4),
        0,
    ),
    "vllm-pages-of-k-and-v": lambda: Cache(
        tuple(
            (one[:, 0], one[:, 1])
            for one in (np.zeros((5, 2, BLOCK, HEADS, DIM), np.uint16) for _ in range(LAYERS))
        ),
        ("BNHD", "BNHD"),
        (2, 3, 1),
        0,
    ),
}


def execute(plan: Plan, memory: list[tuple[int, npt.NDArray[np.uint8]]]) -> None:
    def piece(at: int, size: int) -> npt.NDArray[np.uint8]:
        base, data = next((b, d) for b, d in memory if b <= at and at + size <= b + d.size)
        return data[at - base : at - base + size]

    for src, dst, size in zip(
        plan.src.tolist(), plan.dst.tolist(), plan.length.tolist(), strict=True
    ):
        piece(dst, size)[:] = piece(src, size)


def whole_memory(cache: Cache) -> list[tuple[int, npt.NDArray[np.uint8]]]:
    """The allocations under the views, each once."""
    owners = {}
    for view in itertools.chain.from_iterable(cache.arrays):
        owner = view if view.base is None else view.base
        owners[owner.ctypes.data] = owner.reshape(-1).view(np.uint8)
    return list(owners.items())


@pytest.mark.parametrize("consumer", CACHES)
@pytest.mark.parametrize("producer", CACHES)
def test_what_one_engine_wrote_the_other_reads(producer: str, consumer: str) -> None:
    source, target = CACHES[producer](), CACHES[consumer]()
    rng = np.random.default_rng(5)
    for view in itertools.chain.from_iterable(source.arrays):
        view[...] = rng.integers(1, 1 << 16, view.shape, np.uint16)
    here, there = source.shard(), target.shard()
    (edge,) = edges_between(here, there)
    plan = EdgeGeometry.build(here, there, edge).plan(source.table, target.table, START, TOKENS)
    execute(plan, whole_memory(source) + whole_memory(target))
    for layer, plane in itertools.product(range(LAYERS), range(2)):
        got = target.tokens(layer, plane)
        assert np.array_equal(got[START:], source.tokens(layer, plane)[START:])
        assert not got[:START].any()
    check_exactly_once(there, target.table, START, TOKENS, [plan])
    written = sum(np.count_nonzero(view) for view in itertools.chain.from_iterable(target.arrays))
    assert written == LAYERS * 2 * (TOKENS - START) * HEADS * DIM
