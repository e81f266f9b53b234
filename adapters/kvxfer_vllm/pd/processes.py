"""Child processes with everything below them, and their certain end.

Owns start and end of one process group per program. Refuses to know what a program does,
and never looks for processes by name. Invariant: a signal goes only to groups that this
module made. The leader is reaped last: while it is a zombie, its group id cannot be
given to a stranger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

POLL_S = 0.05
KILL_S = 10.0
"""A killed process ends as soon as the kernel has freed its memory."""


@attrs.frozen(kw_only=True)
class Program:
    """What to start. Output of the program and its children goes to `log`."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path


@attrs.define
class Running:
    """A started program and its process group."""

    program: Program
    _process: subprocess.Popen[bytes]
    _ended: bool = False

    @classmethod
    def start(cls, program: Program) -> Running:
        """Start in a new session, hence a new group. A log of an earlier life is continued."""
        with program.log.open("ab") as log:
            process = subprocess.Popen(
                list(program.argv),
                env=dict(program.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(program, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """True while the leader runs. Does not reap it."""
        if self._ended:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is None

    def signal_group(self, number: int) -> None:
        """Send a signal to the whole group; nothing where it is gone."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def end(self, grace_s: float) -> None:
        """Ask the leader to end, wait at most `grace_s`, then kill what is left of its group."""
        if self._ended:
            return
        if self.alive():
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group at once, as a crash would, wait for its end, reap the leader."""
        if self._ended:
            return
        self.signal_group(signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        while members(self.pid) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._process.wait()
        self._ended = True


@attrs.define
class Supervisor:
    """All programs of one command; the end of the block ends them, whatever ended the block."""

    grace_s: float = 20.0
    _running: list[Running] = attrs.field(factory=list)

    def start(self, program: Program) -> Running:
        running = Running.start(program)
        self._running.append(running)
        return running

    def end(self, *some: Running) -> None:
        """End these now. All are asked before the first is waited for."""
        for running in some:
            if running.alive():
                os.kill(running.pid, signal.SIGTERM)
        for running in some:
            running.end(self.grace_s)
            self._running.remove(running)

    def leave_running(self) -> None:
        """From here on the programs are somebody else's; the end of the block leaves them."""
        self._running.clear()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(*reversed(self._running))


def members(group: int) -> list[int]:
    """Living processes of a group; zombies do not count. Empty where there is no such group."""
    found = []
    for entry in _numbered(Path("/proc")):
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        # The name in parentheses may hold anything; what follows it is: state, parent, group.
        state, _, its_group = stat.rpartition(")")[2].split()[:3]
        if int(its_group) == group and state not in ("Z", "X"):
            found.append(entry)
    return found


def cpu_seconds(group: int) -> float:
    """Processor time that the living processes of a group have used so far."""
    ticks = 0
    for process in members(group):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            # The 14th and 15th field, in user and in kernel mode; the third comes first here.
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pin(group: int, cpus: set[int]) -> int:
    """Bind all threads of the group to `cpus`; the number of threads bound."""
    bound = 0
    for process in members(group):
        for thread in _numbered(Path(f"/proc/{process}/task")):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cpus)
                bound += 1
    return bound


def _numbered(folder: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    except OSError:
        return []
