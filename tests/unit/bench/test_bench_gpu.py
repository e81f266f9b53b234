"""`kvxfer bench gpu` where there is no GPU: its shapes, its check of bytes, its refusals."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvxfer.bench import gpu
from kvxfer.cli import main
from kvxfer.errors import BadValue
from kvxfer.status import Status

_TOTAL = 1 << 20


def test_every_shape_moves_every_byte_once() -> None:
    for _, (here, there, length) in gpu._shapes(_TOTAL, 7):
        for start in (here, there):
            order = np.argsort(start)
            ends = start[order] + length[order]
            assert start[order][0] == 0
            assert (ends[:-1] == start[order][1:]).all()
            assert ends[-1] == _TOTAL


class _Link:
    """Moves bytes in this process; `spoil` says whether one of them goes wrong."""

    def __init__(self, *, spoil: bool) -> None:
        self.buffer, self.spoil = self, spoil
        self.here, self.there = bytearray(_TOTAL), bytearray(_TOTAL)

    def write(self, _offset: int, data: bytes) -> None:
        self.here[:] = data

    def move(self, _slot: str, here: Any, there: Any, length: Any, _notify: bytes) -> Status:
        for a, b, n in zip(here.tolist(), there.tolist(), length.tolist()):
            self.there[b : b + n] = self.here[a : a + n]
        if self.spoil:
            self.there[-1] ^= 1
        return Status.OK

    def hear(self) -> tuple[bytes, str]:
        return b"look", hashlib.sha256(self.there).hexdigest()


def test_bytes_are_checked_before_anything_is_timed() -> None:
    gpu._check(_Link(spoil=False), _TOTAL, 7)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="other bytes"):
        gpu._check(_Link(spoil=True), _TOTAL, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"mib": 0}, "mib"), ({"mib": gpu.MIB_MAX + 1}, "mib"), ({"transports": ["x"]}, "transports")],
)
def test_bounds(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], field: str) -> None:
    monkeypatch.setattr(gpu, "cuda_is_here", lambda: "")
    with pytest.raises(BadValue, match=field):
        gpu.run_gpu(**{"mib": 1, "rounds": 1, "seed": 0} | options)


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "cuda_is_here", lambda: "torch sees no CUDA device")
    done = CliRunner().invoke(main, ["bench", "gpu"])
    assert done.exit_code == 2
    assert "torch sees no CUDA device" in done.output
