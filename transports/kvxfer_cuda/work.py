"""Copies on their way through the GPU.

Owns the stream, the slots in which columns are handed to it, and the queue of what has not
been handed over yet. Refuses to know peers and mail. Invariants: launches end in the order
in which they began; at most SLOTS launches are with the GPU at a time, so that taking the
rest back is quick; a slot is used again only after its launch is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

import attrs
import numpy as np

from kvxfer.transport.ops import U64
from kvxfer_cuda.driver import CudaError, Driver

SLOTS: Final = 8
SLOT_RANGES: Final = 16384
READ_FROM_HOST_MAX: Final = 64
"""Columns of so few ranges are not worth a copy to the device before the kernel."""
THREADS: Final = 512
PIECE_BYTES_MIN: Final = 16 << 10
PIECE_BYTES_MAX: Final = 64 << 10
"""Bounds a launch, too: 1 GiB, about 3 ms over NVLink."""
_SLOT_BYTES: Final = 3 * 8 * SLOT_RANGES


@attrs.define(eq=False)
class Job:
    """The ranges of one request. Over when nothing is left to launch and nothing runs."""

    request: int
    peer: int
    src: U64
    dst: U64
    length: U64
    launched: int = 0
    running: int = 0
    stopped: bool = False

    @property
    def left(self) -> int:
        return 0 if self.stopped else len(self.length) - self.launched


@attrs.define(eq=False)
class _Slot:
    """Room for the columns of one launch: in pinned host memory and on the device."""

    columns: U64
    """Shape (3 * SLOT_RANGES,), in pinned memory: the three columns of a launch, end to end."""
    pinned: int
    device: int
    event: Any


class Copier:
    """One stream, one kernel, SLOTS slots."""

    def __init__(self, driver: Driver, kernel: Any, blocks: int, wake: Callable[[], None]) -> None:
        self._driver = driver
        self._kernel = kernel
        self._blocks = blocks
        self._stream = driver.stream()
        self._free = [self._slot() for _ in range(SLOTS)]
        self._running: deque[tuple[_Slot, Job]] = deque()
        self._waiting: deque[Job] = deque()
        self._wake = wake
        self._watched: SimpleQueue[Any] = SimpleQueue()
        self._watcher: threading.Thread | None = None

    def watch(self) -> None:
        """From now on `wake` is called when a launch is over. Who polls has no use for it."""
        if self._watcher is None:
            args = (self._driver, self._watched, self._wake)
            name = "kvxfer cuda"
            self._watcher = threading.Thread(target=_watch, args=args, name=name, daemon=True)
            self._watcher.start()
            for slot, _ in self._running:
                self._watched.put(slot.event)

    def _slot(self) -> _Slot:
        pinned = self._driver.pinned(_SLOT_BYTES)
        held = (ctypes.c_uint64 * (3 * SLOT_RANGES)).from_address(pinned)
        columns = np.ctypeslib.as_array(held)
        return _Slot(columns, pinned, self._driver.allocate(_SLOT_BYTES), self._driver.event())

    def add(self, request: int, peer: int, src: U64, dst: U64, length: U64) -> Job:
        """Queue the ranges; `start` hands them over."""
        src, dst, length = self._cut(src, dst, length)
        job = Job(request, peer, src, dst, length)
        self._waiting.append(job)
        return job

    def _cut(self, src: U64, dst: U64, length: U64) -> tuple[U64, U64, U64]:
        """Cut long ranges, so that every warp has work."""
        warps = self._blocks * (THREADS // 32)
        longest = int(length.max())
        if longest <= PIECE_BYTES_MIN:
            return src, dst, length
        piece = max(PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, int(length.sum()) // (4 * warps))) & ~4095
        if longest <= piece:
            return src, dst, length
        count = (length + np.uint64(piece - 1)) // np.uint64(piece)
        which = np.repeat(np.arange(len(length)), count.astype(np.int64))
        first = np.cumsum(count) - count
        offset = (np.arange(len(which), dtype=np.uint64) - first[which]) * np.uint64(piece)
        cut = np.minimum(length[which] - offset, np.uint64(piece))
        return src[which] + offset, dst[which] + offset, cut

    def start(self) -> None:
        """Launch what there is room for. Raises CudaError."""
        while self._free and self._waiting:
            job = self._waiting[0]
            if job.left:
                self._launch(job)
            if not job.left:
                self._waiting.popleft()

    def _launch(self, job: Job) -> None:
        begin = job.launched
        stop = min(begin + SLOT_RANGES, len(job.length))
        slot, count = self._free.pop(), stop - begin
        try:
            for row, column in enumerate((job.src, job.dst, job.length)):
                slot.columns[row * count : (row + 1) * count] = column[begin:stop]
            starts = self._place(slot, count)
            blocks = min(self._blocks, count)
            self._driver.launch(self._kernel, blocks, THREADS, self._stream, (*starts, count))
            self._driver.record(slot.event, self._stream)
        except CudaError:
            self._free.append(slot)
            raise
        job.launched = stop
        job.running += 1
        self._running.append((slot, job))
        if self._watcher is not None:
            self._watched.put(slot.event)

    def _place(self, slot: _Slot, count: int) -> tuple[int, int, int]:
        """Where the kernel finds the columns: few are read where they lie, in host memory."""
        at = slot.pinned
        if count > READ_FROM_HOST_MAX:
            at = slot.device
            self._driver.upload(at, slot.pinned, 3 * 8 * count, self._stream)
        return at, at + 8 * count, at + 16 * count

    def finished(self) -> list[Job]:
        """Jobs that are over since the last call. Raises CudaError."""
        over: list[Job] = []
        while self._running and self._driver.is_over(self._running[0][0].event):
            slot, job = self._running.popleft()
            self._free.append(slot)
            job.running -= 1
            if not job.left and not job.running:
                over.append(job)
        return over

    def stop(self, job: Job) -> bool:
        """Launch no more of the job; True where it is over by that."""
        job.stopped = True
        if job in self._waiting:
            self._waiting.remove(job)
        return not job.running

    def settle(self) -> None:
        """Wait for what the GPU has: at most SLOTS launches. Raises CudaError."""
        self._driver.settle(self._stream)

    def close(self) -> None:
        self.settle()
        if self._watcher is not None:
            self._watched.put(None)
            self._watcher.join()
        self._driver.drop_stream(self._stream)
        for slot in [*self._free, *(slot for slot, _ in self._running)]:
            self._driver.drop_event(slot.event)
            self._driver.free(slot.device)
            self._driver.free_pinned(slot.pinned)


def _watch(driver: Driver, events: SimpleQueue[Any], wake: Callable[[], None]) -> None:
    """Sleep on each launch in turn and wake the owner. It holds no lock while it sleeps."""
    driver.make_current()
    while (event := events.get()) is not None:
        # The owner meets the same error at its next look, and tells it.
        with contextlib.suppress(CudaError):
            driver.wait(event)
        wake()
