"""What a run of the demo found.

Owns the result, its verdict and its one-line summary. Knows no engine. Invariant:
`ok` is true only if every request of every mode gave the tokens of the plain
engine and nothing is leaked or in quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from kvxfer.demo.reports import EngineState
from kvxfer.demo.served import Served
from kvxfer.demo.workload import DemoOptions, Mode


@attrs.frozen(kw_only=True)
class DemoResult:
    """All that is shown, in memory. Times in milliseconds."""

    options: DemoOptions
    expected: tuple[tuple[int, ...], ...]
    """Tokens of the plain engine, by request."""
    served: Mapping[Mode, list[Served]]
    prefill_state: EngineState
    decode_state: EngineState
    two_processes: bool
    seconds: float

    def same(self, one: Served) -> bool:
        """Whether one request gave the tokens of the plain engine."""
        return one.finished is not None and one.finished.tokens == self.expected[one.index]

    @property
    def identical(self) -> int:
        """Requests whose tokens were the plain engine's in every mode that ran."""
        runs = list(self.served.values())
        return sum(all(self.same(one) for one in ones) for ones in zip(*runs, strict=True))

    @property
    def leaked(self) -> int:
        """Blocks not given back plus open table entries, at both engines, after the end."""
        states = (self.prefill_state, self.decode_state)
        return sum(state.blocks_held + state.live for state in states)

    @property
    def quarantined(self) -> int:
        return self.prefill_state.quarantined + self.decode_state.quarantined

    @property
    def bytes_moved(self) -> int:
        return sum(one.bytes_moved for one in self._all())

    @property
    def descriptors_posted(self) -> int:
        return sum(one.descriptors for one in self._all())

    @property
    def ok(self) -> bool:
        return self.identical == self.options.requests and not (self.leaked or self.quarantined)

    def failures(self) -> list[str]:
        """What went wrong, in words, one line each."""
        lines = []
        for one in self._all():
            if one.failure:
                lines.append(f"{one.transfer_id}: KV did not come: {one.failure}")
            elif not self.same(one):
                lines.append(f"{one.transfer_id}: tokens differ from the plain engine's")
        if self.leaked:
            lines.append(
                f"leaked: P holds {self.prefill_state.blocks_held} blocks and "
                f"{self.prefill_state.live} transfers, D {self.decode_state.blocks_held} "
                f"and {self.decode_state.live}"
            )
        if self.quarantined:
            lines.append(f"in quarantine: {self.quarantined}")
        return lines

    def percentile(self, mode: Mode, name: str, percent: float) -> float | None:
        """Of `ttft_ms` or `handoff_ms` over the requests of a mode; None without any."""
        values = [
            value for one in self.served.get(mode, []) if (value := getattr(one, name)) is not None
        ]
        return round(float(np.percentile(values, percent)), 3) if values else None

    def summary(self) -> dict[str, object]:
        """The machine-readable line. Keys may be added, never renamed."""
        options = self.options
        figures = {
            f"{name}_p{percent}_{mode}": self.percentile(mode, name, percent)
            for name in ("ttft_ms", "handoff_ms")
            for percent in (50, 90)
            for mode in Mode
        }
        return {
            "requests": options.requests,
            "identical": self.identical,
            "mode": "+".join(options.modes),
            "transport": options.transport,
            "processes": 2 if self.two_processes else 1,
            **figures,
            "quarantined": self.quarantined,
            "leaked": self.leaked,
            "bytes_moved": self.bytes_moved,
            "descriptors_posted": self.descriptors_posted,
            "prefill_tp": options.prefill_ranks,
            "decode_tp": options.decode_ranks,
            "prefill_block_size": options.prefill_block_tokens,
            "decode_block_size": options.decode_block_tokens,
            "cache_order": options.cache_order,
            "concurrency": options.concurrency,
            "seed": options.seed,
            "seconds": round(self.seconds, 3),
        }

    def _all(self) -> Iterable[Served]:
        return (one for run in self.served.values() for one in run)
