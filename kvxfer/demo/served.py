"""One request in one order of legs, and what was measured of it.

Owns the record. Invariant: each time in it was recorded by the run or an engine;
what did not happen is None.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import TransferId
from kvxfer.demo.engines import Job
from kvxfer.demo.reports import Finished, Prefilled, Released
from kvxfer.demo.sequence import Prompt
from kvxfer.demo.workload import Mode


@attrs.define(kw_only=True)
class Served:
    """One request in one order of legs, with what was reported about it."""

    index: int
    mode: Mode
    prompt: Prompt
    arrival_ms: float
    prefilled: Prefilled | None = None
    released: Released | None = None
    finished: Finished | None = None
    failure: str = ""

    @property
    def transfer_id(self) -> TransferId:
        return TransferId(f"{self.mode}-{self.index:04d}")

    def job(self) -> Job:
        """The request as both engines get it."""
        return Job(
            transfer_id=self.transfer_id,
            prompt=self.prompt,
            reads=self.mode is Mode.PULL,
            streams=self.mode is Mode.STREAM,
        )

    @property
    def answered(self) -> bool:
        return self.finished is not None or bool(self.failure)

    @property
    def over(self) -> bool:
        """Answered, and P has its blocks back."""
        return self.answered and self.released is not None

    @property
    def bytes_moved(self) -> int:
        """By either side."""
        written = self.released.bytes_written if self.released else 0
        return written + (self.finished.bytes_read if self.finished else 0)

    @property
    def descriptors(self) -> int:
        """Ranges that either side posted."""
        written = self.released.descriptors if self.released else 0
        return written + (self.finished.descriptors if self.finished else 0)

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token: from the request's arrival to the first token at D."""
        return self.finished.first_token_ms - self.arrival_ms if self.finished else None

    @property
    def handoff_ms(self) -> float | None:
        """From the end of the prefill at P to the KV's arrival at D."""
        if self.finished is None or self.prefilled is None:
            return None
        return self.finished.landed_ms - self.prefilled.stop_ms
