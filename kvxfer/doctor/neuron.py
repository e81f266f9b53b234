"""What a host with Neuron devices needs before its KV can move, each lack with its fix.

Owns the rules about devices, network cards and the environment. Refuses to load a foreign
library: the runtime and libfabric are tried by the transport `nixl`, in a process of its
own. Invariant: a host without Neuron devices gets no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvxfer.doctor.host import Host
from kvxfer.transport.finding import Finding, Level
from kvxfer.transport.neuron import MAP_VARIABLE

SUBJECT = "neuron"


def neuron_findings(host: Host, environ: Mapping[str, str]) -> Iterator[Finding]:
    """`environ` is that in which engines will be started."""
    if not host.neuron_devices:
        return
    yield _cards(host)
    yield from _environment(environ)
    yield Finding(
        level=Level.NOTE,
        subject=SUBJECT,
        text="an agent that is made before the process's first device tensor cannot register "
        "device memory, and no look from outside shows the order",
        fix="allocate the caches first; kvxfer_neuron does, and the transport checks it",
    )


def _cards(host: Host) -> Finding:
    cards = sum(device.endswith(" efa") for device in host.rdma_devices)
    text = f"{host.neuron_devices} Neuron devices, {cards} EFA cards"
    if cards >= host.neuron_devices:
        return Finding(level=Level.FINE, subject=SUBJECT, text=text)
    if cards:
        return Finding(
            level=Level.NOTE,
            subject=SUBJECT,
            text=f"{text}: some devices share a card or have none",
            fix="launch the instance with an EFA interface for each Neuron device",
        )
    return Finding(
        level=Level.PROBLEM,
        subject=SUBJECT,
        text=f"{text}: device memory leaves the host by EFA only",
        fix="launch the instance with EFA interfaces; a trn2.3xlarge cannot have them",
    )


def _environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    if environ.get(MAP_VARIABLE) != "1":
        yield Finding(
            level=Level.PROBLEM,
            subject=SUBJECT,
            text=f"{MAP_VARIABLE} is {environ.get(MAP_VARIABLE)!r}: tensors of engines that are "
            "started so have no address",
            fix=f"export {MAP_VARIABLE}=1 (vLLM Neuron's worker sets it by itself)",
        )
    if environ.get("FI_PROVIDER") != "efa":
        yield Finding(
            level=Level.NOTE,
            subject=SUBJECT,
            text=f"FI_PROVIDER is {environ.get('FI_PROVIDER')!r}: libfabric chooses the provider",
            fix="export FI_PROVIDER=efa",
        )
    if environ.get("FI_EFA_ENABLE_SHM_TRANSFER") != "0":
        yield Finding(
            level=Level.NOTE,
            subject=SUBJECT,
            text="between two engines of this host EFA may use shared memory, which does not "
            "carry device memory rightly",
            fix="export FI_EFA_ENABLE_SHM_TRANSFER=0 where both engines are on one host",
        )
