"""This process's side of `kvxfer bench transport`, and its hold on the other one.

Owns the memory, the far process, and one `Subject` for each thing that can be timed
here. Knows no case. Invariants: what cannot run here is kept with its reason; the far
process ends with this object.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any, Final, Self

import attrs
import numpy as np

from kvxfer.bench.limits import Stream, VmWriter, memcpy
from kvxfer.bench.movers import TIMEOUT_S, Mover, TableMover, make_mover
from kvxfer.errors import KvxferError, TransportFault
from kvxfer.status import Status
from kvxfer.transport.ops import U64

_KINDS: Final = ("ucx", "raw ucx", "ucx allocated", "nixl", "raw nixl")
_LOOPBACK: Final = "loopback"
_LIMITS: Final = ("memcpy", "process_vm_writev", "plain TCP")
_IN_C: Final = "raw ucx, waiting in C"
_SHARED: Final = {"tls": "posix,self"}
"""Memory that UCX allocated is written by memcpy where nothing else is allowed."""
_VERSIONS: Final = ("libucx-cu12", "nixl", "nixl-cu12", "cffi")

Columns = tuple[U64, U64, U64]


@attrs.frozen(kw_only=True, eq=False)
class Subject:
    """One row's way to move bytes. `base` is where its target memory starts."""

    name: str
    base: int
    write: Callable[[Columns], float | None] | None = None
    round_trip: Callable[[], None] | None = None
    driven: str = ""
    """Name of the far mover that has to be polled meanwhile."""
    checksum: Callable[[int], int] | None = None


