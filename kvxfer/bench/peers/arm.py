"""An agent, its crowds, and the load between them.

Owns the closed loop: a slot carries one request after another. Knows no statistics.
Invariants: the agent under test is a plain `Agent`, called from this thread alone; a
request has ended when D was told that it landed and P that it may free its blocks; one
that ends otherwise ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
import numpy as np

from kvxfer.bench.peers.crowd import Crowd, Peer
from kvxfer.bench.peers.pool import TOKENS_PER_BLOCK, Pool, Shape
from kvxfer.driver import (
    Agent,
    AgentConfig,
    Landed,
    LetGo,
    ProducerAddress,
    Result,
    Role,
    Sent,
    Timings,
    TransferId,
)
from kvxfer.driver import commands as cmd
from kvxfer.driver.loop import clock_ms
from kvxfer.errors import TransportFault
from kvxfer.status import Status

HOST: Final = "127.0.0.1"
WAIT_S: Final = 1e-3
DEADLINE_S: Final = 120.0
LEASE_MS: Final = 180_000
SILENCES_MAX: Final = 100
HUB: Final = "hub"


def failed(text: str) -> TransportFault:
    return TransportFault("peers", Status.OP_FAILED, text)


@attrs.frozen(kw_only=True)
class Load:
    """What one arm carries. `hub`: the role of the agent under test."""

    transport: str
    hub: Role
    peers: int
    in_flight: int
    shape: Shape
    seed: int


@attrs.define(eq=False)
class Carried:
    """What one run found."""

    latency_s: dict[int, list[float]] = attrs.field(factory=dict)
    """By peer: from the request's two calls until D was told that it landed."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the writer thread of the agent under test."""
    process_cpu_s: float = 0.0
    """Of everything: that thread, the peers' and the transport's, and the load."""
    ended: int = 0


@attrs.define(eq=False)
class _Slot:
    peer: Peer
    peer_number: int
    place: int
    """Its number among the slots of that peer."""
    started_ms: float = 0.0
    number: int = 0
    ends_left: int = 0
    """Of D and P, how many have not told the end yet."""


