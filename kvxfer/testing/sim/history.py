"""What happened, in order: the digest that proves a run repeatable, and transcripts.

Owns the records. Knows no rule. Invariant: a record holds nothing but numbers and
text, so two runs have the same digest exactly when the same things happened.
"""

from __future__ import annotations

import hashlib

import attrs

Record = tuple[int, str, str, str, str]
"""(time in us, where, what, transfer or "", more)."""

TRANSCRIPT_LINES = 60


@attrs.define(eq=False)
class History:
    """The records of one run."""

    records: list[Record] = attrs.field(factory=list)

    def note(self, at_us: int, where: str, what: str, transfer: str = "", more: str = "") -> None:
        self.records.append((at_us, where, what, transfer, more))

    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for record in self.records:
            digest.update(repr(record).encode())
        return digest.hexdigest()

    def transcript(self, transfer: str, lines_max: int = TRANSCRIPT_LINES) -> str:
        """The last things that happened to one transfer, and to the world meanwhile."""
        own = [n for n, record in enumerate(self.records) if transfer and record[3] == transfer]
        own = own[-lines_max:]
        first = own[0] if own else 0
        world = [n for n in range(first, len(self.records)) if not self.records[n][3]]
        shown = sorted(own + world[-lines_max:])
        return "\n".join(_line(self.records[n]) for n in shown)


def _line(record: Record) -> str:
    at_us, where, what, _, more = record
    return f"{at_us / 1000:12.3f} ms  {where:<6} {what}{' ' + more if more else ''}"
