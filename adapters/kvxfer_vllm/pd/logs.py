"""Waits for lines of an engine's log.

Owns the reading position. Invariant: only what was written after `LogTail` was made is
looked at, so that a line of an earlier probe never stands for one of this.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import attrs

POLL_S = 0.02


@attrs.define
class LogTail:
    """What is added to a log from now on."""

    path: Path
    _position: int = attrs.field(init=False)
    _seen: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._position = self.path.stat().st_size

    async def wait_for(self, pattern: str, limit_s: float) -> bool:
        """True once some new line matches; False after `limit_s`."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + limit_s
        while True:
            self._read()
            if wanted.search(self._seen):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)

    def _read(self) -> None:
        with self.path.open("rb") as log:
            log.seek(self._position)
            added = log.read()
        self._position += len(added)
        self._seen += added.decode(errors="replace")
