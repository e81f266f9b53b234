"""Memory of other processes, mapped once and counted.

Owns the process-wide table of mappings and the translation of a peer's addresses to ours.
Refuses to move bytes. Invariant: an allocation of another process is mapped as long as one
peer handle uses it and no longer; one of this process needs no mapping.
"""

from __future__ import annotations

import attrs
import numpy as np

from kvxfer.transport.liveness import Whereabouts, own_identity, whereabouts
from kvxfer.transport.ops import U64, Memory
from kvxfer.transport.ranges import RegionIndex
from kvxfer_cuda.blob import PeerBlob
from kvxfer_cuda.driver import Driver

_mapped: dict[bytes, tuple[int, int]] = {}
"""Name of an allocation -> where it is here, and how many use it. The driver maps one once."""


@attrs.define(eq=False)
class Window:
    """The memory that one peer lends, as this process sees it."""

    regions: RegionIndex
    _bases: U64
    _shift: U64
    """Added to a peer's address, without regard to overflow, it gives ours."""
    _driver: Driver
    _names: list[bytes]

    @classmethod
    def open(cls, driver: Driver, theirs: PeerBlob) -> Window:
        """Map what `theirs` lends. Raises CudaError; then nothing stays mapped."""
        here = whereabouts(own_identity(), theirs.process) is Whereabouts.THIS_PROCESS
        lent = sorted(theirs.regions, key=lambda r: r.base)
        window = cls(
            regions=RegionIndex.of(Memory(base=r.base, length=r.length) for r in lent),
            bases=np.array([r.base for r in lent], dtype=np.uint64),
            shift=np.zeros(len(lent), dtype=np.uint64),
            driver=driver,
            names=[],
        )
        try:
            for at, region in enumerate(lent):
                if not here:
                    moved = window._map(region.name) - region.allocation
                    window._shift[at] = np.uint64(moved % (1 << 64))
        except Exception:
            window.close()
            raise
        return window

    def _map(self, name: bytes) -> int:
        base, count = _mapped.get(name, (0, 0))
        if count == 0:
            base = self._driver.open_from_other(name)
        _mapped[name] = (base, count + 1)
        self._names.append(name)
        return base

    def here(self, remote: U64) -> U64:
        """Our addresses of the peer's, each of which lies in one of `regions`."""
        one = len(self._shift) == 1
        at = 0 if one else np.searchsorted(self._bases, remote, side="right") - 1
        moved: U64 = remote + self._shift[at]
        return moved

    def close(self) -> None:
        """Unmap. The caller has seen to it that nothing touches the memory any more."""
        while self._names:
            name = self._names.pop()
            base, count = _mapped[name]
            if count > 1:
                _mapped[name] = (base, count - 1)
            else:
                del _mapped[name]
                self._driver.close_from_other(base)
