"""What the core costs, and how it grows with the number of live transfers.

Owns the measurements: whole transfers, renewals, expiry, a far peer's coming and
going, bytes per live transfer. Knows no view. Invariant: every figure is the best
of several runs on CPU time of this process alone, with the collector off.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import attrs

from kvxfer.bench.core_pair import LINK, P_KEY, PART, Pair, tables
from kvxfer.bench.harness import cpu_s
from kvxfer.core.events import EdgePlan, FenceResult, Register, Resolved, Unreachable
from kvxfer.core.ids import Attempt, Incarnation, LinkId, Peer, PeerKey, Reason, Role, TransferId
from kvxfer.core.messages import BlockRuns, Describe, Grant, Header, Welcome
from kvxfer.limits import Timings

LIVE = (10, 1_000, 10_000, 100_000)
FAR = PeerKey("eng-far", 0)


@attrs.frozen(kw_only=True)
class Row:
    """Figures at one number of live transfers. Times are CPU microseconds."""

    live: int
    events_per_second: float
    event_us: float
    transfer_us: float
    renewal_us: float
    """A timer fires, RENEW goes out, is answered, the answer is taken."""
    expiry_us: float
    """A deadline passes: the request is lost, cancelled, and both sides are clear of it."""
    far_link_us: float
    """The link of a peer with nothing on it comes up and is lost."""
    far_fence_us: float
    """A fence of that peer is answered."""


@attrs.frozen(kw_only=True)
class Memory:
    """Bytes of Python objects, by tracemalloc."""

    live: int
    consumer_bytes: float
    """Per live registration at D that has been granted."""
    producer_bytes: float
    """Per parked grant at P, its block table of 256 blocks included."""
    table_bytes: float
    """Of each of these, the block table alone."""
    ended_bytes: float
    """Per ended transfer, both sides together: what is remembered so that nothing revives it."""


@attrs.frozen(kw_only=True)
class CoreCost:
    """All figures of one run."""

    rows: tuple[Row, ...]
    memory: Memory

    @property
    def growth(self) -> float:
        """Cost of an event at the most live transfers over that at the fewest."""
        return self.rows[-1].event_us / self.rows[0].event_us

    def summary(self) -> dict[str, Any]:
        return {
            "rows": [attrs.asdict(row) for row in self.rows],
            "growth": round(self.growth, 3),
            "memory": attrs.asdict(self.memory),
        }


def measure(live: tuple[int, ...] = LIVE, transfers: int = 4_000, rounds: int = 3) -> CoreCost:
    """Measure at each number of live transfers; `transfers` are timed per round."""
    rows = tuple(_row(count, transfers, rounds) for count in live)
    return CoreCost(rows=rows, memory=_memory(min(max(live), 10_000)))


def _row(live: int, transfers: int, rounds: int) -> Row:
    gc.collect()
    pair = _filled(live)
    best, events = _through(pair, live, transfers, rounds)
    renewal_us = _renewal(live, rounds)
    return Row(
        live=live,
        events_per_second=1e6 / best,
        event_us=best,
        transfer_us=best * events,
        renewal_us=renewal_us,
        expiry_us=_expiry(live),
        far_link_us=_best(rounds, lambda: _far_links(pair, 50)),
        far_fence_us=_best(rounds, lambda: _far_fences(pair, 50)),
    )


def _filled(live: int, timings: Timings | None = None) -> Pair:
    pair = Pair(timings or Timings())
    for number in range(live):
        pair.register(f"t{number}")
    return pair


def _best(rounds: int, one: Callable[[], float]) -> float:
    """The least CPU time per thing over several runs, in microseconds."""
    return min(one() for _ in range(rounds))


def _through(pair: Pair, live: int, transfers: int, rounds: int) -> tuple[float, float]:
    """Whole transfers, one in for one out: (us per event, events per transfer)."""
    best = float("inf")
    events = 0
    first = 0
    for _ in range(rounds):
        last = first + transfers
        before = pair.events

        def run(first: int = first, last: int = last) -> None:
            for number in range(first, last):
                pair.register(f"t{live + number}")
                pair.serve(f"t{number}")

        seconds = cpu_s(run)
        events = pair.events - before
        best = min(best, seconds * 1e6 / events)
        first = last
    return best, events / transfers


def _renewal(live: int, rounds: int) -> float:
    """All live transfers renew once per round."""
    timings = Timings(transfer_deadline_ms=1 << 30, grant_lease_ms=1 << 20)
    pair = _filled(live, timings)
    repeats = max(1, 2_000 // live)

    def one() -> float:
        def run() -> None:
            for _ in range(repeats):
                pair.advance(pair.now_ms + timings.renew_ms)

        return cpu_s(run) * 1e6 / (live * repeats)

    return _best(rounds, one)


def _expiry(live: int) -> float:
    """Every live transfer misses its deadline, one after the other."""
    timings = Timings(transfer_deadline_ms=60_000, renew_ms=1 << 30, grant_lease_ms=1 << 30)
    repeats = max(1, 2_000 // live)
    spent = 0.0
    for _ in range(repeats):
        pair = Pair(timings)
        for number in range(live):
            pair.now_ms = number
            pair.register(f"t{number}")

        def run(pair: Pair = pair) -> None:
            # Each deadline on its own, so that the timers are asked as often as there are any.
            for number in range(live):
                pair.advance(timings.transfer_deadline_ms + number)

        spent += cpu_s(run)
        assert pair.tells == 2 * live
    return spent * 1e6 / (live * repeats)


def _far_links(pair: Pair, count: int) -> float:
    """A link of another peer comes up at D and is lost again."""
    welcome = Welcome(
        version=1,
        engine_id=FAR.engine_id,
        rank=0,
        incarnation=Incarnation(9),
        role=Role.PRODUCER,
        features=0,
    )
    describe = Describe(transport="bench", blob=b"", shard=b"")

    def run() -> None:
        for number in range(count):
            link = LinkId(1000 + number)
            pair.consumer.open_link(link, FAR, pair.now_ms)
            pair.consumer.receive(link, welcome, pair.now_ms)
            pair.consumer.receive(link, describe, pair.now_ms)
            pair.consumer.close_link(link, Reason.PEER_LOST, pair.now_ms)
            pair.consumer.poll()

    return cpu_s(run) * 1e6 / count


def _far_fences(pair: Pair, count: int) -> float:
    def run() -> None:
        for number in range(count):
            peer = Peer(FAR, Incarnation(9 + number))
            pair.consumer.handle(FenceResult(peer=peer, fenced=True), pair.now_ms)
            pair.consumer.needs_fence(peer)
            pair.consumer.handle(Unreachable(peer=FAR, reason=Reason.UNREACHABLE), pair.now_ms)

    return cpu_s(run) * 1e6 / count


# --- memory ---


def _memory(live: int) -> Memory:
    return Memory(
        live=live,
        consumer_bytes=_consumer_bytes(live),
        producer_bytes=_producer_bytes(live),
        table_bytes=_table_bytes(live),
        ended_bytes=_ended_bytes(live),
    )


def _grown(action: Callable[[], object]) -> int:
    """Bytes that are held after `action` and were not before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        return after - before
    finally:
        tracemalloc.stop()


