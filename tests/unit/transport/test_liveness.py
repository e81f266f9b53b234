"""Proof that a process of this host is dead, with real children and with a made-up /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from kvxfer.transport import liveness
from kvxfer.transport.liveness import (
    ProcessIdentity,
    Whereabouts,
    own_identity,
    process_is_gone,
    whereabouts,
)

_DEADLINE_S = 30.0
_REPORT = """
import sys
from kvxfer.transport.liveness import own_identity
print(own_identity().pid, own_identity().start_ticks, flush=True)
"""
_WAITS = _REPORT + "sys.stdin.read()"
_LEADER_LEAVES = (
    _REPORT
    + """
import ctypes, threading
threading.Thread(target=sys.stdin.read).start()
SYS_exit = {"x86_64": 60, "aarch64": 93}[__import__("platform").machine()]
ctypes.CDLL(None).syscall(SYS_exit, 0)
"""
)


class Child:
    """A process that names itself on standard output and ends with its input."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self.pid, self.start_ticks = map(int, self.process.stdout.readline().split())

    @property
    def gone(self) -> bool:
        return process_is_gone(self.pid, self.start_ticks)

    def leader_state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate(timeout=_DEADLINE_S)


@pytest.fixture
def start() -> Iterator[Callable[[str], Child]]:
    children: list[Child] = []

    def start_one(code: str) -> Child:
        children.append(Child(code))
        return children[-1]

    yield start_one
    for child in children:
        child.end()


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.002)


def test_a_live_child_is_not_gone_and_a_killed_one_is(start: Callable[[str], Child]) -> None:
    child = start(_WAITS)
    assert not child.gone
    child.process.kill()
    # The first thread may be a zombie before the others are.
    _until(lambda: child.gone)
    assert child.leader_state() == "Z"
    child.process.wait(_DEADLINE_S)
    assert child.gone, "a reaped process is gone"


def test_a_stopped_child_is_not_gone(start: Callable[[str], Child]) -> None:
    child = start(_WAITS)
    child.process.send_signal(signal.SIGSTOP)
    _until(lambda: child.leader_state() == "T")
    assert not child.gone


def test_a_child_whose_first_thread_has_left_is_not_gone(start: Callable[[str], Child]) -> None:
    child = start(_LEADER_LEAVES)
    _until(lambda: child.leader_state() == "Z")
    assert not child.gone, "another thread of it is running"


def test_a_pid_with_another_start_time_is_another_process(start: Callable[[str], Child]) -> None:
    child = start(_WAITS)
    assert process_is_gone(child.pid, child.start_ticks + 1)


def test_this_process_is_alive_and_knows_itself() -> None:
    own = own_identity()
    assert own.pid == os.getpid()
    assert own.start_ticks > 0
    assert own.boot_id
    assert own.namespaces.startswith("pid:[")
    assert own == own_identity()
    assert not process_is_gone(own.pid, own.start_ticks)


def _write_stat(path: Path, name: str, state: str, start_ticks: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    middle = " ".join("0" for _ in range(18))
    path.write_text(f"77 ({name}) {state} {middle} {start_ticks} 0 0\n")


@pytest.mark.parametrize("name", ["plain", "two words", ") Z 0 (", "Z"])
def test_a_command_name_cannot_pose_as_a_state(tmp_path: Path, name: str) -> None:
    _write_stat(tmp_path / "77/stat", name, "S", 5)
    _write_stat(tmp_path / "77/task/77/stat", name, "S", 5)
    assert not process_is_gone(77, 5, tmp_path)
    _write_stat(tmp_path / "77/task/77/stat", name, "Z", 5)
    assert process_is_gone(77, 5, tmp_path)


def test_one_living_thread_is_enough(tmp_path: Path) -> None:
    _write_stat(tmp_path / "77/stat", "engine", "Z", 5)
    for task, state in (("77", "Z"), ("78", "D"), ("79", "X")):
        _write_stat(tmp_path / f"77/task/{task}/stat", "engine", state, 5)
    assert not process_is_gone(77, 5, tmp_path), "state D may be inside a write"


def test_a_thread_started_while_we_look_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_stat(tmp_path / "77/stat", "engine", "Z", 5)
    _write_stat(tmp_path / "77/task/77/stat", "engine", "Z", 5)
    looks = iter([frozenset({"77"}), frozenset({"77", "78"}), frozenset({"77"}), frozenset()])
    monkeypatch.setattr(liveness, "_names", lambda _tasks: next(looks))
    assert not process_is_gone(77, 5, tmp_path)
    assert process_is_gone(77, 5, tmp_path), "threads may vanish while we look"


def test_a_process_that_proc_hides_is_not_gone(tmp_path: Path) -> None:
    assert not process_is_gone(os.getpid(), 1, tmp_path)


_HERE = ProcessIdentity(boot_id="b", namespaces="pid:[1] time:[2]", pid=10, start_ticks=100)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({}, Whereabouts.THIS_PROCESS),
        ({"pid": 11}, Whereabouts.THIS_HOST),
        ({"start_ticks": 101}, Whereabouts.THIS_HOST),
        ({"boot_id": "c"}, Whereabouts.OTHER_HOST),
        ({"boot_id": ""}, Whereabouts.UNKNOWN),
        ({"namespaces": "pid:[9] time:[2]"}, Whereabouts.UNKNOWN),
        ({"namespaces": ""}, Whereabouts.UNKNOWN),
        ({"start_ticks": 0}, Whereabouts.UNKNOWN),
    ],
)
def test_whereabouts(change: dict[str, object], where: Whereabouts) -> None:
    assert whereabouts(_HERE, attrs.evolve(_HERE, **change)) is where


def test_a_side_that_does_not_know_its_host_proves_nothing() -> None:
    assert whereabouts(attrs.evolve(_HERE, boot_id=""), _HERE) is Whereabouts.UNKNOWN
    nameless = attrs.evolve(_HERE, namespaces="")
    assert whereabouts(nameless, attrs.evolve(nameless, pid=11)) is Whereabouts.UNKNOWN
