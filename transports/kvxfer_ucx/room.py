"""How much memory can be asked of this machine now.

Owns one question. UCX reserves shared memory page by page until the system has none
left, so what cannot be there is refused before UCX is asked. Invariant: where the
system does not say, nothing is refused.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARED: Final = "/dev/shm"
_FREE: Final = "MemAvailable:"


def allocatable_bytes(meminfo: Path = Path("/proc/meminfo"), shared: str = _SHARED) -> int:
    """The lesser of free memory and free room for shared memory; 2**63 where nobody knows."""
    bounds = [1 << 63]
    with suppress(OSError):
        found = os.statvfs(shared)
        bounds.append(found.f_bavail * found.f_frsize)
    with suppress(OSError, ValueError):
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
        bounds += [int(line.split()[1]) * 1024 for line in lines if line.startswith(_FREE)]
    return min(bounds)
