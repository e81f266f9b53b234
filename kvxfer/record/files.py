"""The sink that writes a recording to a file.

Owns the file and its name. Invariant: one file for one life of one agent, so that no
two agents ever write to the same one.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import attrs

from kvxfer.core.ids import Role
from kvxfer.errors import BadValue
from kvxfer.record.lines import Header, dropped_line, header_line, step_line
from kvxfer.record.steps import Step

SUFFIX = ".jsonl"


def header_of(engine_id: str, rank: int, role: Role, incarnation: int) -> Header:
    """The header of an agent that starts now."""
    return Header(
        engine_id=engine_id,
        rank=rank,
        role=role,
        incarnation=incarnation,
        monotonic_ms=time.monotonic() * 1e3,
        unix_ms=time.time() * 1e3,
    )


def join_recordings(folder: Path, path: Path) -> None:
    """Put all recordings of a folder into one file. OSError as it comes."""
    with path.open("w", encoding="utf-8") as joined:
        for part in sorted(folder.glob(f"*{SUFFIX}")):
            with part.open(encoding="utf-8") as lines:
                shutil.copyfileobj(lines, joined)


@attrs.define
class RecordingFile:
    """Writes lines as the steps come; every batch is given to the operating system."""

    path: Path
    _file: TextIO

    @classmethod
    def open(cls, folder: Path, header: Header) -> RecordingFile:
        """Make the file in `folder`. BadValue where that cannot be done."""
        engine = re.sub(r"[^A-Za-z0-9._-]", "_", header.engine_id)[:100]
        path = folder / f"{engine}-{header.rank}-{header.incarnation:016x}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("x", encoding="utf-8")
        except OSError as error:
            raise BadValue("record_dir", str(folder), f"a folder to write in ({error})") from error
        file.write(header_line(header))
        file.flush()
        return cls(path, file)

    def take(self, steps: Sequence[Step], dropped: int) -> None:
        if dropped:
            self._file.write(dropped_line(dropped))
        self._file.writelines(step_line(step) for step in steps)
        self._file.flush()

    def close(self) -> None:
        self._file.close()