def _consumer_bytes(live: int) -> float:
    """Registrations that were granted; their block tables are their own, as an engine's are."""
    one = Pair().consumer

    def fill() -> None:
        for number in range(live):
            name = TransferId(f"t{number}")
            one.handle(
                Register(
                    transfer_id=name, producers=(P_KEY,), digest=b"", deadline_ms=120_000, tag=name
                ),
                0,
            )
            plan = EdgePlan(peer=P_KEY, parts=(PART,), tables=_own_tables())
            one.handle(Resolved(transfer_id=name, attempt=Attempt(1), edges=(plan,)), 0)
            one.poll()

    return _grown(fill) / live


def _producer_bytes(live: int) -> float:
    """Grants that came in and are parked, each with a block table of its own."""
    one = Pair().producer

    def fill() -> None:
        for number in range(live):
            header = Header(
                transfer_id=TransferId(f"t{number}"),
                attempt=Attempt(1),
                sender=Incarnation(int(Role.CONSUMER)),
                receiver=Incarnation(int(Role.PRODUCER)),
            )
            grant = Grant(
                header=header, digest=b"", lease_ms=30_000, parts=(PART,), tables=_own_tables()
            )
            one.receive(LINK, grant, 0)
            one.poll()

    grown = _grown(fill)
    assert one.live() == live
    return grown / live


def _table_bytes(count: int) -> float:
    kept: list[tuple[BlockRuns, ...]] = []
    return _grown(lambda: kept.extend(_own_tables() for _ in range(count))) / count


def _ended_bytes(count: int) -> float:
    pair = Pair()

    def through() -> None:
        for number in range(count):
            pair.register(f"t{number}")
            pair.serve(f"t{number}")

    grown = _grown(through)
    assert pair.tells == 3 * count
    return grown / count


def _own_tables() -> tuple[BlockRuns, ...]:
    """Equal to `tables()`, but bytes of their own, as another message's are."""
    return tuple(
        attrs.evolve(
            runs,
            starts=attrs.evolve(runs.starts, data=bytes(bytearray(runs.starts.data))),
            lengths=attrs.evolve(runs.lengths, data=bytes(bytearray(runs.lengths.data))),
        )
        for runs in tables()
    )
