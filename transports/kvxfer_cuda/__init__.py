"""GPUs of one host: peers map each other's memory and one copy kernel moves a whole plan.

Owns the descriptor that the entry point names. Refuses to load the driver: only `load` and
`probe` look for it. docs/design/cuda.md has the design.
"""

from __future__ import annotations

from typing import Final

from kvxfer.status import Status
from kvxfer.transport.ops import TransportDescriptor, TransportOps

NAME: Final = "cuda"


def probe() -> tuple[Status, str]:
    """OK where driver and run-time compiler are here."""
    from kvxfer_cuda.driver import CudaMissing, load
    from kvxfer_cuda.nvrtc import find_nvrtc

    try:
        load()
        compiler = find_nvrtc()
    except CudaMissing as missing:
        return Status.LIBRARY_MISSING, str(missing)
    return Status.OK, f"CUDA driver, {compiler.rpartition('/')[2]}"


def load() -> TransportOps:
    """The table."""
    from kvxfer_cuda.ops import OPS

    return OPS


DESCRIPTOR: Final = TransportDescriptor(
    name=NAME,
    summary="GPUs of one host: memory mapped by CUDA IPC, moved by a copy kernel",
    probe=probe,
    load=load,
    one_host=True,
)
