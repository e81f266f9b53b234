"""What a person should know about a piece of this installation.

Owns the record. Refuses to look for anything. Invariant: whatever is not fine comes
with what to do about it.
"""

from __future__ import annotations

from enum import Enum

import attrs


class Level(Enum):
    """How much a finding matters."""

    FINE = "fine"
    NOTE = "note"
    """Works, with a limit that may surprise."""
    PROBLEM = "problem"
    """What the subject is for does not work."""


@attrs.frozen(kw_only=True)
class Finding:
    """One thing found. `fix` says what to do; empty only where the level is FINE."""

    level: Level
    subject: str
    text: str
    fix: str = ""

    def __attrs_post_init__(self) -> None:
        if self.level is not Level.FINE and not self.fix:
            raise ValueError(f"{self.subject}: {self.level.value} without a fix")
