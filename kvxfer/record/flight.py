"""The flight recorder: the last steps of each of the last transfers.

Owns the bound. Knows no clock and no file. Invariants: never more than
`transfers_max` transfers nor `steps_max` entries of one; a step that repeats the
one before it is counted, not kept, so that a retry for ever pushes nothing out.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import TransferId
from kvxfer.record.steps import Step


@attrs.define
class Entry:
    """A step, and how often it came in a row."""

    step: Step
    count: int = 1
    last_ms: float = 0.0
    """When it came last."""

    def repeats(self, other: Step) -> bool:
        mine = self.step
        return (
            mine.step == other.step
            and mine.attempt == other.attempt
            and mine.part is other.part
            and mine.peer == other.peer
            and mine.reason is other.reason
        )


@attrs.define
class FlightRecorder:
    """Written by the agent's thread alone; `of` may be asked from any thread."""

    transfers_max: int
    steps_max: int
    _transfers: dict[TransferId, list[Entry]] = attrs.field(factory=dict)
    """Lists: a deque takes 600 bytes before its first entry, and most transfers have six."""

    def note(self, step: Step) -> None:
        """Take one step; the transfer that began first leaves when there are too many."""
        entries = self._transfers.get(step.transfer_id)
        if entries is None:
            if not self.transfers_max:
                return
            if len(self._transfers) >= self.transfers_max:
                del self._transfers[next(iter(self._transfers))]
            entries = self._transfers[step.transfer_id] = []
        if entries and entries[-1].repeats(step):
            entries[-1].count += 1
            entries[-1].last_ms = step.t_ms
            return
        if len(entries) >= self.steps_max:
            del entries[0]
        entries.append(Entry(step, 1, step.t_ms))

    def of(self, transfer_id: TransferId) -> list[Entry]:
        """The entries of one transfer, oldest first; empty where nothing is known of it."""
        return list(self._transfers.get(transfer_id, ()))

    def transfers(self) -> list[TransferId]:
        """The transfers of which something is known, in the order in which they began."""
        return list(self._transfers)

    def __len__(self) -> int:
        return len(self._transfers)
