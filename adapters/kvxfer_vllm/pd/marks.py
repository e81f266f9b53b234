"""Processes that another command started: recognised beyond doubt, and ended.

Owns the mark of a process, which no later process can share, and the bounded end of the
marked process's group by somebody who is not its parent. Invariant: a signal goes only to
the process that has the mark, or to a group whose leader had it and whose number the
kernel cannot have given away since.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from kvxfer_vllm.pd.processes import KILL_S, POLL_S, members

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@attrs.frozen(kw_only=True)
class Mark:
    """One process, told apart from all others: number, start and the kernel's own life."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks between boot and the process's start."""
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Mark:
        """The mark of a living process. Raises ProcessLookupError where there is none."""
        start_ticks = _start_ticks(pid)
        if start_ticks is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid=pid, start_ticks=start_ticks, boot_id=boot_id())

    def alive(self) -> bool:
        """True while the marked process runs; a zombie does not."""
        return self.boot_id == boot_id() and _start_ticks(self.pid) == self.start_ticks

    def group(self) -> list[int]:
        """Living processes of its group, itself among them while it lives.

        Empty once the number belongs to another process. As long as a group has members
        the kernel gives its number to nobody, so a group without its leader is still his.
        """
        if self.boot_id != boot_id():
            return []
        now_there = _start_ticks(self.pid, zombies=True)
        if now_there not in (None, self.start_ticks):
            return []
        return [pid for pid in members(self.pid) if (_start_ticks(pid) or -1) >= self.start_ticks]

    def signal(self, number: int) -> bool:
        """Send a signal to the marked process alone. False where it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor holds on to one process: what is compared now is what gets the signal.
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def kill_group(self) -> None:
        """Kill what is left of the group, each process for itself."""
        for pid in self.group():
            with contextlib.suppress(ProcessLookupError):
                Mark.of(pid).signal(signal.SIGKILL)


def end_marked(marks: Sequence[Mark], grace_s: float) -> list[Mark]:
    """Ask all to end, wait at most `grace_s` together, then kill what is left of their groups.

    Returns those that had to be killed. Ends within `grace_s` and KILL_S.
    """
    for mark in marks:
        mark.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(mark.alive() for mark in marks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    killed = [mark for mark in marks if mark.alive()]
    deadline = time.monotonic() + KILL_S
    while any(mark.group() for mark in marks) and time.monotonic() < deadline:
        for mark in marks:
            mark.kill_group()
        time.sleep(POLL_S)
    return killed


def boot_id() -> str:
    """Drawn by the kernel at each boot: ticks since boot mean nothing without it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _start_ticks(pid: int, *, zombies: bool = False) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X") and not zombies:
        return None
    return int(fields[19])
