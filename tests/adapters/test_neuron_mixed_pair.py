"""A Neuron engine and a vLLM engine on a GPU hand requests to each other, bytes exact.

Lines or blocks with K and V apart on one side, pages with K beside V on the other; other
block sizes, too. Agents and transports are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from neuron_caches import Cache, nxdi_cache, packed_cache, paged_cache
from neuron_ends import End, move

from kvxfer.driver import Initiator, Lost, Reason, TransferId
from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import edges_between
from kvxfer.layout.halves import with_halves
from kvxfer.status import Status
from kvxfer.transport.registry import descriptor_of
from kvxfer_neuron import Order

MODEL: dict[str, Any] = {"layers": ("l0", "l1", "l2", "l3"), "heads": 2, "dim": 8}
TOKENS = 205
PAGED_BLOCKS = [5, 17, 2, 9, 11, 3, 1, 15, 12, 6, 13, 4, 10]
"""Of 16 tokens: 208."""
NEURON: dict[str, tuple[Callable[[], Cache], list[int]]] = {
    "lines": (lambda: nxdi_cache(Order.LINES, **MODEL, usable=3, spare=1, tokens=256), [1]),
    "lines, K transposed": (
        lambda: nxdi_cache(Order.LINES_KEY_TRANSPOSED, **MODEL, usable=3, spare=1, tokens=256),
        [2],
    ),
    "lines, tiled": (
        lambda: nxdi_cache(Order.LINES, **MODEL, usable=2, spare=0, tokens=384, tiled=True),
        [0],
    ),
    "blocks NHD": (
        lambda: nxdi_cache(Order.BLOCKS_NHD, **MODEL, usable=9, spare=1, tokens=32),
        [4, 8, 0, 3, 7, 6, 2],
    ),
    "blocks HND": (
        lambda: nxdi_cache(Order.BLOCKS_HND, **MODEL, usable=9, spare=0, tokens=32),
        [4, 8, 0, 3, 7, 6, 2],
    ),
    "vLLM Neuron": (
        lambda: paged_cache(**MODEL, blocks=9, tokens=32),
        [4, 8, 1, 3, 7, 6, 2],
    ),
}


def gpu_cache() -> Cache:
    return packed_cache(**MODEL, blocks=18, tokens=16)


@pytest.fixture
def start() -> Iterator[Callable[..., End]]:
    ends: list[End] = []

    def make(name: str, cache: Cache, transport: str) -> End:
        status, text = descriptor_of(transport).probe()
        if status != Status.OK:
            pytest.skip(text)
        ends.append(End.start(name, cache, transport, {}))
        return ends[-1]

    yield make
    for end in ends:
        end.agent.close()


@pytest.mark.parametrize("transport", ["loopback", "ucx", "nixl"])
@pytest.mark.parametrize("kind", NEURON)
def test_there_and_back(kind: str, transport: str, start: Callable[..., End]) -> None:
    make, line = NEURON[kind]
    neuron, gpu = start("neuron", make(), transport), start("gpu", gpu_cache(), transport)
    neuron.cache.fill(1)
    gpu.cache.fill(2)
    size = TOKENS * 4 * 2 * 2 * 8 * 2
    assert move(neuron, gpu, line, PAGED_BLOCKS, (0, TOKENS)).bytes_received == size
    # Both fresh again: what comes back is not what went.
    gpu.cache.fill(3)
    move(gpu, neuron, PAGED_BLOCKS, line, (0, TOKENS))


@pytest.mark.parametrize("transport", ["loopback", "ucx"])
def test_there_and_back_by_reading(transport: str, start: Callable[..., End]) -> None:
    make, line = NEURON["lines"]
    neuron, gpu = start("neuron", make(), transport), start("gpu", gpu_cache(), transport)
    neuron.cache.fill(1)
    gpu.cache.fill(2)
    # D has 48 tokens of the prompt already: the rest is read.
    move(neuron, gpu, line, PAGED_BLOCKS, (48, TOKENS), Initiator.CONSUMER)
    gpu.cache.fill(3)
    move(gpu, neuron, PAGED_BLOCKS, line, (0, TOKENS), Initiator.CONSUMER)


def test_a_line_becomes_one_run_for_each_head_where_both_have_lines(
    start: Callable[..., End],
) -> None:
    one, two = (start(name, NEURON["lines"][0](), "loopback") for name in "ab")
    one.cache.fill(1)
    move(one, two, [1], [2], (0, TOKENS), Initiator.PRODUCER)
    assert one.agent.counters()["descriptors_posted"] == 4 * 2 * 2


def test_a_transposed_k_moves_as_a_run_for_each_element(start: Callable[..., End]) -> None:
    one, two = (start(name, NEURON["lines, K transposed"][0](), "loopback") for name in "ab")
    one.cache.fill(1)
    move(one, two, [1], [2], (0, TOKENS), Initiator.PRODUCER)
    assert one.agent.counters()["descriptors_posted"] == 4 * 2 * (8 + 1)


def test_a_gpu_that_was_not_told_to_split_is_refused_with_the_planes(
    start: Callable[..., End],
) -> None:

    make, line = NEURON["lines"]
    whole = gpu_cache()
    group = whole.shard.groups[0]
    kept = attrs.evolve(group.planes[0], name="kv", content_bytes=2 * group.planes[0].content_bytes)
    shard = attrs.evolve(whole.shard, groups=(attrs.evolve(group, planes=(kept,)),))
    neuron = start("neuron", make(), "loopback")
    gpu = start("gpu", attrs.evolve(whole, shard=shard), "loopback")
    with pytest.raises(LayoutMismatch, match=r"planes is .*'k'.* at the producer and .*'kv'"):
        edges_between(neuron.cache.shard, gpu.cache.shard)
    assert with_halves(shard) == whole.shard
    transfer = TransferId("t")
    gpu.agent.register(
        transfer,
        producers=(neuron.address,),
        tables=(gpu.cache.table(PAGED_BLOCKS),),
        token_start=0,
        token_stop=TOKENS,
    )
    gpu.agent.wait(60.0)
    (lost,) = [result for result in gpu.agent.take() if isinstance(result, Lost)]
    assert lost.reason is Reason.LAYOUT_REFUSED
    assert "planes" in lost.detail
    assert line == [1]
