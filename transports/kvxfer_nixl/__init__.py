"""NIXL as a kvxfer transport: backend UCX, memory of the host, peers in other processes.

Owns the descriptor that the entry point names. Refuses to import nixl: only
`load` does. Invariant: looking at this package costs nothing and cannot fail
where nixl is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from kvxfer.status import Status
from kvxfer.transport.finding import Finding
from kvxfer.transport.ops import TransportDescriptor, TransportOps

NAME: Final = "nixl"
INSTALL: Final = "pip install --no-deps nixl nixl-cu12"
"""Without --no-deps nixl's metadata pulls both CUDA builds and torch; none is needed here."""

_BUILDS: Final = {"nixl_cu12": "nixl-cu12", "nixl_cu13": "nixl-cu13", "nixl_rocm": "nixl-rocm"}
"""Packages that hold the binary part, by the module they install."""


def probe() -> tuple[Status, str]:
    """OK with the versions found, or LIBRARY_MISSING with what to install."""
    if find_spec("nixl") is None:
        return Status.LIBRARY_MISSING, f"nixl is not importable: {INSTALL}"
    builds = [name for module, name in _BUILDS.items() if find_spec(module) is not None]
    if not builds:
        wanted = ", ".join(_BUILDS.values())
        return Status.LIBRARY_MISSING, f"nixl finds none of {wanted}: {INSTALL}"
    return Status.OK, ", ".join(f"{name} {_version(name)}" for name in ["nixl", *builds])


def load() -> TransportOps:
    """The table. Raises ImportError where nixl or its binary part cannot be loaded."""
    from kvxfer_nixl.agent import load_library
    from kvxfer_nixl.ops import OPS

    load_library()
    return OPS


def diagnose() -> Iterable[Finding]:
    """Findings for `kvxfer doctor`."""
    from kvxfer_nixl.diagnose import diagnose as look

    return look()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version"


DESCRIPTOR: Final = TransportDescriptor(
    name=NAME,
    summary="NIXL over UCX (shared memory, TCP, RDMA, GPU) or LIBFABRIC (EFA)",
    probe=probe,
    load=load,
    diagnose=diagnose,
)