@attrs.define(eq=False, kw_only=True)
class Arm:
    """Make it with `Arm.start`. The last peer has a thread of its own, and can be frozen."""

    load: Load
    hub: Agent
    hub_pool: Pool
    crowds: list[Crowd]
    pools: list[Pool]
    slots: list[_Slot]

    @classmethod
    def start(cls, load: Load) -> Arm:
        """Raises KvxferError or ImportError where the transport cannot be used here."""
        pools = [
            Pool.of(
                load.shape,
                len(range(number, load.in_flight, load.peers)) or 1,
                load.seed + number + 1,
                filled=load.hub is Role.CONSUMER,
            )
            for number in range(load.peers)
        ]
        hub_pool = Pool.of(load.shape, load.in_flight, load.seed, filled=load.hub is Role.PRODUCER)
        hub = Agent.start(_config(load, HUB, load.hub, hub_pool))
        crowds: list[Crowd] = []
        try:
            far = Role.CONSUMER if load.hub is Role.PRODUCER else Role.PRODUCER
            configs = [_config(load, f"peer-{n}", far, pool) for n, pool in enumerate(pools)]
            halves = filter(None, (configs[:-1], configs[-1:]))
            # One after another: those that were started are closed where a later one fails.
            crowds.extend(Crowd.start(half) for half in halves)
        except BaseException:
            _close(hub, crowds)
            raise
        peers = [peer for crowd in crowds for peer in crowd.peers]
        slots = [
            _Slot(peers[n % load.peers], n % load.peers, n // load.peers)
            for n in range(load.in_flight)
        ]
        return cls(load=load, hub=hub, hub_pool=hub_pool, crowds=crowds, pools=pools, slots=slots)

    def close(self) -> None:
        _close(self.hub, self.crowds)

    # --- the load ---

    def run(self, requests: int, *, stopped: bool = False) -> Carried:
        """Carry so many; with `stopped` the last peer stands still and its requests wait.

        Raises TransportFault where one does not end well, or not in time.
        """
        last = self.load.peers - 1
        moving = [s for s in self.slots if not stopped or s.peer_number != last]
        if stopped:
            self._stop_last([s for s in self.slots if s.peer_number == last])
        found = Carried()
        # The published figure is of the thread's last turn: it rests now.
        cpu_us = self.hub.counters()["writer_cpu_us"]
        begin, process_cpu_s = time.perf_counter(), time.process_time()
        left = requests
        for slot in moving[:requests]:
            self._register(slot)
            self._offer(slot)
            left -= 1
        for slot in self._ended(found, requests):
            if left:
                self._register(slot)
                self._offer(slot)
                left -= 1
        found.wall_s = time.perf_counter() - begin
        found.process_cpu_s = time.process_time() - process_cpu_s
        found.cpu_s = (self.hub.counters()["writer_cpu_us"] - cpu_us) / 1e6
        if stopped:
            self.crowds[-1].thaw()
            waiting = sum(bool(s.ends_left) for s in self.slots)
            for _ in self._ended(Carried(), waiting):
                pass
        return found

    def hold(self) -> None:
        """Have every slot's request in flight, known to both sides, with nothing to post yet."""
        for slot in self.slots:
            self._register(slot)
            self._offer(slot, TOKENS_PER_BLOCK)
        self._until(lambda: self._held_by_producers(self.slots), len(self.slots))

    def release(self) -> None:
        """Let all that `hold` has started end."""
        for number, slot in enumerate(self.slots):
            tid, pool, place = self._named(slot, number, Role.PRODUCER)
            count = self.load.shape.token_count
            if self.load.hub is Role.PRODUCER:
                self.hub.grow(tid, pool.tables[place], count, sealed=True)
            else:
                slot.peer.put(
                    cmd.Grow(
                        transfer_id=tid, tables=pool.tables[place], token_count=count, sealed=True
                    )
                )
        for _ in self._ended(Carried(), len(self.slots)):
            pass

    def check_bytes(self) -> None:
        """Raises TransportFault where a slot's bytes differ between its two ends."""
        for number, slot in enumerate(self.slots):
            here = self.hub_pool.bytes_of(number)
            there = self.pools[slot.peer_number].bytes_of(slot.place)
            if slot.number and not np.array_equal(here, there):
                raise failed(f"slot {number}: the bytes at D are not those of P")

    # --- inside ---

    def _stop_last(self, slots: list[_Slot]) -> None:
        """Grants are out before it stops, so that there is something to do for it."""
        for slot in slots:
            self._register(slot)
        self._until(lambda: self._held_by_producers(slots), len(slots))
        self.crowds[-1].freeze()
        for slot in slots:
            self._offer(slot)

    def _held_by_producers(self, slots: Sequence[_Slot]) -> int:
        """Grants that the producers of these slots hold."""
        if self.load.hub is Role.PRODUCER:
            return self.hub.counters()["grants_held"]
        peers = {slot.peer_number: slot.peer for slot in slots}
        return sum(len(peer.loop.pump.session.producer.sends) for peer in peers.values())

    def _until(self, count: Callable[[], int], wanted: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while count() < wanted:
            self._check(end)
            time.sleep(WAIT_S)

    def _check(self, end: float) -> None:
        for crowd in self.crowds:
            crowd.check()
        if time.monotonic() > end:
            raise failed(f"not done after {DEADLINE_S:g} s")

    def _named(self, slot: _Slot, number: int, role: Role) -> tuple[TransferId, Pool, int]:
        """The request of a slot, and where its blocks lie at the end with that role."""
        tid = TransferId(f"{number}:{slot.number}")
        if self.load.hub is role:
            return tid, self.hub_pool, number
        return tid, self.pools[slot.peer_number], slot.place

    def _register(self, slot: _Slot) -> None:
        slot.number += 1
        slot.ends_left = 2
        slot.started_ms = clock_ms()
        number = slot.place * self.load.peers + slot.peer_number
        tid, pool, place = self._named(slot, number, Role.CONSUMER)
        hub_produces = self.load.hub is Role.PRODUCER
        name, address = HUB, self.hub.address
        if not hub_produces:
            name, address = slot.peer.config.engine_id, slot.peer.address
        assert address is not None
        host, port = address
        producers = (ProducerAddress(engine_id=name, rank=0, host=host, port=port),)
        count = self.load.shape.token_count
        if hub_produces:
            slot.peer.put(
                cmd.Register(
                    transfer_id=tid,
                    producers=producers,
                    tables=pool.tables[place],
                    token_start=0,
                    token_stop=count,
                )
            )
        else:
            self.hub.register(
                tid,
                producers=producers,
                tables=pool.tables[place],
                token_start=0,
                token_stop=count,
            )

    def _offer(self, slot: _Slot, token_count: int | None = None) -> None:
        """All tokens of the request, or the first few with more to come."""
        number = slot.place * self.load.peers + slot.peer_number
        tid, pool, place = self._named(slot, number, Role.PRODUCER)
        sealed = token_count is None
        count = token_count or self.load.shape.token_count
        if self.load.hub is Role.PRODUCER:
            self.hub.offer(tid, pool.tables[place], count, sealed=sealed)
        else:
            slot.peer.put(
                cmd.Offer(
                    transfer_id=tid,
                    tables=pool.tables[place],
                    token_count=count,
                    sealed=sealed,
                )
            )

    def _ended(self, found: Carried, count: int) -> Iterator[_Slot]:
        """The slots whose requests end, as they do, until so many have."""
        end = time.monotonic() + DEADLINE_S
        while found.ended < count:
            self.hub.wait(WAIT_S)
            self._check(end)
            results = self.hub.take()
            for crowd in self.crowds:
                while crowd.results:
                    results.append(crowd.results.popleft())
            for result in results:
                slot = self._result(result, found)
                if slot is not None:
                    yield slot

    def _result(self, result: Result, found: Carried) -> _Slot | None:
        """The slot, where this was the last word on its request."""
        if isinstance(result, LetGo):
            return None
        slot = self.slots[int(result.transfer_id.partition(":")[0])]
        if not isinstance(result, Landed | Sent):
            raise failed(f"{result.transfer_id}: {type(result).__name__}, {result.reason.name}")
        if isinstance(result, Landed):
            latency_s = (result.told_ms - slot.started_ms) / 1e3
            found.latency_s.setdefault(slot.peer_number, []).append(latency_s)
        slot.ends_left -= 1
        if slot.ends_left:
            return None
        found.ended += 1
        return slot


def _close(hub: Agent, crowds: Sequence[Crowd]) -> None:
    for crowd in crowds:
        crowd.close()
    hub.close()


def _config(load: Load, name: str, role: Role, pool: Pool) -> AgentConfig:
    return AgentConfig(
        engine_id=name,
        role=role,
        shard=pool.shard(),
        memories=pool.memories(),
        transport=load.transport,
        listen=(HOST, 0) if role is Role.PRODUCER else None,
        # Renewed as always, but neither a peer that stands still nor a starved one is given up.
        timings=Timings(
            offer_lease_ms=LEASE_MS,
            grant_lease_ms=LEASE_MS,
            transfer_deadline_ms=LEASE_MS,
            handshake_ms=LEASE_MS,
            renew_misses_max=SILENCES_MAX,
        ),
        # The history of an agent grows to its own bound, whatever is in flight.
        events_max=0,
        flight_transfers=0,
        record_dir=None,
    )
