"""That the outcomes of an agent add up, judged by its tables and not by its counters.

Owns the check. Knows no engine. Invariant: what is live is counted in the core's own
records, one by one, so that a counter that lies cannot agree with itself.
"""

from __future__ import annotations

from kvxfer.core.tables import RequestState, SourceState
from kvxfer.driver.pump import Pump
from kvxfer.driver.watch import CONSUMER, PRODUCER
from kvxfer.testing.between import Violation

_NOT_OFFERED = (SourceState.EXPECTED, SourceState.UNWANTED)


def live_registrations(pump: Pump) -> int:
    """Registrations of the engine that wait for their KV."""
    held = pump.session.consumer.registrations.values()
    return sum(1 for r in held if r.state is RequestState.WAITING and not r.silent)


def live_offers(pump: Pump) -> int:
    """Offers of the engine whose blocks are pinned."""
    return sum(1 for s in pump.session.producer.sources.values() if s.state not in _NOT_OFFERED)


def check_outcomes(pump: Pump) -> None:
    """Violation unless started = ended + live on both sides; between turns only."""
    counts = pump.counters()
    for side, live in ((CONSUMER, live_registrations(pump)), (PRODUCER, live_offers(pump))):
        started = pump.watch.started[side]
        ended = sum(n for (where, _, _), n in pump.watch.ended.items() if where == side)
        told = counts[f"{side}_live"]
        if started != ended + live or told != live:
            raise Violation(
                f"outcomes of {pump.watch.name}, {side}: {started} started, {ended} ended, "
                f"{live} live, {told} said to be live"
            )
