"""What one exploration may do: how many engines, transfers, and which faults how often.

Owns the form of a configuration. Knows no protocol. Invariant: everything that
is not bounded here is bounded by the machines themselves, or by `states_max`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kvxfer.limits import Limits, Timings
from kvxfer.testing.explore.canon import FOREVER_MS
from kvxfer.testing.explore.state import Budget

TIMINGS = Timings(
    handshake_ms=400,
    offer_lease_ms=400,
    renew_ms=200,
    renew_misses_max=2,
    grant_lease_ms=300,
    lease_margin_ms=50,
    drain_ms=200,
    fence_retry_ms=200,
    tombstone_ms=FOREVER_MS,
)
"""Multiples of one unit, so that few different time-outs exist side by side."""


@attrs.frozen(kw_only=True)
class Config:
    """One exploration."""

    name: str
    about: str
    transfers: tuple[str, ...] = ("t",)
    parts: int = 2
    consumers: int = 1
    producers: int = 1
    idle_producers: int = 0
    """So many of the last producer ranks have no part of any transfer."""
    registers_max: int = 1
    """Per consumer and transfer."""
    offers_max: int = 1
    """Per producer and transfer."""
    deadline_ms: int = 600
    linked: bool = True
    """Start with the links up, as an earlier transfer would have left them."""
    keyed: bool = False
    """Both sides have a key and require one: links come up by proofs."""
    budgets: Mapping[Budget, int] = attrs.field(factory=dict)
    """How often each may happen; what is not named does not."""
    time_passes: bool = True
    """Time may move to the next deadline at any moment, not only when nothing is under way."""
    skew_ms: int = 40
    """By so much D's clock may fall behind at once, where the budget allows it."""
    calm: bool = False
    """Nothing goes wrong here, so no lease may lapse and no peer seem silent."""
    roaming: bool = False
    """A notice may outlive its cable and come in over the next one to the same peer."""
    digests: Mapping[str, bytes] = attrs.field(factory=dict)
    """Digest by tag of a registration or an offer, where the prompts are not the same."""
    tokens: Mapping[str, int] = attrs.field(factory=dict)
    """Tokens that an offer covers, by its tag, where it is not the whole prompt."""
    pulls: bool = False
    """D reads what P offers, instead of P writing it."""
    streams: bool = False
    """Offers come piece by piece, from nothing to the seal."""
    by_layers: bool = False
    """A piece is a layer of all tokens, instead of some tokens in all layers."""
    back: tuple[str, ...] = ()
    """Transfers that go the other way: P reads from D. Then both sides have both roles."""
    slow_resolve: bool = False
    """The driver answers Resolve in its own time, and may find that it cannot."""
    timings: Timings = TIMINGS
    limits: Limits = attrs.field(factory=Limits)
    full_only: bool = False
    """Too large for a quick look."""
    states_max: int = 5_000
    """Where a quick look ends, if it has not met every state by then."""

    def tag_of(self, transfer_id: str, count: int) -> str:
        """Name of a registration or an offer: unique over the exploration."""
        return f"{transfer_id}.{count}"

    def transfer_of(self, tag: str) -> str:
        return tag.rpartition(".")[0]

    def digest_of(self, side: str, tag: str) -> bytes:
        """Digest of the prompt that side "D" or "P" has under this tag."""
        return self.digests.get(f"{side} {tag}", b"")

    def budget(self, kind: Budget) -> int:
        return self.budgets.get(kind, 0)
