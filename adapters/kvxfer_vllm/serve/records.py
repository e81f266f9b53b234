"""The run folder: who was started here, with which line, and where it logs.

Owns one small JSON file per program. Judges nothing. Invariant: a record is whole or not
there, and names its process so that no later process can be taken for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from kvxfer.errors import BadValue, LocalFault
from kvxfer_vllm.pd.marks import Mark


@attrs.frozen(kw_only=True)
class Record:
    """One started program."""

    name: str
    machine: str
    """Host name as the kernel has it: a run folder may be shared."""
    mark: Mark
    started_at: str
    line: str
    log: str

    @property
    def is_here(self) -> bool:
        return self.machine == socket.gethostname()


@attrs.frozen
class RunFolder:
    """The records of one set."""

    path: Path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One `up` or `down` at a time on this machine. Raises LocalFault where another runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / f"{socket.gethostname()}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LocalFault(f"another kvxfer pd is at work in {self.path}") from None
            yield

    def write(self, name: str, pid: int, line: str, log: Path) -> None:
        """Remember a program that was started just now. Nothing is written if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            record = Record(
                name=name,
                machine=socket.gethostname(),
                mark=Mark.of(pid),
                started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                line=line,
                log=str(log),
            )
            whole = self._file(name).with_suffix(".new")
            whole.write_text(json.dumps(attrs.asdict(record), indent=1) + "\n", encoding="utf-8")
            whole.replace(self._file(name))

    def read(self, name: str) -> Record | None:
        """The record of a program, or None. Raises BadValue where the file is none of ours."""
        file = self._file(name)
        try:
            return _record(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as bad:
            raise BadValue("record", str(file), f"a record of kvxfer pd ({bad!r})") from bad

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"


def _record(plain: dict[str, Any]) -> Record:
    mark = Mark(**plain["mark"])
    if type(mark.pid) is not int or mark.pid < 2 or type(mark.start_ticks) is not int:
        raise ValueError(f"no process: {mark}")
    return Record(**{**plain, "mark": mark})
