"""Unlike caches: a fixed catalogue of small engine layouts, and every byte's address.

Owns the shapes, the real plans between them and the canonical order of a
request's content. The plans come from `kvxfer.layout.translate`, the canonical
addresses from `kvxfer.layout.naive`, so that neither hides the other's mistake.
Both are kept, since they depend on the catalogue alone. Invariant: a slab is a
pattern of blocks moved as a whole, so that a plan between two patterns is the plan
between their slabs but for one offset on either side (a test compares).
"""

from __future__ import annotations

import functools
import itertools

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core.ids import Part
from kvxfer.core.messages import BlockRuns, Column
from kvxfer.errors import LayoutMismatch
from kvxfer.layout.edges import Edge, edges_between
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.naive import address
from kvxfer.layout.orders import area_bytes, engine_shards
from kvxfer.layout.table import runs_of
from kvxfer.layout.translate import EdgeGeometry

Index = npt.NDArray[np.intp]

TOKENS_MAX = 16
LAYERS = ("a", "b")
HEADS = 4
CONTENT_BYTES = 2
PLANES = ("k", "v")
CONTENT_SIZE = TOKENS_MAX * len(LAYERS) * 2 * HEADS * len(PLANES) * CONTENT_BYTES
"""Of one request, for the shape with the most heads."""
PATTERNS = 3
REPLICAS = 20
SLABS = PATTERNS * REPLICAS


