"""Ctrl-C at a terminal: every command that runs long ends with 130 and leaves nothing behind.

The signal goes to the whole process group, as a terminal sends it, once while the
processes of a command are starting and once while they are at work.
"""

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

from kvxfer.status import Status
from kvxfer.transport.registry import available

DEADLINE_S = 100.0
HERE = {one.name for one in available() if one.status == Status.OK}
AT_WORK_S = 1.2
"""Processor time of a command that is past its imports, less than any of them needs."""


@attrs.frozen
class Process:
    pid: int
    session: int
    cpu_s: float


def processes() -> Iterator[Process]:
    """Every process that has not ended, with the session it belongs to."""
    for folder in Path("/proc").iterdir():
        try:
            stat = (folder / "stat").read_text() if folder.name.isdigit() else ""
        except OSError:  # it has ended meanwhile
            continue
        fields = stat.rpartition(")")[2].split()
        if fields and fields[0] != "Z":
            ticks = int(fields[11]) + int(fields[12])
            yield Process(int(folder.name), int(fields[3]), ticks / os.sysconf("SC_CLK_TCK"))


def of_session(session: int) -> list[Process]:
    return [one for one in processes() if one.session == session]


def until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition, for as long as a busy machine may need."""
    stop = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > stop:
            return False
        time.sleep(0.01)
    return True


@attrs.frozen
class Long:
    """A command that runs for minutes, and how many processes it is then."""

    words: str
    processes: int = 1
    transport: str = "loopback"

    def interrupt(self, folder: Path, started: Callable[[list[Process]], bool]) -> str:
        """Start it, interrupt it at that moment, see that all is gone; its standard error."""
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            command = subprocess.Popen(
                [sys.executable, "-m", "kvxfer", *self.words.split()],
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        said = folder / "err"
        try:
            assert until(lambda: command.poll() is not None or started(of_session(command.pid)))
            assert command.poll() is None, f"ended by itself: {said.read_text()}"
            os.killpg(command.pid, signal.SIGINT)
            assert command.wait(DEADLINE_S) == 130, said.read_text()
            assert until(lambda: not of_session(command.pid)), of_session(command.pid)
        finally:
            for left in of_session(command.pid):
                os.kill(left.pid, signal.SIGKILL)
            command.wait()
        return said.read_text()


LONG = [
    Long("demo --requests 4000 --mode push"),
    Long("demo --transport nixl --requests 4000", processes=2, transport="nixl"),
    Long("demo --transport ucx --requests 4000", processes=2, transport="ucx"),
    Long("sim --seeds 100000 --jobs 2", processes=4),
    Long("explore --full --jobs 2", processes=4),
    Long("explore --planted"),
    Long("conform --transport ucx --long --across", processes=2, transport="ucx"),
]


def at_work(count: int) -> Callable[[list[Process]], bool]:
    return lambda seen: len(seen) >= count and sum(one.cpu_s for one in seen) > AT_WORK_S


@pytest.mark.timeout(400)
@pytest.mark.parametrize("long", LONG, ids=lambda long: long.words.replace("--", "").split()[0])
def test_ctrl_c_leaves_nothing_behind(long: Long, tmp_path: Path) -> None:
    if long.transport not in HERE:
        pytest.skip(f"no {long.transport} here")
    before = set(os.listdir("/dev/shm"))
    moments = [at_work(1 if long.processes == 1 else 2)]
    if long.processes > 1:
        moments.append(lambda seen: len(seen) >= long.processes)
    for moment in moments:
        said = long.interrupt(tmp_path, moment)
        assert said.splitlines()[-1] == "interrupted"
        assert "Traceback" not in said
    mine = {name for name in set(os.listdir("/dev/shm")) - before if "kvxfer" in name}
    assert mine == set()
