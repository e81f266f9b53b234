"""How fast one link's messages are taken in: a bucket of tokens, paid afterwards.

Owns the arithmetic. Knows no clock. Invariant: over any time, no more than the burst and
the rate times that time is taken in before the pauses that it gives.
"""

from __future__ import annotations

import attrs


@attrs.define
class Bucket:
    """Tokens come at `per_s`, at most `burst` of them; debt is a pause."""

    per_s: float
    burst: float
    _tokens: float = attrs.field(init=False)
    _at_ms: float | None = None

    def __attrs_post_init__(self) -> None:
        self._tokens = self.burst

    def pause_s(self, count: int, now_ms: float) -> float:
        """Seconds to wait after `count` messages more, so that the rate is kept."""
        if self._at_ms is not None:
            come = (now_ms - self._at_ms) / 1e3 * self.per_s
            self._tokens = min(self.burst, self._tokens + come)
        self._at_ms = now_ms
        self._tokens -= count
        return max(0.0, -self._tokens / self.per_s)
