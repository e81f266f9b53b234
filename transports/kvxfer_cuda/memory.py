"""Device memory without a framework, in the form that the conformance kit takes.

Owns allocations made through the driver alone. For tests and for vendors that have no torch.
"""

from __future__ import annotations

import contextlib
import weakref

from kvxfer.transport.ops import Memory
from kvxfer_cuda.driver import CudaError, Driver


class Allocation:
    """Device memory that is freed when nothing refers to it any more."""

    def __init__(self, driver: Driver, length: int) -> None:
        self.base = driver.allocate(length)
        weakref.finalize(self, _free, driver, self.base)


def _free(driver: Driver, base: int) -> None:
    with contextlib.suppress(CudaError):
        driver.free(base)


class DriverBuffer:
    """`length` zero bytes on a GPU; freed with the buffer and all that registered it."""

    def __init__(self, length: int, device: int = 0) -> None:
        self._driver = Driver.open(device)
        held = Allocation(self._driver, length)
        self._base = held.base
        self.memory = Memory(
            base=held.base, length=length, kind="cuda", device=device, keepalive=held
        )

    def read(self, offset: int, length: int) -> bytes:
        return self._driver.read(self._base + offset, length)

    def write(self, offset: int, data: bytes) -> None:
        self._driver.write(self._base + offset, data)
