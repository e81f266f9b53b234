"""A rearrangement of bytes within one host, as data: shapes, strides, places.

Owns the form and one way to carry it out, on numpy buffers. Knows no shard; a GPU
kernel or torch can execute the same description. Invariant: it moves the bytes that
the plan it was made of would move, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue
from kvxfer.layout.sheets import Axis
from kvxfer.layout.translate import Walk

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]


@attrs.frozen(eq=False, kw_only=True)
class Permute:
    """For each piece k and each position of the axes: item_bytes from src[k] to dst[k].

    A position (i, j, ..) adds i * axes[0].src + j * axes[1].src + .. to the source, and
    likewise to the target. Addresses are absolute, uint64, shape (n,). All of it lies in
    one area on either side.
    """

    src: U64
    dst: U64
    axes: tuple[Axis, ...]
    item_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (int(self.src.size), *(axis.count for axis in self.axes))

    @property
    def bytes_total(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.item_bytes


@attrs.frozen(eq=False)
class Buffer:
    """Memory at an absolute address: `data` is one column of bytes."""

    base: int
    data: U8


def permutes_of(start_src: int, start_dst: int, walk: Walk) -> Iterator[Permute]:
    """The permutes of one walk: one for each length of its ranges."""
    ranges = walk.ranges
    for length in sorted(set(ranges.length.tolist())):
        chosen = ranges.length == np.uint64(length)
        yield Permute(
            src=ranges.src[chosen] + np.uint64(start_src),
            dst=ranges.dst[chosen] + np.uint64(start_dst),
            axes=walk.left,
            item_bytes=length,
        )


def apply_permute(
    permute: Permute, sources: Sequence[Buffer], targets: Sequence[Buffer], pieces_max: int = 16
) -> None:
    """Carry it out in numpy, at most `pieces_max` pieces at a time: they are copied twice.

    Raises BadValue where no buffer holds all of one side.
    """
    here = _windows(permute, permute.src, [axis.src for axis in permute.axes], sources)
    there = _windows(permute, permute.dst, [axis.dst for axis in permute.axes], targets)
    for start in range(0, permute.shape[0], pieces_max):
        stop = start + pieces_max
        there[0][there[1][start:stop]] = here[0][here[1][start:stop]]


def _windows(
    permute: Permute, at: U64, strides: list[int], buffers: Sequence[Buffer]
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]:
    """A view of a buffer with one entry for every byte that a piece could start at.

    Indexing it with the pieces' offsets gathers, or scatters, whole pieces.
    """
    low, high = int(at.min()), int(at.max())
    extent = permute.item_bytes + sum(
        (axis.count - 1) * stride for axis, stride in zip(permute.axes, strides, strict=True)
    )
    for buffer in buffers:
        if buffer.base <= low and high + extent <= buffer.base + buffer.data.size:
            view = np.ndarray(
                (high - low + 1, *(axis.count for axis in permute.axes)),
                dtype=_item(permute.item_bytes),
                buffer=buffer.data,
                offset=low - buffer.base,
                strides=(1, *strides),
            )
            return view, (at - np.uint64(low)).astype(np.int64)
    raise BadValue("buffers", (low, high + extent - 1), "one that holds these addresses")


def _item(size: int) -> np.dtype[np.generic]:
    """A type of that many bytes which numpy copies at once."""
    return np.dtype(f"u{size}") if size in (1, 2, 4, 8) else np.dtype((np.void, size))
