"""Which kinds of memory a backend of nixl reaches on this host, and why not the others.

Owns nixl's names of them and the conditions of each. Refuses to create agents. Invariant:
a kind that is offered has been seen: nixl names device memory also on hosts without any,
and takes a Neuron address for host memory where the runtime is not up.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from typing import Final

from kvxfer.transport.neuron import NeuronRuntime, RuntimeState

NAMES: Final = {"dram": "DRAM", "cuda": "VRAM", "neuron": "VRAM"}
"""nixl's name of each kind of memory."""
NEURON_BACKENDS: Final = {"LIBFABRIC"}
"""UCX has no memory type for Neuron; libfabric takes it for FI_HMEM_NEURON."""


@functools.cache
def cuda_is_here() -> bool:
    """True where the driver answers: a backend names GPU memory also on hosts without one."""
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except (OSError, AttributeError):
        return False


def kinds_of(backend: str, segments: Collection[str]) -> frozenset[str]:
    """Kinds that `backend` reaches now; `segments` are what nixl says it takes."""
    missing = {
        "dram": "",
        "cuda": "" if cuda_is_here() else "no driver",
        "neuron": no_neuron(backend, segments),
    }
    return frozenset(
        kind for kind, why in missing.items() if not why and f"{NAMES[kind]}_SEG" in segments
    )


def no_neuron(backend: str, segments: Collection[str]) -> str:
    """Why `backend` cannot register Neuron memory now, and what to do; empty where it can."""
    if backend not in NEURON_BACKENDS:
        return f"{backend} cannot reach it; open the session with backends = ['LIBFABRIC']"
    if f"{NAMES['neuron']}_SEG" not in segments:
        return (
            "libfabric's provider here takes no device memory, only EFA does; attach an EFA "
            "interface and set FI_PROVIDER=efa"
        )
    if cuda_is_here():
        return "nixl takes the NVIDIA devices of this host and not its Neuron devices"
    state = NeuronRuntime.state_here()
    if state is not RuntimeState.UP:
        return (
            f"when the session was opened, {state.text}; allocate the caches before the agent "
            "is made, or they would be registered as host memory"
        )
    return ""