class Near:
    """Context manager; `subjects` are what can run here."""

    def __init__(
        self, length: int, seed: int, options: dict[str, str], only: Sequence[str]
    ) -> None:
        self._seed = seed
        self._options = options
        self._only = only
        self._closing: list[Callable[[], None]] = []
        self.skipped: dict[str, str] = {}
        self.subjects: list[Subject] = []
        self._source = np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)
        self._target = np.zeros(length, dtype=np.uint8)
        self._link, self._process = _start_far()
        self._link.send(length)
        self._far_pid, self._far_base, self._port = self._received()
        self._places = np.zeros(1, dtype=np.uint64)
        self._range_bytes = length
        self._driven = ""

    def __enter__(self) -> Self:
        try:
            for kind in filter(self._wanted, _KINDS):
                self._try(kind, self._add_mover)
            if self._wanted(_LOOPBACK):
                self._try(_LOOPBACK, self._add_loopback)
            for name in filter(self._wanted, _LIMITS):
                self._try(name, self._add_limit)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for close in reversed(self._closing):
            close()
        self._link.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def known(self) -> list[str]:
        return [*_KINDS, _LOOPBACK, *_LIMITS]

    def versions(self) -> dict[str, str]:
        """Of the libraries below."""
        found = {}
        for name in _VERSIONS:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        return found | {"ucx_options": ",".join(f"{k}={v}" for k, v in self._options.items())}

    # What is timed.

    def shape(self, count: int, range_bytes: int) -> None:
        """From now on lists of `count` ranges; the target's order is a permutation."""
        permuted = np.random.default_rng(self._seed).permutation(count)
        self._places = permuted.astype(np.uint64)
        self._range_bytes = range_bytes

    def columns(self, subject: Subject) -> Columns:
        """Local and remote addresses, and lengths."""
        size = np.uint64(self._range_bytes)
        starts = np.arange(len(self._places), dtype=np.uint64) * size
        local = starts + np.uint64(self._source.ctypes.data)
        return local, self._places * size + np.uint64(subject.base), np.full_like(starts, size)

    def drive(self, subject: Subject, *, echo: bool) -> None:
        """Have the far process poll what this subject needs, and nothing else."""
        self._far("drive", subject.driven, echo)

    def check(self, subject: Subject) -> None:
        """One write, and every byte of it looked at on the other side. Raises TransportFault."""
        total = len(self._places) * self._range_bytes
        if subject.checksum is None or subject.write is None:
            return
        memcpy(self._source[:total], self._target[:total], self._places)
        wanted = zlib.crc32(self._target[:total].data)
        self._target[:total] = 0
        self._far("clear", subject.driven, total)
        self.drive(subject, echo=False)
        subject.write(self.columns(subject))
        if subject.checksum(total) != wanted:
            text = f"{subject.name}: bytes differ at the target"
            raise TransportFault("check", Status.OP_FAILED, text)

    # How subjects come to be.

    def _wanted(self, name: str) -> bool:
        return not self._only or name in self._only

    def _try(self, name: str, add: Callable[[str], None]) -> None:
        try:
            add(name)
        except (KvxferError, ImportError, OSError) as error:
            self.skipped[name] = str(error)

    def _add_mover(self, kind: str) -> None:
        options = self._options_of(kind)
        base = self._source.ctypes.data
        local = kind.removesuffix(" allocated")
        mover = make_mover(local, options, base, len(self._source))
        try:
            far_base, blob = self._far("make", kind, options, mover.blob)
            mover.connect(blob)
        except (KvxferError, OSError):
            mover.close()
            raise
        self._closing.append(mover.close)

        def write(columns: Columns) -> float:
            return mover.write(*columns, b"written")

        self.subjects.append(
            Subject(
                name=kind,
                base=far_base,
                write=write,
                round_trip=lambda: _round_trip(mover),
                driven=kind,
                checksum=lambda total: int(self._far("checksum", kind, total)),
            )
        )
        if kind == "raw ucx":
            self.subjects.append(
                Subject(
                    name=_IN_C,
                    base=far_base,
                    round_trip=lambda: _round_trip_in_c(mover),
                    driven=kind,
                )
            )

    def _options_of(self, kind: str) -> Mapping[str, Any]:
        if kind == "ucx allocated":
            return _SHARED
        return self._options if "ucx" in kind else {}

    def _add_loopback(self, name: str) -> None:
        near = TableMover(name, {}, self._source.ctypes.data, len(self._source), allocate=False)
        far = TableMover(name, {}, self._target.ctypes.data, len(self._target), allocate=False)
        self._closing += [near.close, far.close]
        near.connect(far.blob)
        far.connect(near.blob)

        def round_trip() -> None:
            near.notify(b"ping")
            _wait_for_note(far)
            far.notify(b"pong")
            _wait_for_note(near)

        def write(columns: Columns) -> float:
            posted = near.write(*columns, b"written")
            _wait_for_note(far)
            return posted

        self.subjects.append(
            Subject(
                name=name,
                base=far.base,
                write=write,
                round_trip=round_trip,
                checksum=lambda total: zlib.crc32(self._target[:total].data),
            )
        )

    def _add_limit(self, name: str) -> None:
        write: Callable[[Columns], None]
        base, far = self._far_base, ""
        if name == "memcpy":
            base = self._target.ctypes.data

            def write(columns: Columns) -> None:
                total = len(columns[0]) * self._range_bytes
                memcpy(self._source[:total], self._target[:total], self._places)

        elif name == "process_vm_writev":
            writer = VmWriter(self._far_pid)

            def write(columns: Columns) -> None:
                writer.write(*columns)

        else:
            stream = Stream(self._port)
            self._closing.append(stream.close)

            def write(columns: Columns) -> None:
                stream.send(self._source[: len(columns[0]) * self._range_bytes])

        self.subjects.append(Subject(name=name, base=base, write=write, driven=far))

    # The far process.

    def _far(self, name: str, *args: Any) -> Any:
        self._link.send((name, args))
        answer, error = self._received()
        if error:
            raise TransportFault(f"far {name}", Status.SESSION_FAILED, error)
        return answer

    def _received(self) -> Any:
        if not self._link.poll(TIMEOUT_S):
            raise TransportFault("far process", Status.SESSION_FAILED, "does not answer")
        return self._link.recv()


def _start_far() -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvxfer.bench.transport_far", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is for the benchmark, which ends this process
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    return Connection(ours.detach()), process


def _round_trip(mover: Mover) -> None:
    mover.notify(b"ping")
    _wait_for_note(mover)


def _wait_for_note(mover: Mover) -> None:
    for _ in range(50_000_000):
        if mover.take_note():
            return
    raise TransportFault("round trip", Status.OP_FAILED, "no notification came back")


def _round_trip_in_c(mover: Any) -> None:
    mover.notify(b"ping")
    if not mover.wait_for_note(TIMEOUT_S):
        raise TransportFault("round trip", Status.OP_FAILED, "no notification came back")
