"""What a person should know about nixl here.

Owns the texts. Invariant: nothing is said of a backend that was not tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kvxfer.status import Status
from kvxfer.transport.finding import Finding, Level
from kvxfer.transport.neuron import LIBRARY_VARIABLE, NeuronRuntime, RuntimeState
from kvxfer.transport.sessions import Refused
from kvxfer_nixl.agent import LIBFABRIC
from kvxfer_nixl.fabric import fabric_version
from kvxfer_nixl.session import Session

_RDMA_FOLDER = "/sys/class/infiniband"
_DEVICES = "/dev"


def diagnose() -> Iterator[Finding]:
    """UCX works where this is called; the rest is tried here."""
    if os.path.isdir(_RDMA_FOLDER) and os.listdir(_RDMA_FOLDER):
        yield Finding(
            level=Level.NOTE,
            subject="nixl UCX",
            text="RDMA devices are here; whether the UCX inside nixl's wheel uses them shows only "
            "with UCX_LOG_LEVEL=info",
            fix="look for 'rc_mlx5' in that log; without it, install a nixl built on your UCX",
        )
    neuron = _has_neuron()
    yield _fabric(neuron)
    if neuron:
        yield _runtime()


def _fabric(needed: bool) -> Finding:
    """The backend that reaches EFA, and the only one that reaches Neuron devices."""
    try:
        Session.open({"backends": [LIBFABRIC]}).close()
    except Refused as refused:
        missing = refused.status == Status.LIBRARY_MISSING
        return Finding(
            level=Level.PROBLEM if needed else Level.NOTE,
            subject="nixl LIBFABRIC",
            text=f"{refused}; nothing else reaches Neuron devices" if needed else str(refused),
            fix="only needed for EFA and Neuron: docs/fabric.md has what comes from where"
            if missing
            else "docs/fabric.md; FI_LOG_LEVEL=info shows what libfabric tried",
        )
    provider = os.environ.get("FI_PROVIDER", "")
    text = f"opens; FI_PROVIDER is {provider!r}" if provider else "opens; FI_PROVIDER is unset"
    text = f"libfabric {fabric_version()} {text}"
    return Finding(level=Level.FINE, subject="nixl LIBFABRIC", text=text)


def _runtime() -> Finding:
    """The library by which nixl and libfabric know a Neuron address."""
    runtime = NeuronRuntime.find()
    if runtime is None:
        return Finding(
            level=Level.PROBLEM,
            subject="nixl Neuron",
            text=RuntimeState.MISSING.text,
            fix=f"apt install aws-neuronx-runtime-lib, or name its file in {LIBRARY_VARIABLE}",
        )
    text = f"runtime library {runtime.path}; MEM_NEURON shows in an engine once its caches are up"
    return Finding(level=Level.FINE, subject="nixl Neuron", text=text)


def _has_neuron() -> bool:
    return any(name.removeprefix("neuron").isdigit() for name in os.listdir(_DEVICES))
