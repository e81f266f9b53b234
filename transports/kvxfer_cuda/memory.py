"""Device memory without a framework, in the form that the conformance kit takes.

Owns allocations made through the driver alone. For tests and for vendors that have no torch.
"""

from __future__ import annotations

from kvxfer.transport.ops import Memory
from kvxfer_cuda.driver import Driver


class DriverBuffer:
    """`length` zero bytes on a GPU; freed when nothing refers to the buffer any more."""

    def __init__(self, length: int, device: int = 0) -> None:
        self._driver = Driver.open(device)
        self._base = self._driver.allocate(length)
        self.memory = Memory(
            base=self._base, length=length, kind="cuda", device=device, keepalive=self
        )

    def read(self, offset: int, length: int) -> bytes:
        return self._driver.read(self._base + offset, length)

    def write(self, offset: int, data: bytes) -> None:
        self._driver.write(self._base + offset, data)
