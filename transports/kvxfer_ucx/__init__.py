"""UCX bound directly as a kvxfer transport: libucp, through a small C shim.

Owns the descriptor that the entry point names. Refuses to load UCX: only `load`
does. Invariant: looking at this package costs nothing and cannot fail where UCX,
cffi or a compiler is missing.
"""

from __future__ import annotations

from typing import Final

from kvxfer.status import Status
from kvxfer.transport.ops import TransportDescriptor, TransportOps

NAME: Final = "ucx"


def probe() -> tuple[Status, str]:
    """OK with the library and what it reaches, or LIBRARY_MISSING with what to install."""
    from kvxfer_ucx.build import missing_for_shim
    from kvxfer_ucx.library import LibraryMissing, find_library

    try:
        library = find_library()
    except LibraryMissing as error:
        return Status.LIBRARY_MISSING, str(error)
    missing = missing_for_shim(library)
    if missing:
        return Status.LIBRARY_MISSING, missing
    return Status.OK, library.describe()


def load() -> TransportOps:
    """The table. Raises ImportError where UCX cannot be loaded or the shim cannot be built."""
    from kvxfer_ucx.binding import load_shim
    from kvxfer_ucx.ops import OPS

    load_shim()
    return OPS


DESCRIPTOR: Final = TransportDescriptor(
    name=NAME,
    summary="UCX: shared memory, TCP or RDMA between processes and hosts",
    probe=probe,
    load=load,
)
"""What the entry point of group `kvxfer.transports` loads."""