@attrs.frozen(kw_only=True, cache_hash=True)
class Shape:
    """How one engine lays out its cache."""

    ranks: int = 1
    stages: int = 1
    order: str = "LBHNC"
    tokens_per_block: int = 4
    physical_per_block: int = 1
    heads: int = HEADS

    @property
    def blocks_per_slab(self) -> int:
        return -(-TOKENS_MAX // self.tokens_per_block)

    @property
    def blocks(self) -> int:
        """Block 0 is the null block; each replica has room for every pattern."""
        return 1 + REPLICAS * PATTERNS * self.blocks_per_slab


SHAPES = (
    Shape(),
    Shape(ranks=2),
    Shape(ranks=2, order="BHLNC", tokens_per_block=8),
    Shape(ranks=3, order="BLPNHC", tokens_per_block=5),
    Shape(order="LHBNC", tokens_per_block=16, physical_per_block=4),
    Shape(ranks=2, stages=2, order="LBNHC", tokens_per_block=6, physical_per_block=2),
    Shape(ranks=4, stages=2, order="BLHNC"),
    Shape(order="BPLNHC", tokens_per_block=7),
)
MISFIT = Shape(heads=HEADS * 2)
"""A cache of another model: every handshake with it is refused."""


@functools.cache
def shards_of(shape: Shape) -> tuple[Shard, ...]:
    """One shard per rank, each in an address space of its own that starts at 0."""
    return engine_shards(
        bases=[0] * shape.ranks,
        order=shape.order,
        layers=LAYERS,
        blocks=shape.blocks,
        tokens_per_block=shape.tokens_per_block,
        heads_total=shape.heads,
        content_bytes=CONTENT_BYTES,
        planes=PLANES,
        physical_per_block=shape.physical_per_block,
        stages=shape.stages,
        null_block=0,
    )


def memory_bytes(shape: Shape, rank: int) -> int:
    group = shards_of(shape)[rank].groups[0]
    return area_bytes(
        layers=len(group.layers),
        blocks=shape.blocks,
        heads=group.head_stop - group.head_start,
        tokens_per_block=shape.tokens_per_block,
        content_bytes=CONTENT_BYTES,
        planes=len(PLANES),
    )


@functools.cache
def blocks_of_slab(shape: Shape, slab: int) -> npt.NDArray[np.int64]:
    """The blocks of a slab, in the order of their tokens: neither sorted nor in one run."""
    replica, pattern = divmod(slab, PATTERNS)
    room = PATTERNS * shape.blocks_per_slab
    # Multiplying by a number coprime to the room is a permutation of it.
    step = next(s for s in range(room // 2 + 1, 2 * room) if np.gcd(s, room) == 1)
    first = pattern * shape.blocks_per_slab
    within = [(step * n) % room for n in range(first, first + shape.blocks_per_slab)]
    return np.array([1 + replica * room + n for n in within], np.int64)


def table_of(shape: Shape, slab: int) -> BlockTable:
    return BlockTable(group=0, first_token=0, blocks=blocks_of_slab(shape, slab))


@functools.cache
def runs_of_slab(shape: Shape, slab: int) -> BlockRuns:
    """The table as it goes over the wire."""
    starts, lengths = runs_of(blocks_of_slab(shape, slab))
    columns = [Column(4, values.astype("<u4").tobytes()) for values in (starts, lengths)]
    return BlockRuns(group=0, first_token=0, starts=columns[0], lengths=columns[1])


@functools.cache
def _slabs_by_starts(shape: Shape) -> dict[bytes, int]:
    return {runs_of_slab(shape, slab).starts.data: slab for slab in range(SLABS)}


def slab_of_runs(shape: Shape, runs: BlockRuns) -> int:
    """The slab that a table on the wire names. KeyError where it names none."""
    slab = _slabs_by_starts(shape)[runs.starts.data]
    if runs != runs_of_slab(shape, slab):
        raise KeyError(slab)
    return slab


@functools.cache
def shift_of(shape: Shape, rank: int, slab: int) -> int:
    """Bytes from a slab's pattern to the slab."""
    group = shards_of(shape)[rank].groups[0]
    blocks = (slab // PATTERNS) * PATTERNS * shape.blocks_per_slab
    return blocks * shape.physical_per_block * group.stride_block


@attrs.frozen(cache_hash=True)
class Cut:
    """On which grid the producers of a run cut their parts; 0 and False: not at all."""

    tokens: int = 0
    layers: bool = False


@attrs.frozen(eq=False)
class Canon:
    """Where one rank keeps the content of a slab's pattern, in canonical order.

    Canonical order is (token, layer, head, plane, byte). `at` are addresses, `of`
    positions in the content; both have `token_bytes` entries for each token.
    """

    at: Index
    of: Index
    token_bytes: int

    layers: int

    def tokens(self, start: int, stop: int) -> slice:
        return slice(start * self.token_bytes, stop * self.token_bytes)

    def final(self, tokens: int, ahead: int, layers: int) -> list[tuple[Index, Index]]:
        """(`at`, `of`) of tokens below `tokens`, and of `layers` layers of those below `ahead`."""
        whole = self.tokens(0, tokens)
        found = [(self.at[whole], self.of[whole])]
        if layers and ahead > tokens:
            box = (TOKENS_MAX, self.layers, -1)
            at, of = (x.reshape(box)[tokens:ahead, :layers].ravel() for x in (self.at, self.of))
            found.append((at, of))
        return found


@functools.cache
def canon(shape: Shape, rank: int, pattern: int) -> Canon:
    shard = shards_of(shape)[rank]
    group = shard.groups[0]
    table = table_of(shape, pattern)
    at: list[int] = []
    of: list[int] = []
    for token in range(TOKENS_MAX):
        for layer in group.layers:
            for head in range(group.head_start, group.head_stop):
                for number, plane in enumerate(PLANES):
                    first = address(shard, table, plane, layer, token, head, 0)
                    place = (token * len(LAYERS) + LAYERS.index(layer)) * shape.heads + head
                    place = (place * len(PLANES) + number) * CONTENT_BYTES
                    at += range(first, first + CONTENT_BYTES)
                    of += range(place, place + CONTENT_BYTES)
    token_bytes = len(at) // TOKENS_MAX
    return Canon(np.array(at, np.intp), np.array(of, np.intp), token_bytes, len(group.layers))


@functools.cache
def edges_of_shapes(producer: Shape, consumer: Shape) -> tuple[Edge, ...]:
    """Raises LayoutMismatch where the two do not fit (and is asked again each time)."""
    return edges_between(shards_of(producer)[0], shards_of(consumer)[0])


def fits(producer: Shape, consumer: Shape) -> bool:
    try:
        edges_of_shapes(producer, consumer)
    except LayoutMismatch:
        return False
    return True


@functools.cache
def takers(producer: Shape, consumer: Shape, rank: int) -> tuple[int, ...]:
    """Consumer ranks that share an edge with this producer rank."""
    edges = edges_of_shapes(producer, consumer)
    return tuple(sorted({e.consumer_rank for e in edges if e.producer_rank == rank}))


@functools.cache
def givers(producer: Shape, consumer: Shape, rank: int) -> tuple[int, ...]:
    """Producer ranks that share an edge with this consumer rank."""
    edges = edges_of_shapes(producer, consumer)
    return tuple(sorted({e.producer_rank for e in edges if e.consumer_rank == rank}))


@functools.cache
def _geometry(producer: Shape, consumer: Shape, edge: Edge) -> EdgeGeometry:
    src, dst = shards_of(producer)[edge.producer_rank], shards_of(consumer)[edge.consumer_rank]
    return EdgeGeometry.build(src, dst, edge)


@functools.lru_cache(maxsize=1 << 15)
def _moved(
    producer: Shape,
    consumer: Shape,
    ranks: tuple[int, int],
    patterns: tuple[int, int],
    box: tuple[int, int, int, int],
) -> tuple[Index, Index]:
    """Addresses (source, target) of every byte that a part between two patterns moves.

    `box`: first and last token, first and last layer of the producer's own list.
    """
    start, stop, *layers = box
    found = [
        _geometry(producer, consumer, edge).plan(
            table_of(producer, patterns[0]), table_of(consumer, patterns[1]), start, stop
        )
        for edge in _edges_in(producer, consumer, ranks, layers[0], layers[1])
    ]
    src = [_spread(plan.src, plan.length) for plan in found]
    dst = [_spread(plan.dst, plan.length) for plan in found]
    return np.concatenate(src), np.concatenate(dst)


@functools.cache
def _edges_in(
    producer: Shape, consumer: Shape, ranks: tuple[int, int], first: int, last: int
) -> tuple[Edge, ...]:
    """Edges of one pair of ranks, in some of the producer's layers; all where `last` is 0."""
    layers = shards_of(producer)[ranks[0]].groups[0].layers
    chosen = set(layers[first:last] if last else layers)
    found = []
    for edge in edges_of_shapes(producer, consumer):
        shared = tuple(layer for layer in edge.layers if layer in chosen)
        if (edge.producer_rank, edge.consumer_rank) == ranks and shared:
            found.append(attrs.evolve(edge, layers=shared))
    return tuple(found)


@functools.cache
def parts_between(
    producer: Shape, consumer: Shape, ranks: tuple[int, int], span: tuple[int, int], cut: Cut
) -> tuple[Part, ...]:
    """The parts of one pair of ranks for tokens [start, stop), on the producer's grid."""
    start, stop = span
    grid = cut.tokens or TOKENS_MAX
    lines = [start, *(n for n in range(grid, stop, grid) if n > start), stop]
    boxes = [(a, b, 0, 0) for a, b in itertools.pairwise(lines) if a < b]
    layers = len(shards_of(producer)[ranks[0]].groups[0].layers)
    if boxes and cut.layers and layers > 1:
        # Layer ranges are for the last chunk.
        last = boxes.pop()
        boxes += [(last[0], last[1], n, n + 1) for n in range(layers)]
    return tuple(
        Part(ranks[0], 0, a, b, first, last)
        for a, b, first, last in boxes
        if _edges_in(producer, consumer, ranks, first, last)
    )


def _spread(start: npt.NDArray[np.uint64], length: npt.NDArray[np.uint64]) -> Index:
    ranges = zip(start.tolist(), length.tolist(), strict=True)
    return np.concatenate([np.arange(a, a + n, dtype=np.intp) for a, n in ranges])


def moved_bytes(
    producer: Shape, consumer: Shape, part: Part, consumer_rank: int, slabs: tuple[int, int]
) -> tuple[Index, Index]:
    """Addresses (source, target) of every byte of a part, by the real translation."""
    ranks = (part.producer_rank, consumer_rank)
    patterns = (slabs[0] % PATTERNS, slabs[1] % PATTERNS)
    box = (part.token_start, part.token_stop, part.layer_start, part.layer_stop)
    src, dst = _moved(producer, consumer, ranks, patterns, box)
    return (
        src + shift_of(producer, ranks[0], slabs[0]),
        dst + shift_of(consumer, ranks[1], slabs[1]),
    )
