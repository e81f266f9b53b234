"""GPU memory between two processes of one host, by every transport that reaches it.

Owns the cases and their order. Refuses to know a transport but by its plug-in's name.
Invariant: all transports move the same scattered blocks, in turns, and each move's
bytes are compared on the far GPU before it is timed.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from kvxfer.bench.environment import environment
from kvxfer.bench.harness import Case, Row, measure
from kvxfer.conformance.cuda import CudaLink, cuda_count, cuda_is_here
from kvxfer.errors import BadValue
from kvxfer.status import Status

PLUGINS: Mapping[str, dict[str, Any]] = {"cuda": {"device": 0}, "ucx": {}, "nixl": {}}
"""Transport -> options of its sessions."""
BLOCKS_KIB: Sequence[int] = (64, 32, 16)
MIB_MAX = 8192


@attrs.frozen(kw_only=True)
class GpuReport:
    """What was measured, and where."""

    rows: tuple[Row, ...]
    environment: dict[str, Any]

    def to_plain(self) -> dict[str, Any]:
        return {"environment": self.environment, "rows": [row.to_plain() for row in self.rows]}


def run_gpu(
    *, mib: int, rounds: int, seed: int, transports: Sequence[str] = tuple(PLUGINS)
) -> GpuReport:
    """Time writes and reads of `mib` MiB in scattered blocks and as one piece.

    Raises BadValue where there is no GPU, or `mib` or a transport is out of its bound.
    """
    if not 1 <= mib <= MIB_MAX:
        raise BadValue("mib", mib, f"from 1 to {MIB_MAX}")
    unknown = sorted(set(transports) - PLUGINS.keys())
    if unknown:
        raise BadValue("transports", unknown, f"known are {', '.join(PLUGINS)}")
    reason = cuda_is_here()
    if reason:
        raise BadValue("GPU", 0, f"at least one: {reason}")
    total = mib << 20
    links: dict[str, CudaLink] = {}
    cases = [_peer_copy(total)]
    for name in transports:
        opened = _open(name, total)
        if isinstance(opened, str):
            cases.append(Case(name=name, skipped=opened))
        else:
            links[name] = opened
            cases += _cases(name, opened, total, seed)
    try:
        for link in links.values():
            _check(link, total, seed)
        rows = measure(cases, rounds=rounds)
    finally:
        for link in links.values():
            link.close()
    gpus = {"gpus": cuda_count()}
    return GpuReport(rows=tuple(rows), environment=environment() | gpus)


def _open(name: str, total: int) -> CudaLink | str:
    """A link between the first and the last GPU, or why there is none."""
    try:
        descriptor = importlib.import_module(f"kvxfer_{name}").DESCRIPTOR
    except ImportError as error:
        return str(error)
    status, text = descriptor.probe()
    if status != Status.OK:
        return str(text)
    options = dict(PLUGINS[name])
    return CudaLink(
        f"kvxfer_{name}", descriptor.load(), options, total, devices=(0, cuda_count() - 1)
    )


def _cases(name: str, link: CudaLink, total: int, seed: int) -> Iterator[Case]:
    for label, columns in _shapes(total, seed):
        for slot, word in (("post_write", "write"), ("post_read", "read")):
            yield Case(
                name=f"{name} {word} {label}",
                run=partial(_move, link, slot, columns),
                facts={"bytes": total, "ranges": len(columns[0])},
            )


def _shapes(total: int, seed: int) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    one = np.zeros(1, np.uint64)
    yield "1 piece", (one, one, np.array([total], np.uint64))
    chance = np.random.default_rng(seed)
    for kib in BLOCKS_KIB:
        size, count = kib << 10, total // (kib << 10)
        here, there = (chance.permutation(count).astype(np.uint64) * np.uint64(size) for _ in "ab")
        yield f"{count} x {kib} KiB", (here, there, np.full(count, size, np.uint64))


def _move(link: CudaLink, slot: str, columns: tuple[Any, Any, Any]) -> None:
    status = link.move(slot, *columns, None)
    if status != Status.OK:
        raise BadValue(slot, status.name, "OK: the transport broke off")


def _check(link: CudaLink, total: int, seed: int) -> None:
    """Each shape once, with its bytes: what is timed must be what is wanted."""
    source = np.random.default_rng(seed + 1).bytes(total)
    link.buffer.write(0, source)
    held = np.frombuffer(source, np.uint8)
    for label, (here, there, length) in _shapes(total, seed):
        size = int(length[0])
        wanted = np.empty((len(here), size), np.uint8)
        wanted[there // np.uint64(size)] = held.reshape(-1, size)[here // np.uint64(size)]
        status = link.move("post_write", here, there, length, b"look")
        _, digest = link.hear()
        if status != Status.OK or digest != hashlib.sha256(wanted.tobytes()).hexdigest():
            raise BadValue(label, status.name, "the far GPU holds other bytes than were sent")


def _peer_copy(total: int) -> Case:
    """What the machine gives: one copy between the two GPUs, by torch."""
    import torch

    last = cuda_count() - 1
    source = torch.empty(total, dtype=torch.uint8, device="cuda:0")
    target = torch.empty(total, dtype=torch.uint8, device=f"cuda:{last}")

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(last)

    return Case(name="torch peer copy", run=copy, facts={"bytes": total, "ranges": 1})
