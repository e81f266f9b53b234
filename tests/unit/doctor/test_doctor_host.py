"""Looking at a host: what is found in its files, and what of it matters."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kvxfer.doctor.host import Host, findings, look
from kvxfer.transport.finding import Finding, Level


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_an_empty_root_is_a_host_with_nothing(tmp_path: Path) -> None:
    host = look(tmp_path)
    assert (host.boot_id, host.interfaces, host.rdma_devices) == ("", (), ())
    assert (host.gpus, host.neuron_devices, host.ptrace_scope) == (0, 0, -1)


def test_devices_are_counted_by_their_numbers(tmp_path: Path) -> None:
    names = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "neuron0", "null"]
    host = look(_tree(tmp_path, {f"dev/{name}": "" for name in names}))
    assert (host.gpus, host.neuron_devices) == (2, 1)


def test_rdma_devices_carry_their_driver(tmp_path: Path) -> None:
    home = tmp_path / "sys/class/infiniband"
    _tree(tmp_path, {"drivers/efa/x": "", "sys/class/infiniband/bare/x": ""})
    (home / "rdmap0/device").mkdir(parents=True)
    (home / "rdmap0/device/driver").symlink_to(tmp_path / "drivers/efa")
    assert look(tmp_path).rdma_devices == ("bare unknown", "rdmap0 efa")


def test_this_host_can_be_looked_at() -> None:
    host = look()
    assert host.boot_id
    assert host.versions["numpy"]


_GOOD = attrs.evolve(
    look(), ptrace_scope=0, memlock_bytes=-1, shm_bytes_free=8 << 30, rdma_devices=("m0 mlx5",)
)


def test_a_good_host_gives_nothing_to_say() -> None:
    assert list(findings(_GOOD)) == []


@pytest.mark.parametrize(
    ("change", "subject", "level"),
    [
        ({"ptrace_scope": 1}, "ptrace_scope", Level.NOTE),
        ({"memlock_bytes": 8 << 20}, "memlock", Level.PROBLEM),
        ({"shm_bytes_free": 64 << 20}, "/dev/shm", Level.NOTE),
        ({"rdma_devices": ()}, "network", Level.NOTE),
    ],
)
def test_each_fault_has_its_finding_and_a_fix(
    change: dict[str, object], subject: str, level: Level
) -> None:
    host: Host = attrs.evolve(_GOOD, **change)
    (found,) = findings(host)
    assert (found.subject, found.level) == (subject, level)
    assert found.fix


def test_a_finding_that_is_not_fine_needs_a_fix() -> None:
    with pytest.raises(ValueError, match="without a fix"):
        Finding(level=Level.NOTE, subject="x", text="y")
