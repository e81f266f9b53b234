"""Who runs on this host, and is it still there?

Owns the identity of a process across the wire and the proof of its death from
/proc. Refuses to know peers, agents and networks. Invariant: `process_is_gone`
says True only with proof; what cannot be seen counts as alive.

A peer on the same host may write with `process_vm_writev`, which needs nothing
from the target: no socket to close, no key to revoke. Its death is then the only
proof that it writes no more. docs/design/nixl-fence.md has the whole argument.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import attrs

_BOOT_ID: Final = "sys/kernel/random/boot_id"
_NAMESPACES: Final = ("pid", "time")
"""A pid means something within one pid namespace, a start time within one time namespace."""
_DEAD_STATES: Final = frozenset("ZXx")
"""Zombie and dead, as proc(5) writes them: the memory map has been given up before."""
_STATE_FIELD: Final = 0
_START_FIELD: Final = 19
"""Fields 3 and 22 of proc(5) stat, counted after the command name."""


@attrs.frozen(kw_only=True)
class ProcessIdentity:
    """One process of one boot of one host. Empty texts where the kernel did not say."""

    boot_id: str
    namespaces: str
    pid: int
    start_ticks: int
    """Start in clock ticks after boot, field 22 of proc(5) stat: tells apart reused pids."""


class Whereabouts(Enum):
    """Where a process is, seen from this one."""

    THIS_PROCESS = "this process"
    THIS_HOST = "this host"
    OTHER_HOST = "another host"
    UNKNOWN = "unknown"
    """Same host and not visible from here, or one side could not name its host."""


def own_identity(proc: Path = Path("/proc")) -> ProcessIdentity:
    """Identity of the calling process; read anew, since a fork changes it."""
    pid = os.getpid()
    stat = _stat_fields(proc / "self/stat")
    return ProcessIdentity(
        boot_id=_first_line(proc / _BOOT_ID),
        namespaces=" ".join(filter(None, (_link(proc / "self/ns" / n) for n in _NAMESPACES))),
        pid=pid,
        start_ticks=int(stat[_START_FIELD]) if stat else 0,
    )


def whereabouts(own: ProcessIdentity, theirs: ProcessIdentity) -> Whereabouts:
    """Compare two identities; never guesses."""
    if not own.boot_id or not theirs.boot_id:
        return Whereabouts.UNKNOWN
    if own.boot_id != theirs.boot_id:
        return Whereabouts.OTHER_HOST
    if not own.namespaces or own.namespaces != theirs.namespaces:
        return Whereabouts.UNKNOWN
    if own.start_ticks == 0 or theirs.start_ticks == 0:
        return Whereabouts.UNKNOWN
    if (own.pid, own.start_ticks) == (theirs.pid, theirs.start_ticks):
        return Whereabouts.THIS_PROCESS
    return Whereabouts.THIS_HOST


def process_is_gone(pid: int, start_ticks: int, proc: Path = Path("/proc")) -> bool:
    """True where the process of this pid and start time provably runs no more.

    It is gone when the pid is free or belongs to a process that started at another
    time, or when each of its threads is a zombie. A process that is being killed
    and still sleeps in the kernel is alive: it may be inside a write.
    """
    home = proc / str(pid)
    stat = _stat_fields(home / "stat")
    if stat is None:
        # /proc may be mounted so that it hides other users; the kernel's answer settles it.
        return _pid_is_free(pid)
    if int(stat[_START_FIELD]) != start_ticks:
        return True
    return _all_threads_dead(home / "task")


def _all_threads_dead(tasks: Path) -> bool:
    before = _names(tasks)
    for name in before:
        stat = _stat_fields(tasks / name / "stat")
        if stat is not None and stat[_STATE_FIELD] not in _DEAD_STATES:
            return False
    # A thread that died while we looked may have started another one just before.
    return _names(tasks) <= before


def _pid_is_free(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _stat_fields(path: Path) -> list[str] | None:
    """Fields of a stat file after the command name, or None where there is no such process."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The command name is in parentheses and may hold any character, so look from the end.
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _START_FIELD else None


def _names(folder: Path) -> frozenset[str]:
    with suppress(OSError):
        return frozenset(os.listdir(folder))
    return frozenset()


def _first_line(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def _link(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""
