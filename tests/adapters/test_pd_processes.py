"""Whole process groups end, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvxfer.errors import LocalFault
from kvxfer_vllm.pd import ports
from kvxfer_vllm.pd.ports import LOOPBACK, ephemeral_low, pick_ports
from kvxfer_vllm.pd.processes import Program, Running, Supervisor, cpu_seconds, members, pin

WAIT_S = 60.0

FAMILY = """
import signal, subprocess, sys, time
{prelude}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = FAMILY.format(prelude="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
OBEDIENT = FAMILY.format(prelude="")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def family(tmp_path: Path, code: str, name: str = "family") -> Program:
    return Program(
        name=name,
        argv=[sys.executable, "-c", code],
        env=dict(os.environ),
        log=tmp_path / f"{name}.log",
    )


def ready(program: Program) -> int:
    """The pid of the grandchild, once it is there."""
    until(lambda: "ready" in program.log.read_text())
    return int(program.log.read_text().split()[1])


def running(pid: int) -> bool:
    """True while the process runs; a zombie that waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


Start = Callable[[Program], Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs; whatever the test does, none outlives it."""
    started: list[Running] = []

    def remembered(program: Program) -> Running:
        started.append(Running.start(program))
        return started[-1]

    yield remembered
    for running_program in started:
        running_program.kill()


@pytest.mark.parametrize("code", [OBEDIENT, STUBBORN], ids=["obedient", "stubborn"])
def test_end_takes_the_descendants_too(tmp_path: Path, start: Start, code: str) -> None:
    program = family(tmp_path, code)
    started = start(program)
    grandchild = ready(program)
    assert set(members(started.pid)) == {started.pid, grandchild}
    started.end(grace_s=0.2)
    assert not started.alive()
    assert not running(grandchild)
    started.end(grace_s=0.2)


BUSY = FAMILY.replace('"import time; time.sleep(600)"', '"while True: pass"')


def test_the_time_of_descendants_counts(tmp_path: Path, start: Start) -> None:
    program = family(tmp_path, BUSY.format(prelude=""))
    started = start(program)
    ready(program)
    at_first = cpu_seconds(started.pid)
    # The leader itself sleeps: it would never use so much.
    until(lambda: cpu_seconds(started.pid) > at_first + 0.5)
    started.kill()
    assert cpu_seconds(started.pid) == 0.0


def test_the_supervisor_ends_all_when_the_block_fails(tmp_path: Path) -> None:
    def block() -> None:
        with Supervisor(grace_s=0.5) as supervisor:
            for name in ("one", "two"):
                supervisor.start(family(tmp_path, OBEDIENT, name))
                pids.append(ready(family(tmp_path, OBEDIENT, name)))
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        block()
    assert len(pids) == 2
    assert not any(running(pid) for pid in pids)


def test_strangers_are_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with Supervisor(grace_s=0.5) as supervisor:
            supervisor.start(family(tmp_path, OBEDIENT))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_program_that_ended_by_itself_is_not_alive_and_can_be_ended(
    tmp_path: Path, start: Start
) -> None:
    started = start(family(tmp_path, "print('bye')"))
    until(lambda: not started.alive())
    started.end(grace_s=0.2)
    assert "bye" in started.program.log.read_text()


def test_children_of_a_dead_leader_are_ended(tmp_path: Path, start: Start) -> None:
    program = family(tmp_path, OBEDIENT)
    started = start(program)
    grandchild = ready(program)
    os.kill(started.pid, signal.SIGKILL)
    until(lambda: not started.alive())
    assert running(grandchild)
    started.end(grace_s=0.2)
    assert not running(grandchild)


def test_pin_binds_every_process_of_the_group(tmp_path: Path) -> None:
    program = family(tmp_path, OBEDIENT)
    with Supervisor(grace_s=0.5) as supervisor:
        started = supervisor.start(program)
        grandchild = ready(program)
        core = min(os.sched_getaffinity(0))
        assert pin(started.pid, {core}) >= 2
        assert os.sched_getaffinity(grandchild) == {core}


def test_ports_are_different_free_and_below_the_ephemeral_range() -> None:
    picked = pick_ports(20)
    assert len(set(picked)) == 20
    assert max(picked) < ephemeral_low()
    for port in picked:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, port))


def test_a_taken_port_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, pick_ports(1)[0]))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "LOWEST", port)
        monkeypatch.setattr(ports, "ephemeral_low", lambda: port + 1)
        # The range has ten ports for each one wanted, the taken one among them.
        assert all(port not in pick_ports(1) for _ in range(50))


def test_too_few_free_ports_are_a_local_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_is_free(port: int) -> socket.socket:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(ports, "_bound", none_is_free)
    with pytest.raises(LocalFault, match="0 of 2 free ports"):
        pick_ports(2)


@pytest.mark.parametrize("content", [None, "", "words here"])
def test_an_unreadable_range_falls_back_to_the_usual_one(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "range"
    if content is not None:
        file.write_text(content)
    assert ephemeral_low(file) == ports.EPHEMERAL_LOW
