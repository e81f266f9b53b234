"""What an agent has counted, and what it holds now, as plain numbers by name.

Owns the names under which they leave the writer thread. Invariant: taken between two
turns, so that all numbers are of one moment.
"""

from __future__ import annotations

from kvxfer.core.session import Session
from kvxfer.driver.desk import Desk
from kvxfer.driver.posting import Poster
from kvxfer.driver.watch import Watch


def counters_of(session: Session, poster: Poster, desk: Desk, watch: Watch) -> dict[str, int]:
    """Counts since the start, and gauges; see `kvxfer.observe.names` for their meaning."""
    counts: dict[str, int] = dict(session.ctx.counters)
    got, given = session.consumer, session.producer
    counts["live"] = session.live()
    counts["quarantined"] = got.quarantined()
    counts["links"] = len(session.ctx.links)
    ends = counts.get("landed", 0) + counts.get("lost", 0) + counts.get("cancelled", 0)
    counts["consumer_live"] = counts.get("registered", 0) - ends
    ends = counts.get("sent", 0) + counts.get("unsent", 0)
    counts["producer_live"] = counts.get("offered", 0) - ends
    counts["registrations_held"] = len(got.registrations)
    counts["sources_held"] = len(given.sources)
    counts["grants_held"] = len(given.sends)
    counts["loans_held"] = given.lenders.lent
    counts["operations_open"] = len(session.operations.table)
    counts["writer_cpu_us"] = int(watch.meter.cpu_s * 1e6)
    counts["posting_cpu_us"] = int(watch.meter.post_cpu_s * 1e6)
    counts["bytes_written"] = poster.bytes_posted
    counts["descriptors_posted"] = poster.descriptors_posted
    counts["bytes_read"] = poster.bytes_read
    counts["bytes_received"] = desk.bytes_received
    return counts
